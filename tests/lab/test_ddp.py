"""One run over two processes."""

import signal
import subprocess
import sys
import time

import pytest
import torch
from lines import Config, Lines, command, outcome, run, settings

from neurocoder.lab.records.checkpoint import Checkpoint
from neurocoder.lab.runner.command import _pending
from neurocoder.lab.runner.runs import Refused, Setup
from neurocoder.lab.train.loop import Stepper, TrainingError

WISH = ("--variants", "program", "--seeds", 0, "--steps", 60, "--pause", 0.02)


def test_two_processes_give_the_loss_curve_of_one_and_resume_under_torchrun(tmp_path):
    """The mean of two half batches' gradients is the whole batch's, up to rounding: tolerance 1e-4 in float32."""
    process = command("run", "lines:Lines", *WISH, "--devices", 2, "--checkpoint-seconds", 0, "--output", tmp_path)
    path = tmp_path / "lines" / "best" / "program" / "seed0.checkpoint.safetensors"
    while not path.exists() and process.poll() is None:
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    _, complaints = process.communicate(timeout=60)
    assert process.returncode == 143, complaints
    assert Checkpoint.read(path).state["taken"] in (16, 32, 48)

    words = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "-m", "neurocoder.lab", "run", "lines:Lines"]
    torchrun = subprocess.run(
        [sys.executable, *words, *map(str, WISH), "--output", tmp_path, "--resume"],
        env=settings(),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert torchrun.returncode == 0, torchrun.stderr
    assert torchrun.stdout.count("finished") == 1

    assert run(*WISH, "--output", tmp_path / "one") == 0
    two, one = outcome(tmp_path, "program"), outcome(tmp_path / "one", "program")
    assert (two["processes"], one["processes"]) == (2, 1)
    assert len(two["history"]) == 6
    for found, expected in zip(two["history"], one["history"], strict=True):
        assert found == pytest.approx(expected, rel=1e-4)


class Half:
    """A Fabric that is the second of three processes."""

    global_rank, world_size, is_global_zero = 1, 3, False
    device = torch.device("cpu")

    def setup_module(self, module):
        return module


def test_each_process_takes_its_rows():
    task = Lines().build(Config(batch=6), "linear", 0, Half.device)
    task.loss = lambda model, batch: batch[0].sum()
    stepper = Stepper(task, Half())
    task.stream.fill(0)
    whole = task.stream.batch(torch.tensor(2))[0]
    torch.testing.assert_close(stepper.loss(torch.tensor(2)), whole[[1, 4]].sum())


def test_a_batch_that_cannot_be_split_is_refused():
    stepper = Stepper(Lines().build(Config(batch=8), "linear", 0, Half.device), Half())
    with pytest.raises(TrainingError, match="a batch of 8 cannot be split over 3 processes"):
        stepper.loss(torch.tensor(0))


@pytest.mark.parametrize("first", [True, False])
def test_what_the_first_process_refuses_all_refuse(tmp_path, monkeypatch, first):
    """Each would else wait for the others."""
    refusal, told = Refused("in the way"), []

    class Shared(Half):
        is_global_zero = first

        def broadcast(self, found):
            told.append(found)
            return refusal

    def pending(*given):
        raise refusal

    monkeypatch.setattr("neurocoder.lab.runner.runs.pending", pending)
    with pytest.raises(Refused, match="in the way"):
        _pending([], Setup(tmp_path), Shared())
    assert told == [refusal if first else []]
