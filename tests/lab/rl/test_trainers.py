"""A2C and A3C: one algorithm, one loss; processes that end."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest
import torch

pytest.importorskip("gymnasium")
from neurocoder.lab.rl import A2C, A3C, Settings, make_agent
from neurocoder.lab.rl.a2c import part_seed
from neurocoder.lab.train.context import TrainingError

CART = {"environment": "CartPole-v1", "environments": 1, "workers": 1, "width": 16, "rollout": 20}
PUBLISHED = Settings(**CART, steps=60, reduce="sum", epsilon=0.1, clip=None, rate=1e-2)


def agent_of(settings, head="plain", dtype=torch.float32):
    torch.manual_seed(3)
    return make_agent((4,), 2, head, settings).to(dtype)


def children():
    """Of this process, other than those that ended."""
    found = subprocess.run(["ps", "-o", "pid=,stat=,args=", "--ppid", str(os.getpid())], capture_output=True, text=True)
    return [line for line in found.stdout.splitlines() if "rl.worker" in line and " Z" not in line]


@pytest.mark.parametrize(("head", "correction"), [("plain", True), ("neurocoder", False)])
def test_one_environment_equals_one_worker(head, correction):
    settings = replace(PUBLISHED, correction=correction)
    first, second = (agent_of(settings, head, torch.float64) for _ in range(2))
    batched = A2C(first, "CartPole-v1", settings, seed=5)
    start = batched.flat.values.clone()
    torch.manual_seed(part_seed(5, 0, 0))  # the worker's actions
    updates = []
    batched.train(lambda trainer: updates.append(trainer.steps))
    asynchronous = A3C(second, "CartPole-v1", head, settings, seed=5)
    asynchronous.train(lambda trainer: None)
    assert updates == [20, 40, 60]
    assert asynchronous.steps == 60
    assert (batched.flat.values - start).abs().max() > 1e-3
    torch.testing.assert_close(batched.flat.values, asynchronous.flat.values, atol=1e-6, rtol=0)
    torch.testing.assert_close(batched.squares, asynchronous._shared.squares, atol=1e-6, rtol=0)
    one, other = batched.statistics(), asynchronous.statistics()
    assert one == pytest.approx(other, abs=1e-6)
    assert [e[1:] for e in batched.episodes()] == [e[1:] for e in asynchronous.episodes()]
    for trainer in (batched, asynchronous):
        trainer.close()


def test_two_groups_count_all_steps_and_learn():
    settings = Settings(**(CART | {"environments": 4}), groups=2, steps=400)
    trainer = A2C(agent_of(settings), "CartPole-v1", settings, seed=0)
    start, seen = trainer.flat.values.clone(), []
    trainer.train(lambda trainer: seen.append(trainer.steps))
    assert seen == list(range(40, 401, 40))
    assert (trainer.flat.values != start).any()
    assert trainer.episodes()
    trainer.close()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="graphs need a GPU")
@pytest.mark.parametrize("head", ["plain", "neurocoder"])
@pytest.mark.parametrize("groups", [1, 2])
def test_graphs_equal_eager_steps_on_a_gpu(head, groups):
    settings, ends = Settings(**(CART | {"environments": 4}), groups=groups, steps=800), []
    for capture in (False, True):
        agent = agent_of(settings, head, torch.float64).cuda()
        trainer = A2C(agent, "CartPole-v1", settings, seed=0, capture=capture)
        torch.manual_seed(7)
        trainer.train(lambda trainer: None)
        trainer.close()
        ends.append((trainer.flat.values.clone(), trainer.statistics()))
    torch.testing.assert_close(*(values for values, _ in ends), atol=1e-7, rtol=0)
    assert ends[0][1] == pytest.approx(ends[1][1], abs=1e-6)


def test_a_resumed_training_starts_from_what_was_saved():
    settings = Settings(**(CART | {"environments": 2}), steps=400)

    class Stop(Exception):
        pass

    def until(steps):
        def after(trainer):
            if trainer.steps >= steps:
                raise Stop

        return after

    trainer = A2C(agent_of(settings), "CartPole-v1", settings, seed=0)
    with pytest.raises(Stop):
        trainer.train(until(200))
    state = trainer.state_dict()
    state = {n: v.clone() if isinstance(v, torch.Tensor) else v for n, v in state.items()}
    state["agent"] = {name: value.clone() for name, value in state["agent"].items()}
    ends = []
    for _ in range(2):
        again = A2C(agent_of(settings), "CartPole-v1", settings, seed=0)
        again.load_state_dict(state)
        assert (again.steps, again.part) == (200, 1)
        torch.testing.assert_close(again.flat.values, trainer.flat.values, atol=0, rtol=0)
        torch.testing.assert_close(again.squares, trainer.squares, atol=0, rtol=0)
        torch.manual_seed(9)
        again.train(lambda trainer: None)
        ends.append(again.flat.values)
    assert (ends[0] == ends[1]).all()
    assert part_seed(0, 0, 0) != part_seed(0, 1, 0)  # its environments play other episodes


@pytest.mark.slow
class TestProcesses:
    SETTINGS = Settings(**(CART | {"workers": 2}), steps=2_000)

    def test_workers_share_their_work_and_end(self):
        trainer = A3C(agent_of(self.SETTINGS), "CartPole-v1", "plain", self.SETTINGS, seed=0)
        start, alive = trainer.flat.values.clone(), []
        trainer.train(lambda trainer: alive.append(len(children())))
        assert max(alive) == 2
        assert children() == []
        assert 2_000 <= trainer.steps < 2_000 + 2 * 20
        assert (trainer._shared.steps > 0).all()
        assert (trainer.flat.values != start).any()
        assert len(trainer.episodes()) > 10
        assert trainer.statistics()["entropy"] > 0
        resumed = A3C(agent_of(self.SETTINGS), "CartPole-v1", "plain", self.SETTINGS, seed=0)
        resumed.load_state_dict(trainer.state_dict())
        assert resumed.steps == trainer.steps
        torch.testing.assert_close(resumed._shared.values, trainer.flat.values, atol=0, rtol=0)
        trainer.close()
        resumed.close()

    def test_an_error_leaves_no_worker(self):
        settings = Settings(**(CART | {"workers": 2}), steps=10_000_000)
        trainer = A3C(agent_of(settings), "CartPole-v1", "plain", settings, seed=0)

        def after(trainer):
            if trainer.steps > 100:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            trainer.train(after)
        assert children() == []
        trainer.close()

    def test_a_worker_that_fails_says_why(self):
        trainer = A3C(agent_of(self.SETTINGS), "NoSuchGame-v0", "plain", self.SETTINGS, seed=0)
        with pytest.raises(TrainingError, match="a worker ended with status 1: ValueError: environment must be a gymn"):
            trainer.train(lambda trainer: None)
        assert children() == []
        trainer.close()

    def test_workers_end_with_a_parent_that_is_killed(self):
        code = (
            "import sys; sys.path[:0] = ['tests/lab/rl']; from test_trainers import *\n"
            "settings = Settings(**(CART | {'workers': 2}), steps=10_000_000)\n"
            "trainer = A3C(agent_of(settings), 'CartPole-v1', 'plain', settings, seed=0)\n"
            "trainer.train(lambda t: print(t.steps, *children(), sep='\\n', flush=True) if t.steps > 100 else None)\n"
        )
        parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
        lines = [parent.stdout.readline() for _ in range(3)]
        workers = [int(line.split()[0]) for line in lines[1:]]
        assert all(os.path.exists(f"/proc/{worker}") for worker in workers)
        parent.send_signal(signal.SIGKILL)
        parent.wait()
        parent.stdout.close()
        deadline = time.monotonic() + 20

        def running(worker):
            try:
                with open(f"/proc/{worker}/stat") as file:
                    return file.read().rsplit(")", 1)[1].split()[0] != "Z"
            except FileNotFoundError:
                return False

        while any(map(running, workers)) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert not any(map(running, workers))
