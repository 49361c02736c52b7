"""Agents that learn: minutes on two cores, so `make test-slow` runs them and `make test` does not."""

import time

import numpy as np
import pytest
import torch

pytest.importorskip("gymnasium")
from neurocoder.lab.experiments.atari.experiment import CARTPOLE
from neurocoder.lab.rl import A2C, Environments, Settings, Step, a2c, evaluate, make_agent

pytestmark = pytest.mark.long


@pytest.mark.parametrize("head", ["plain", "neurocoder"])
def test_cartpole_is_solved_within_three_minutes(head):
    begun = time.monotonic()
    torch.manual_seed(0)
    agent = make_agent((4,), 2, head, CARTPOLE)
    trainer = A2C(agent, "CartPole-v1", CARTPOLE, seed=0)
    trainer.train(lambda trainer: None)
    trainer.close()
    torch.manual_seed(1)
    scores = [episode.score for episode in evaluate(agent, "CartPole-v1", CARTPOLE, seed=99)]
    seconds = time.monotonic() - begun
    print(f"{head}: {sum(scores) / len(scores):.1f} in {seconds:.0f} s")
    assert len(scores) == 30
    assert sum(scores) / len(scores) >= 475
    assert seconds < 180


class Cue(Environments):
    """Episodes of three steps: the first observation names an action, a reward of 1 is for taking it at the last."""

    LENGTH = 3

    def __init__(self, count, shape):
        self.count, self.shape, self.actions = count, shape, 2
        self.dtype = np.dtype(np.uint8 if len(shape) == 3 else np.float32)
        super().__init__()

    def _reset(self, seed):
        self.random = np.random.default_rng(seed)
        self.clock = self.random.integers(0, self.LENGTH, self.count)  # so that episodes end at different steps
        self.cue = self.random.integers(0, 2, self.count)
        return self._seen()

    def _seen(self):
        found = np.zeros((self.count, 2, *self.shape[1:]), dtype=np.float32)
        found[np.arange(self.count), self.cue] = 1
        found[self.clock > 0] = 0
        return (255 * found).astype(np.uint8) if len(self.shape) == 3 else found

    def send(self, actions):
        self.sent = actions.copy()

    def _receive(self):
        over = self.clock == self.LENGTH
        last = self.clock == self.LENGTH - 1
        reward = (last & (self.sent == self.cue)).astype(np.float32)
        self.cue = np.where(over, self.random.integers(0, 2, self.count), self.cue)
        self.clock = np.where(over, 0, self.clock + 1)
        return Step(self._seen(), reward, last, ~over)

    def close(self):
        pass


@pytest.mark.parametrize("shape", [(2,), (2, 84, 84)], ids=["numbers", "pixels"])
@pytest.mark.parametrize("head", ["plain", "hyper", "neurocoder"])
def test_agents_remember_what_they_saw(monkeypatch, shape, head):
    steps = 60_000 if len(shape) == 1 else 20_000  # an image is a stronger cue
    settings = Settings(environments=16, steps=steps, rollout=8, width=32, rate=3e-3, entropy=0.003, clip=1.0)
    monkeypatch.setattr(a2c, "make_for", lambda *_: Cue(16, shape))
    torch.manual_seed(0)
    trainer = A2C(make_agent(shape, 2, head, settings), "Cue", settings, seed=0)
    scores = []
    trainer.train(lambda trainer: scores.extend(episode.score for episode in trainer.episodes()))
    print(f"{head} {shape}: {np.mean(scores[-500:]):.3f}")
    assert np.mean(scores[-500:]) > 0.9  # chance: 0.5
