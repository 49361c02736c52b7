"""Batched A2C: one learner, many environments, all tensors on its device."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..train.capture import Captured
from .agent import Agent
from .environments import Episode, make_for
from .flat import Flat, rmsprop
from .rollout import Autocast, Rollout, compute_gradients
from .settings import Settings

STATISTICS = ("loss", "entropy", "value_error", "gradient_norm")


def part_seed(seed: int, part: int, place: int) -> int:
    """Of environments: for each seed of a run, each part of it between interruptions, and each group or worker."""
    return (seed * 1_000_003 + part * 10_007 + place * 100_003) % 2**31


class Trainer:
    """What both trainers have: an agent, its parameters as one vector, and what happened since the last call."""

    steps: int
    """Taken so far."""
    squares: Tensor
    """RMSProp's statistics (n,)."""

    def __init__(self, agent: Agent, name: str, settings: Settings, seed: int) -> None:
        self.agent, self.name, self.settings, self.seed = agent, name, settings, seed
        self.part = 0
        """How often training was resumed."""
        self.flat = Flat(agent)
        self._episodes: list[Episode] = []
        self._totals, self._updates = self.flat.values.new_zeros(len(STATISTICS)), 0
        """Sums of the statistics (4,) over so many updates."""

    def episodes(self) -> list[Episode]:
        """Finished since the last call."""
        ended, self._episodes = self._episodes, []
        return ended

    def statistics(self) -> dict[str, float]:
        """Means over the updates since the last call; waits for the device."""
        means = (self._totals / max(1, self._updates)).tolist()
        self._totals.zero_()
        self._updates = 0
        return dict(zip(STATISTICS, means, strict=True))

    def state_dict(self) -> dict[str, Any]:
        """What a resumed training starts from; its environments start new episodes, with other seeds."""
        state = {"agent": self.agent.state_dict(), "squares": self.squares, "steps": self.steps}
        return {**state, "part": self.part, "totals": self._totals, "updates": self._updates}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume."""
        self.agent.load_state_dict(state["agent"])  # in place, so in the vector too
        self.squares.copy_(state["squares"])
        self.steps, self.part = state["steps"], state["part"] + 1
        self._totals.copy_(state["totals"])
        self._updates = state["updates"]


class A2C(Trainer):
    """Trains an agent, which is already on its device.

    Steps are counted over all environments, those that only start an episode among them. With two groups, the device
    serves one while the emulators of the other run; each learns from its own rollouts.

    Args:
        name: id of the environment.
        capture: whether act and learn steps are CUDA graphs.

    Example:
        >>> trainer = rl.A2C(rl.make_agent((4,), 2, "plain", settings), "CartPole-v1", settings, seed=0)
        >>> trainer.train(after=lambda trainer: None)
        >>> trainer.steps
        10
        >>> trainer.close()
    """

    def __init__(
        self,
        agent: Agent,
        name: str,
        settings: Settings,
        seed: int,
        *,
        capture: bool = False,
        autocast: Autocast = nullcontext,
    ) -> None:
        super().__init__(agent, name, settings, seed)
        self.steps, self.squares = 0, torch.zeros_like(self.flat.values)
        self._rate = self.flat.values.new_zeros(())
        count = settings.environments // settings.groups
        made = (make_for(settings, name, count, settings.cores, settings.life_loss) for _ in range(settings.groups))
        self.rollouts = [Rollout(agent, batch, settings, capture=capture, autocast=autocast) for batch in made]
        device = self.flat.values.device
        self._captured = [Captured(device, capture) for _ in self.rollouts]

    def train(self, after: Callable[[A2C], None]) -> None:
        """Train to the end; `after` is called after each update, and may raise to stop."""
        for place, rollout in enumerate(self.rollouts):
            rollout.begin(part_seed(self.seed, self.part, place))
        while self.steps < self.settings.steps:
            for rollout, captured in zip(self.rollouts, self._captured, strict=True):
                if rollout.receive():
                    batch = rollout.count * rollout.length
                    self._rate.fill_(self.settings.rate_at(self.steps, batch))
                    captured(partial(self._update, rollout))
                    self._updates += 1
                    self.steps += batch
                    self._episodes += rollout.environments.finished()
                    after(self)
                rollout.act()

    def _update(self, rollout: Rollout) -> None:
        """The learn step; all on the device."""
        settings = self.settings
        terms = compute_gradients(rollout, self.flat.gradient)
        norm = self.flat.clip(settings.clip)
        rmsprop(self.flat.values, self.squares, self.flat.gradient, self._rate, settings.alpha, settings.epsilon)
        self._totals.add_(torch.stack((*terms, norm)))
        rollout.start_next()

    def close(self) -> None:
        """Free the environments."""
        for rollout in self.rollouts:
            rollout.close()
