"""Sweeps: many runs in one or more processes or on a cluster, of which none takes the others down."""

import multiprocessing
import os
import signal
import sys
import threading
import time
from types import ModuleType, SimpleNamespace

import pytest
from lines import Config, command, outcome, run

from neurocoder.lab import launch
from neurocoder.lab.checkpoints import Checkpoint
from neurocoder.lab.progress import Display


def test_a_run_that_crashes_does_not_take_the_sweep_down(tmp_path, capsys):
    assert run("--variants", "linear,broken,diverging,wordless", "--seeds", "0", "--output", tmp_path) == 1
    said = capsys.readouterr().out
    assert "broken seed 0 failed: RuntimeError: no loss today (lines.py:" in said
    assert "diverging seed 0 failed: the training loss is nan at step 10" in said
    assert "wordless seed 0 failed: ValueError: observations must be JSON-serializable" in said
    assert "1 finished, 3 failed (broken seed 0, diverging seed 0, wordless seed 0)" in said
    assert outcome(tmp_path)["seed"] == 0


@pytest.mark.parametrize("jobs", [1, 2])
def test_metrics_that_no_record_can_hold_are_named_at_the_first_evaluation(tmp_path, capfd, jobs):
    wish = ("--variants", "tensor,own,linear", "--seeds", "0", "--output", tmp_path, "--jobs", jobs)
    assert run(*wish) == 1
    said = capfd.readouterr().out
    assert "tensor seed 0 failed: ValueError: evaluate must return numbers (.item() of a tensor), got tensor(" in said
    assert "own seed 0 failed: ValueError: evaluate must not name a metric step or loss, got" in said
    assert "1 finished, 2 failed" in said


def test_a_run_without_steps_is_named(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(Config, "__post_init__", lambda self: None)
    assert run("--variants", "linear", "--seeds", "0", "--steps", "0", "--output", tmp_path) == 1
    assert "linear seed 0 failed: a run must have at least one step, got 0" in capsys.readouterr().out


def test_workers_end_where_the_first_process_breaks_down(tmp_path, monkeypatch):
    def fail(self, unit, outcome):
        raise RuntimeError("the display broke down")

    monkeypatch.setattr(Display, "done", fail)
    with pytest.raises(RuntimeError, match="the display broke down"):
        run("--variants", "linear,program", "--seeds", "0-1", "--output", tmp_path, "--jobs", 2)
    assert not multiprocessing.active_children()


def test_failures_alike_are_explained_once_and_many_are_counted(tmp_path, capsys):
    assert run("--variants", "broken", "--seeds", "0-6", "--output", tmp_path) == 1
    said = capsys.readouterr().out.splitlines()
    assert "no loss today" in said[0]
    assert said[1:7] == [f"broken seed {seed} failed: as broken seed 0" for seed in range(1, 7)]
    assert "7 failed (broken seed 0, broken seed 1, broken seed 2, broken seed 3, broken seed 4, and 2 more)" in said[7]


def test_neither_does_a_worker_that_is_killed_and_the_others_make_the_same_records(tmp_path, capfd):
    wish = ("--seeds", "0", "--output", tmp_path)
    assert run("--variants", "broken,killed,linear,program", *wish, "--jobs", 2) == 1
    said = capfd.readouterr()
    assert "broken seed 0 failed: RuntimeError: no loss today (lines.py:" in said.out
    assert "killed seed 0 failed: its process ended with signal SIGKILL" in said.out
    assert "2 finished, 2 failed" in said.out
    assert said.err == ""
    assert run("--variants", "linear,program", "--seeds", "0", "--output", tmp_path / "here") == 0
    for variant in ("linear", "program"):
        assert outcome(tmp_path, variant) == outcome(tmp_path / "here", variant)


def test_an_interrupt_stops_all_workers_with_checkpoints(tmp_path, capfd):
    folder, deadline = tmp_path / "lines" / "best" / "linear", time.monotonic() + 60

    def interrupt():
        while len(list(folder.glob("seed[01].checkpoint.safetensors"))) < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
        signal.raise_signal(signal.SIGINT)

    threading.Thread(target=interrupt).start()
    wish = ("--variants", "linear", "--seeds", "0-2", "--steps", 400, "--pause", 0.05, "--output", tmp_path)
    assert run(*wish, "--jobs", 2, "--checkpoint-seconds", 0) == 130
    assert capfd.readouterr().err == "interrupted: the same command with --resume continues from here\n"
    names = sorted(file.name for file in folder.iterdir())
    assert names == ["seed0.checkpoint.safetensors", "seed1.checkpoint.safetensors"]
    assert all(0 < Checkpoint.read(file).course.step < 400 for file in folder.iterdir())


def test_workers_save_and_end_where_the_first_process_is_killed(tmp_path):
    wish = ("--variants", "linear", "--seeds", "0-1", "--steps", 10_000, "--pause", 0.02, "--output", tmp_path)
    process = command("run", "lines:Lines", *wish, "--jobs", 2, "--checkpoint-seconds", 0)
    folder, deadline = tmp_path / "lines" / "best" / "linear", time.monotonic() + 60
    while len(list(folder.glob("seed*.safetensors"))) < 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    process.kill()
    process.communicate(timeout=60)  # until none is left that could write to its output
    assert {Checkpoint.read(file).course.step < 10_000 for file in folder.glob("seed?.checkpoint.*")} == {True}


@pytest.mark.parametrize(
    ("device", "visible", "expected"),
    [("cpu", None, [None] * 3), ("cuda", None, ["0", "1", "0"]), ("cuda", "3,GPU-x", ["3", "GPU-x", "3"])],
)
def test_workers_share_gpus(monkeypatch, device, visible, expected):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert launch.places(3, device) == expected


def test_a_second_interrupt_stops_at_once():
    before = signal.getsignal(signal.SIGINT)
    with launch.Signals() as signals:
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGINT)
        assert signals.received == signal.SIGINT
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


def test_a_cluster_needs_ray(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    assert run("--cluster", "auto", "--output", tmp_path) == 2
    assert "pip install 'neurocoder[cluster]'" in capsys.readouterr().err


@pytest.fixture
def ray(monkeypatch):
    """As much of ray as the lab uses, in this process; a task is done when it is waited for."""
    fake, started = ModuleType("ray"), SimpleNamespace(init=None, options=None, down=False)

    class RayError(Exception):
        pass

    def init(address, **options):
        if address == "nowhere":
            raise ConnectionError("no cluster there")
        started.init = options

    def remote(**options):
        started.options = options
        return lambda function: SimpleNamespace(remote=lambda *given: (function, given))

    def get(reference):
        function, (unit, setup) = reference
        if unit.variant == "killed":
            raise RayError("the worker died")
        return function(unit, setup)

    fake.init, fake.remote, fake.get = init, remote, get
    fake.wait = lambda references, timeout: (references[:1], references[1:])
    fake.cancel = lambda reference, force: None
    fake.cluster_resources = lambda: {"CPU": 2.0}
    fake.shutdown = lambda: setattr(started, "down", True)
    fake.exceptions = SimpleNamespace(RayError=RayError)
    monkeypatch.setitem(sys.modules, "ray", fake)
    return started


def test_a_cluster_makes_the_same_records(tmp_path, capsys, ray, monkeypatch):
    monkeypatch.setenv("NEUROCODER_DATA", str(tmp_path))
    wish = ("--variants", "broken,killed,program", "--seeds", 0)
    assert run(*wish, "--cluster", "auto", "--output", tmp_path) == 1
    said = capsys.readouterr().out
    assert "broken seed 0 failed: RuntimeError: no loss today" in said
    assert "killed seed 0 failed: RayError: the worker died" in said
    assert ray.init["runtime_env"]["env_vars"]["NEUROCODER_DATA"] == str(tmp_path)
    assert ray.options["num_gpus"] == 0
    assert ray.down
    run("--variants", "program", "--seeds", 0, "--output", tmp_path / "here")
    assert outcome(tmp_path, "program") == outcome(tmp_path / "here", "program")
    assert not list(tmp_path.glob("**/*.safetensors"))


def test_a_cluster_that_is_not_there(tmp_path, capsys, ray):
    assert run("--cluster", "nowhere", "--output", tmp_path) == 2
    assert "--cluster nowhere: no cluster there" in capsys.readouterr().err


def test_a_true_cluster_makes_the_same_records(tmp_path):
    pytest.importorskip("ray")
    wish = ("--variants", "broken,program", "--seeds", 0)
    process = command("run", "lines:Lines", *wish, "--cluster", "auto", "--output", tmp_path)
    said, complaints = process.communicate(timeout=300)
    assert "1 finished, 1 failed (broken seed 0)" in said, complaints
    run("--variants", "program", "--seeds", 0, "--output", tmp_path / "here")
    assert outcome(tmp_path, "program") == outcome(tmp_path / "here", "program")


def test_reasons_name_error_and_place():
    try:
        raise ValueError("two\nlines")
    except ValueError as error:
        said = launch.reason(error)
    assert said.startswith(f"ValueError: two lines ({os.path.basename(__file__)}:")


def test_a_terminal_shows_bars(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("neurocoder.lab.training.REPORT_EVERY", -1.0)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "140")
    assert run("--variants", "linear,broken", "--seeds", 0, "--pause", 0.02, "--output", tmp_path) == 1
    said = capsys.readouterr().out
    for part in ("linear seed 0 ", "/40", "loss ", "steps/s", "sweep", "left"):
        assert part in said
    assert "broken seed 0 failed: RuntimeError" in said
    assert said.rstrip().endswith(f"records in {tmp_path / 'lines' / 'best'}")
