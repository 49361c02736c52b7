"""Runs: skipped when finished, refused when in the way, continued to the same result after any kind of end."""

import errno
import json
import os
import signal
import time

import pytest
import torch
from lines import Lines, Points, command, outcome, run
from safetensors.torch import save
from torch import nn

from neurocoder.lab.records import checkpoint as checkpoints
from neurocoder.lab.records.checkpoint import Checkpoint
from neurocoder.lab.records.record import CorruptFileError
from neurocoder.lab.runner.job import diff_config
from neurocoder.lab.runner.options import format_seeds

SLOW = ("--variants", "program", "--seeds", 0, "--pause", 0.05)


@pytest.fixture
def interrupted(monkeypatch):
    """Run with a signal that comes in a certain step; the exit status."""

    def go(number, step, *arguments):
        whole, calls = Points.batch, []

        def batch(self, position):
            calls.append(position)
            if len(calls) == step:
                signal.raise_signal(number)
            return whole(self, position)

        with monkeypatch.context() as patch:
            patch.setattr(Points, "batch", batch)
            return run(*arguments)

    return go


def test_a_run_killed_in_the_middle_resumes_to_the_same_record_bit_for_bit(tmp_path):
    process = command("run", "lines:Lines", *SLOW, "--output", tmp_path, "--checkpoint-seconds", 0)
    folder = tmp_path / "lines" / "best" / "program"
    path = folder / "seed0.checkpoint.safetensors"
    while process.poll() is None and not (path.exists() and Checkpoint.read(path).state["taken"] > 12):
        time.sleep(0.01)
    process.kill()
    process.communicate()
    assert process.returncode == -9
    assert not (folder / "seed0.json").exists()
    assert 12 < Checkpoint.read(path).state["taken"] < 40
    assert run(*SLOW, "--output", tmp_path, "--resume") == 0
    assert run(*SLOW, "--output", tmp_path / "whole") == 0
    assert outcome(tmp_path, "program") == outcome(tmp_path / "whole", "program")
    assert not path.exists()


@pytest.mark.parametrize(("variant", "optimiser"), [("program", "adam"), ("program", "sgd"), ("dropout", "adam")])
@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGHUP, 129)])
def test_an_interrupted_run_saves_itself_and_resumes_bit_for_bit(
    tmp_path, capsys, interrupted, number, status, variant, optimiser
):
    wish = ("--variants", variant, "--seeds", 0, "--optimiser", optimiser)
    assert run(*wish, "--output", tmp_path / "whole") == 0
    for step in (3, 13, 17):  # before the first evaluation, between two, and in another block of data
        more = ("--resume",) if step > 3 else ()
        assert interrupted(number, step, *wish, "--output", tmp_path, *more) == status
        assert "--resume" in capsys.readouterr().err
        files = list((tmp_path / "lines" / "best" / variant).iterdir())
        assert [file.name for file in files] == ["seed0.checkpoint.safetensors"]
    assert Checkpoint.read(files[0]).state["taken"] == 3 + 13 + 17
    assert run(*wish, "--output", tmp_path, "--resume") == 0
    assert outcome(tmp_path, variant) == outcome(tmp_path / "whole", variant)
    assert not files[0].exists()


def test_finished_runs_are_skipped_and_done_anew_when_asked(tmp_path, capsys):
    wish = ("--variants", "linear", "--output", tmp_path)
    assert run(*wish) == 0
    path = tmp_path / "lines" / "best" / "linear" / "seed0.json"
    before = path.stat().st_mtime_ns
    assert run(*wish, "--seeds", "0-2") == 0
    assert "1 finished, 2 finished before" in capsys.readouterr().out
    assert path.stat().st_mtime_ns == before
    assert run(*wish, "--overwrite") == 0
    assert path.stat().st_mtime_ns > before
    assert "2 finished" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "difference"),
    [
        (("--steps", "12"), "steps is 40 there and 12 here"),
        (("--precision", "bf16-mixed"), "precision is '32-true' there and 'bf16-mixed' here"),
    ],
)
def test_another_configuration_is_refused_before_anything_is_trained(tmp_path, capsys, options, difference):
    assert run("--variants", "program", "--seeds", 0, "--output", tmp_path) == 0
    assert run("--variants", "linear,program", "--seeds", 0, "--output", tmp_path, *options) == 2
    said = capsys.readouterr().err
    assert difference in said
    assert "--output" in said
    assert "--overwrite" in said
    assert not (tmp_path / "lines" / "best" / "linear").exists()
    assert run("--variants", "program", "--seeds", 0, "--output", tmp_path, *options, "--overwrite") == 0


def test_settings_without_an_effect_may_change(tmp_path, capsys, monkeypatch, interrupted):
    monkeypatch.setattr(
        Lines, "effective", lambda _, config, variant: {k: v for k, v in config.items() if k != "pause"}
    )
    wish = ("--variants", "linear", "--seeds", 0, "--output", tmp_path)
    assert interrupted(signal.SIGTERM, 13, *wish) == 143
    assert run(*wish, "--pause", 0.001, "--steps", 50, "--resume") == 2
    said = capsys.readouterr().err
    assert "config.steps is 40 there and 50 here" in said
    assert "pause" not in said
    assert run(*wish, "--pause", 0.001, "--resume") == 0
    assert run(*wish, "--pause", 0.002) == 0
    said = capsys.readouterr()
    assert "1 finished before" in said.out
    assert "finished runs are kept, although pause is 0.001 there and 0.002 here; --overwrite repeats them" in said.err
    assert run(*wish, "--pause", 0.002, "--steps", 50) == 2


def test_records_that_cannot_be_written_are_refused_before_anything_is_trained(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("neurocoder.lab.runner.sweep.run_job", None)
    (tmp_path / "file").write_text("")
    for output, why in ((tmp_path / "file", "File exists"), (tmp_path / "file" / "folder", "Not a directory")):
        assert run("--output", output) == 2
        expected = f"error: --output must be a folder that can be written to, got {output}: {why}\n"
        assert capsys.readouterr().err == expected


def test_a_damaged_record_is_set_aside_and_the_run_done_anew(tmp_path, capsys):
    wish = ("--variants", "linear", "--seeds", 0, "--output", tmp_path)
    assert run(*wish) == 0
    path, sound = tmp_path / "lines" / "best" / "linear" / "seed0.json", outcome(tmp_path)
    path.write_text(path.read_text()[:100])
    assert run(*wish) == 0
    assert "damaged record" in capsys.readouterr().err
    assert path.with_name("seed0.json.damaged").stat().st_size == 100
    assert outcome(tmp_path) == sound


def checkpoint(folder, **changes):
    """A checkpoint of the linear variant after no step."""
    setup = {"device": "cpu", "precision": "32-true", "loop": "plain"}
    config = {"steps": 40, "batch": 8, "learning_rate": 0.02, "optimiser": "adam", "clip": None, "pause": 0.0}
    identity = {"variant": "linear", "seed": 0, **setup, **{f"config.{name}": config[name] for name in config}}
    path = folder / "lines" / "best" / "linear" / "seed0.checkpoint.safetensors"
    Checkpoint(identity | changes, {}, 0.0, ["?"], {"total": torch.zeros(1)}).write(path)
    return path


def as_format_4(path):
    """Rewrite a checkpoint as an older version wrote it, whose runs could have several seeds."""
    found = Checkpoint.read(path)
    identity = {**found.identity, "processes": 1, "seeds": [found.identity["seed"]]}
    del identity["seed"]
    tensors = {}
    about = {
        "format": 4,
        "identity": identity,
        "runs": [{**found.run, "failure": None}],
        "seconds": found.seconds,
        "sources": found.sources,
        "state": checkpoints._encode({**found.state, "total": found.state["total"].view(1)}, "state", tensors),
    }
    path.write_bytes(save(tensors, {"neurocoder": json.dumps(about | {"digest": checkpoints._digest(about, tensors)})}))


def test_a_run_that_an_older_version_left_unfinished_is_resumed(tmp_path, interrupted):
    wish = ("--variants", "program", "--seeds", 0, "--output", tmp_path)
    assert interrupted(signal.SIGTERM, 17, *wish) == 143
    (path,) = (tmp_path / "lines" / "best" / "program").iterdir()
    as_format_4(path)
    assert run(*wish, "--resume") == 0
    assert run("--variants", "program", "--seeds", 0, "--output", tmp_path / "whole") == 0
    assert outcome(tmp_path, "program") == outcome(tmp_path / "whole", "program")


def test_of_several_seeds_trained_at_once_it_is_not(tmp_path, capsys):
    path = checkpoint(tmp_path)
    found = Checkpoint.read(path)
    found.identity |= {"loop": "stacked"}
    found.write(path)
    as_format_4(path)
    content = path.read_bytes()
    assert run("--variants", "linear", "--seeds", 0, "--output", tmp_path, "--resume") == 2
    assert "loop is 'stacked' there and 'plain' here" in capsys.readouterr().err
    assert path.read_bytes() == content


def test_a_checkpoint_in_the_way_is_not_overwritten(tmp_path, capsys):
    path = checkpoint(tmp_path)
    wish = ("--variants", "linear", "--seeds", 0, "--output", tmp_path)
    assert run(*wish) == 2
    said = capsys.readouterr().err
    assert "--resume" in said
    assert "--overwrite" in said
    assert path.exists()
    assert run(*wish, "--overwrite") == 0
    assert not path.exists()


def test_a_checkpoint_of_another_training_is_refused(tmp_path, capsys):
    path = checkpoint(tmp_path, **{"config.steps": 80, "loop": "stacked", "device": "cuda"})
    assert run("--variants", "linear", "--seeds", 0, "--output", tmp_path, "--resume") == 2
    said = capsys.readouterr().err
    assert "device is 'cuda' there and 'cpu' here, loop is 'stacked' there and 'plain' here" in said
    assert "config.steps is 80 there and 40 here" in said
    assert path.exists()


def test_a_damaged_checkpoint_is_set_aside_and_the_run_starts_anew(tmp_path, capsys):
    path = checkpoint(tmp_path)
    path.write_bytes(path.read_bytes()[:-1])
    wish = ("--variants", "linear", "--seeds", 0)
    assert run(*wish, "--output", tmp_path, "--resume") == 0
    assert "damaged checkpoint" in capsys.readouterr().err
    assert path.with_name(path.name + ".damaged").exists()
    run(*wish, "--output", tmp_path / "other")
    assert outcome(tmp_path) == outcome(tmp_path / "other")


def test_a_checkpoint_with_other_numbers_than_were_written_is_damaged(tmp_path):
    path = tmp_path / "seed0.checkpoint.safetensors"
    Checkpoint({}, {"history": [{"loss": 3.25}]}, 0.0, [], {"a": torch.ones(8), "b": torch.zeros(0)}).write(path)
    assert torch.equal(Checkpoint.read(path).state["a"], torch.ones(8))
    whole = path.read_bytes()
    for content in (whole[:-4] + b"\0\0\0\0", whole.replace(b"3.25", b"9.25")):
        assert content != whole
        path.write_bytes(content)
        with pytest.raises(CorruptFileError, match="does not match its digest"):
            Checkpoint.read(path)
    with pytest.raises(CorruptFileError, match="is not a file"):
        Checkpoint.read(tmp_path)


def test_a_record_of_another_run_is_set_aside(tmp_path, capsys):
    wish = ("--variants", "linear", "--seeds", "0-1", "--output", tmp_path)
    assert run(*wish) == 0
    folder, sound = tmp_path / "lines" / "best" / "linear", outcome(tmp_path, seed=1)
    (folder / "seed1.json").write_text((folder / "seed0.json").read_text())
    assert run(*wish) == 0
    said = capsys.readouterr()
    assert "seed1.json says that it is lines/best/linear/seed0; set aside" in said.err
    assert "1 finished, 1 finished before" in said.out
    assert outcome(tmp_path, seed=1) == sound


def test_an_interrupt_that_cannot_be_saved_ends_the_sweep_all_the_same(tmp_path, capsys, interrupted, monkeypatch):
    def full(checkpoint, path):
        raise OSError("no space")

    monkeypatch.setattr(Checkpoint, "write", full)
    assert interrupted(signal.SIGINT, 5, "--variants", "linear", "--seeds", "0-2", "--output", tmp_path) == 130
    assert "0 finished, 1 failed (linear seed 0)" in capsys.readouterr().out


def test_a_rerun_that_was_interrupted_is_resumed_although_there_is_an_old_record(tmp_path, interrupted):
    wish = ("--variants", "linear", "--seeds", 0, "--output", tmp_path)
    assert run(*wish) == 0
    assert interrupted(signal.SIGTERM, 5, *wish, "--batch", 4, "--overwrite") == 143
    assert outcome(tmp_path)["config"]["batch"] == 8
    assert run(*wish, "--batch", 4, "--resume") == 0
    assert outcome(tmp_path)["config"]["batch"] == 4


def test_checkpoints_come_back_as_they_were(tmp_path):
    path = tmp_path / "seed0.checkpoint.safetensors"
    layer = nn.Linear(2, 1)
    optimiser = torch.optim.AdamW(layer.parameters())
    layer(torch.ones(2)).sum().backward()
    optimiser.step()
    state = {
        "a": torch.arange(3),
        "b": [torch.tensor(0.1, dtype=torch.float64), None, (1, "two", True)],
        "layer": layer,
        "optimiser": optimiser,
        "numbers": {0: 0.1 + 0.2, "large": 2**200, "none": float("inf")},
    }
    logged = {"history": [{"step": 5, "loss": 0.1 + 0.2}]}
    Checkpoint({"steps": 3}, logged, 1.5, ["x", "y"], state).write(path)
    found = Checkpoint.read(path)
    assert (found.identity, found.run, found.seconds, found.sources) == ({"steps": 3}, logged, 1.5, ["x", "y"])
    assert torch.equal(found.state["a"], torch.arange(3))
    assert found.state["b"][0].item() == 0.1
    assert found.state["b"][1:] == state["b"][1:]
    assert found.state["numbers"] == state["numbers"]
    assert torch.equal(found.state["layer"]["weight"], layer.weight)
    other = torch.optim.AdamW(layer.parameters(), lr=1.0)
    other.load_state_dict(found.state["optimiser"])
    assert torch.equal(other.state[layer.weight]["exp_avg"], optimiser.state[layer.weight]["exp_avg"])
    assert other.param_groups[0]["lr"] == optimiser.param_groups[0]["lr"]
    alike = {"a.b": torch.zeros(1), "a": {"b": torch.ones(1)}, "n": {1: torch.zeros(1), "1": torch.ones(1)}}
    Checkpoint({}, {}, 0.0, [], alike).write(path)
    found = Checkpoint.read(path).state
    assert [found["a.b"], found["a"]["b"], found["n"][1], found["n"]["1"]] == [0, 1, 0, 1]
    with pytest.raises(ValueError, match=r"the keys of state.c must be strings or integers, got \(\)"):
        Checkpoint({}, {}, 0.0, [], {"c": {(): 1}}).write(path)
    with pytest.raises(ValueError, match=r"state.b must be made of tensors, .* got set"):
        Checkpoint({}, {}, 0.0, [], {"b": {1}}).write(path)
    path.write_bytes(b"")
    with pytest.raises(CorruptFileError, match="is not a checkpoint"):
        Checkpoint.read(path)


def test_a_full_disk_is_named_with_the_file_and_leaves_nothing_half_written(tmp_path, monkeypatch):
    def full(path, content):
        path.touch()
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("pathlib.Path.write_bytes", full)
    path = tmp_path / "seed0.checkpoint.safetensors"
    with pytest.raises(OSError, match=f"{path} cannot be written: No space left on device"):
        Checkpoint({}, {}, 0.0, [], {}).write(path)
    assert not list(tmp_path.iterdir())


def test_seeds_in_words():
    assert format_seeds([5, 0, 1, 2]) == "0-2,5"
    assert format_seeds([3]) == "3"
    assert json.dumps(format_seeds(range(10))) == '"0-9"'


def test_differences_name_settings_of_nested_parts():
    old, new = (
        {"steps": 3, "rates": {"rate_a": 0.1, "rate_b": 0.2}},
        {"steps": 3, "rates": {"rate_a": 0.1, "rate_b": 0.3}},
    )
    assert diff_config(old, new) == "rate_b is 0.2 there and 0.3 here"
