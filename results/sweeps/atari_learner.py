"""Steps per second of batched A2C if emulators took no time: `python3 results/sweeps/atari_learner.py --help`.

Preset `best` of Seaquest, on a GPU as CUDA graphs. What is left is the agent's work and the transfers: what heads cost.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from neurocoder.lab.experiments.atari.experiment import Atari
from neurocoder.lab.rl import HEADS, a2c, make_agent
from neurocoder.lab.rl.environments import Environments, Step

SHAPE, ACTIONS = (4, 84, 84), 18
UPDATES = 40
"""That are timed, after as many that warm up."""


class Still(Environments):
    """Environments that always show the same."""

    def __init__(self, count: int) -> None:
        self.count, self.shape, self.dtype, self.actions = count, SHAPE, np.dtype(np.uint8), ACTIONS
        self._seen = np.random.default_rng(0).integers(0, 256, (count, *SHAPE), dtype=np.uint8)
        super().__init__()

    def _reset(self, seed: int) -> Any:
        return self._seen

    def send(self, actions: Any) -> None: ...

    def _receive(self) -> Step:
        return Step(self._seen, np.zeros(self.count, np.float32), np.zeros(self.count, bool), np.ones(self.count, bool))

    def close(self) -> None: ...


def main(head: str, environments: int, rollout: int) -> None:
    """Print steps per second, and milliseconds for a step of one group of environments."""
    cuda = torch.cuda.is_available()
    settings = replace(Atari.presets["best"], environments=environments, rollout=rollout)
    each = environments // settings.groups * rollout
    settings = replace(settings, steps=2 * UPDATES * each)
    a2c.for_training = lambda name, count, *_: Still(count)  # type: ignore[attr-defined]
    torch.manual_seed(0)
    agent = make_agent(SHAPE, ACTIONS, head, settings).to("cuda" if cuda else "cpu")
    trainer = a2c.A2C(agent, "ALE/Seaquest-v5", settings, seed=0, capture=cuda)
    begun = [0.0]

    def after(trainer: a2c.A2C) -> None:
        if trainer.steps == UPDATES * each:
            if cuda:
                torch.cuda.synchronize()
            begun[0] = time.perf_counter()

    trainer.train(after)
    if cuda:
        torch.cuda.synchronize()
    seconds = time.perf_counter() - begun[0]
    rate, turn = UPDATES * each / seconds, 1e3 * seconds / (UPDATES * rollout)
    what = f"{head}, {environments} environments, rollouts of {rollout}"
    print(f"{what}: {rate:,.0f} steps per second, {turn:.2f} ms a turn", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--heads", nargs="+", choices=HEADS, default=HEADS)
    parser.add_argument("--environments", type=int, default=Atari.presets["best"].environments)
    parser.add_argument("--rollout", type=int, default=Atari.presets["best"].rollout)
    given = parser.parse_args()
    for name in given.heads:
        main(name, given.environments, given.rollout)
