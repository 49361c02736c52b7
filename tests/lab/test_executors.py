"""Sweeps: many runs in one or more processes or on a cluster, of which none takes the others down."""

import fcntl
import multiprocessing
import os
import pty
import re
import signal
import socket
import subprocess
import sys
import termios
import threading
import time

import pytest
from lines import Config, Points, command, outcome, run, settings

from neurocoder.lab.records.checkpoint import Checkpoint
from neurocoder.lab.runner import executors
from neurocoder.lab.runner.progress import Display
from neurocoder.lab.runner.signals import StopSignals


def test_a_run_that_crashes_does_not_take_the_sweep_down(tmp_path, capsys):
    assert run("--variants", "linear,broken,diverging,wordless", "--seeds", "0", "--output", tmp_path) == 1
    said = capsys.readouterr().out
    assert "broken seed 0 failed: RuntimeError: no loss today (lines.py:" in said
    assert "diverging seed 0 failed: the training loss is nan at step 10" in said
    assert "wordless seed 0 failed: ValueError: observations must be JSON-serializable" in said
    assert "1 finished, 3 failed (broken seed 0, diverging seed 0, wordless seed 0)" in said
    assert outcome(tmp_path)["seed"] == 0


@pytest.mark.parametrize("jobs", [1, pytest.param(2, marks=pytest.mark.long)])
def test_metrics_that_no_record_can_hold_are_named_at_the_first_evaluation(tmp_path, capfd, jobs):
    wish = ("--variants", "tensor,own,linear", "--seeds", "0", "--output", tmp_path, "--jobs", jobs)
    assert run(*wish) == 1
    said = capfd.readouterr().out
    assert "tensor seed 0 failed: ValueError: metrics must be numbers (.item() of a tensor), got tensor(" in said
    assert "own seed 0 failed: ValueError: evaluate must not name a metric step or loss, got" in said
    assert "1 finished, 2 failed" in said


def test_a_run_without_steps_is_named(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(Config, "__post_init__", lambda self: None)
    assert run("--variants", "linear", "--seeds", "0", "--steps", "0", "--output", tmp_path) == 1
    assert "linear seed 0 failed: a run must have at least one step, got 0" in capsys.readouterr().out


@pytest.mark.long
def test_workers_end_where_the_first_process_breaks_down(tmp_path, monkeypatch):
    def fail(self, job, record):
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
    assert all(0 < Checkpoint.read(file).state["taken"] < 400 for file in folder.iterdir())


def test_workers_save_and_end_where_the_first_process_is_killed(tmp_path):
    wish = ("--variants", "linear", "--seeds", "0-1", "--steps", 10_000, "--pause", 0.02, "--output", tmp_path)
    process = command("run", "lines:Lines", *wish, "--jobs", 2, "--checkpoint-seconds", 0)
    folder, deadline = tmp_path / "lines" / "best" / "linear", time.monotonic() + 60
    while len(list(folder.glob("seed*.safetensors"))) < 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    process.kill()
    process.communicate(timeout=60)  # until none is left that could write to its output
    assert {Checkpoint.read(file).state["taken"] < 10_000 for file in folder.glob("seed?.checkpoint.*")} == {True}


@pytest.mark.parametrize(
    ("device", "visible", "expected"),
    [("cpu", None, [None] * 3), ("cuda", None, ["0", "1", "0"]), ("cuda", "3,GPU-x", ["3", "GPU-x", "3"])],
)
def test_workers_share_gpus(monkeypatch, device, visible, expected):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert executors.visible_gpus(3, device) == expected


def test_a_second_interrupt_stops_at_once():
    before = signal.getsignal(signal.SIGINT)
    with StopSignals() as signals:
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGINT)
        assert signals.received == signal.SIGINT
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


def test_a_closed_terminal_stops_a_sweep_unless_nohup_protects_it():
    before = signal.getsignal(signal.SIGHUP)
    try:
        for handler, expected in ((signal.SIG_DFL, signal.SIGHUP), (signal.SIG_IGN, 0)):
            signal.signal(signal.SIGHUP, handler)
            with StopSignals() as signals:
                signal.raise_signal(signal.SIGHUP)
            assert signals.received == expected
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.slow
def test_a_terminal_that_is_gone_is_a_reason_to_save(tmp_path):
    """Not only the signal: from then on, printing is an error."""
    terminal, theirs = pty.openpty()
    words = ["run", "lines:Lines", "--variants", "linear", "--seeds", "0", "--steps", "900", "--pause", "0.05"]
    process = subprocess.Popen(
        [sys.executable, "-m", "neurocoder.lab", *words, "--output", str(tmp_path)],
        env=settings(),
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )
    os.close(theirs)
    shown = b""
    while b"/900" not in shown:
        shown += os.read(terminal, 4096)
    os.close(terminal)
    assert process.wait(60) == 128 + signal.SIGHUP
    (checkpoint,) = tmp_path.rglob("seed0.*")
    assert 0 < Checkpoint.read(checkpoint).state["taken"] < 900


def test_a_cluster_needs_ray(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    assert run("--cluster", "auto", "--output", tmp_path) == 2
    assert "pip install 'neurocoder[cluster]'" in capsys.readouterr().err


def test_a_cluster_that_does_not_answer_is_named_at_once(tmp_path, capsys):
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{closed.getsockname()[1]}"
    assert run("--cluster", address, "--output", tmp_path) == 2
    expected = f"error: --cluster must be auto, local, or HOST:PORT of a Ray cluster, got {address}: "
    assert capsys.readouterr().err.startswith(expected)


@pytest.mark.long
def test_a_cluster_makes_the_same_records_although_a_worker_is_killed(tmp_path, monkeypatch):
    monkeypatch.setenv("NEUROCODER_DATA", str(tmp_path))  # the command sets it for good
    wish = ("--variants", "broken,mortal,program", "--seeds", 0, "--data-root", tmp_path, "--checkpoint-seconds", 0)
    process = command("run", "lines:Lines", *wish, "--cluster", "local", "--output", tmp_path)
    said, complaints = process.communicate(timeout=300)
    assert "2 finished, 1 failed (broken seed 0)" in said, complaints
    assert "broken seed 0 failed: RuntimeError: no loss today" in said
    assert (tmp_path / "died").read_text() == "at step 20"
    run("--variants", "mortal,program", "--seeds", 0, "--data-root", tmp_path, "--output", tmp_path / "here")
    for variant in ("mortal", "program"):
        assert outcome(tmp_path, variant) == outcome(tmp_path / "here", variant)
    assert not list(tmp_path.glob("**/*.safetensors"))
    assert not list(tmp_path.glob("**/*.lock"))


@pytest.mark.long
def test_a_sweep_on_a_cluster_is_stopped_and_resumed(tmp_path):
    wish = ("run", "lines:Lines", "--variants", "program", "--seeds", 0, "--pause", 0.08, "--cluster", "local")
    process = command(*wish, "--output", tmp_path, "--checkpoint-seconds", 0)
    folder = tmp_path / "lines" / "best" / "program"
    while process.poll() is None and not list(folder.glob("*.safetensors")):
        time.sleep(0.05)
    process.terminate()
    said, complaints = process.communicate(timeout=300)
    assert process.returncode == 143, (said, complaints)
    assert "--resume" in complaints
    (path,) = folder.iterdir()
    assert 0 < Checkpoint.read(path).state["taken"] < 40
    assert run("--variants", "program", "--seeds", 0, "--pause", 0.08, "--output", tmp_path, "--resume") == 0
    run("--variants", "program", "--seeds", 0, "--pause", 0.08, "--output", tmp_path / "here")
    assert outcome(tmp_path, "program") == outcome(tmp_path / "here", "program")


def test_reasons_name_error_and_place():
    try:
        raise ValueError("two\nlines")
    except ValueError as error:
        said = executors.reason(error)
    assert said.startswith(f"ValueError: two lines ({os.path.basename(__file__)}:")


def test_a_terminal_shows_bars(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("neurocoder.lab.train.context.REPORT_EVERY", -1.0)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "140")
    assert run("--variants", "linear,broken", "--seeds", 0, "--pause", 0.02, "--output", tmp_path) == 1
    said = capsys.readouterr().out
    for part in ("linear seed 0 ", "/40", "loss ", "steps/s", "sweep", "left"):
        assert part in said
    assert "broken seed 0 failed: RuntimeError" in said
    assert f"records in {tmp_path / 'lines' / 'best'}" in said


@pytest.mark.parametrize("jobs", [1, pytest.param(2, marks=pytest.mark.long)])
def test_without_a_terminal_a_long_run_has_a_line_a_minute(tmp_path, capsys, monkeypatch, jobs):
    wish = ("--variants", "linear", "--seeds", 0, "--pause", 0.05, "--jobs", jobs, "--output")
    assert run(*wish, tmp_path / "short") == 0
    assert "of 40" not in capsys.readouterr().out
    monkeypatch.setattr("neurocoder.lab.runner.progress.EVERY", 0.0)
    assert run(*wish, tmp_path / "long") == 0
    assert re.search(r"^linear seed 0: \d+ of 40, loss \d", capsys.readouterr().out, re.MULTILINE)


@pytest.mark.long
def test_two_commands_with_one_output_share_the_sweep(tmp_path):
    wish = ("run", "lines:Lines", "--variants", "program", "--seeds", "0-3", "--pause", 0.03, "--output", tmp_path)
    both = [command(*wish) for _ in range(2)]
    said = [process.communicate(timeout=300) for process in both]
    counts = [sum(line.startswith("program seed") for line in out.splitlines()) for out, _ in said]
    assert sum(counts) == 4, said
    assert min(counts) > 0
    assert [process.returncode for process in both] == [0, 0]
    assert {path.name for path in (tmp_path / "lines/best/program").iterdir()} == {f"seed{i}.json" for i in range(4)}


def test_a_dry_run_only_says_what_would_be_run(tmp_path, capsys):
    assert run("--variants", "linear", "--seeds", 0, "--output", tmp_path) == 0
    capsys.readouterr()
    assert run("--variants", "linear,program", "--seeds", 0, "--output", tmp_path, "--dry-run") == 0
    said = capsys.readouterr().out
    assert said == (f"program seed 0\n1 of 2 runs to do, on cpu, loop plain, into {tmp_path / 'lines' / 'best'}\n")
    assert not (tmp_path / "lines" / "best" / "program").exists()


def test_a_dry_run_changes_nothing(tmp_path, capsys):
    assert run("--variants", "linear", "--seeds", 0, "--output", tmp_path) == 0
    folder = tmp_path / "lines" / "best" / "linear"
    Checkpoint({}, {}, 0.0, [], {}).write(folder / "seed1.checkpoint.safetensors")
    (folder / "seed0.json").write_text("damaged")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    for more in ((), ("--overwrite",), ("--resume",)):
        assert run("--variants", "linear", "--seeds", "0-1", "--output", tmp_path, "--dry-run", *more) == 0
        assert "2 of 2 runs to do" in capsys.readouterr().out
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_an_interrupt_stops_a_sweep_whose_runs_never_save(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("neurocoder.lab.train.context.Context.should_save", False)
    whole, calls = Points.batch, []

    def batch(self, position):
        calls.append(position)
        if len(calls) == 5:
            signal.raise_signal(signal.SIGINT)
        return whole(self, position)

    monkeypatch.setattr(Points, "batch", batch)
    assert run("--variants", "linear", "--seeds", "0-3", "--output", tmp_path) == 130
    assert capsys.readouterr().out.startswith("linear seed 0: ")
    assert len(list(tmp_path.rglob("*.json"))) == 1
