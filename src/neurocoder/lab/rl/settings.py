"""How agents are trained: the one configuration of trainers, environments and agents."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from ..validate import Count, NonNegative, Positive, Share, validate

HEADS = ("plain", "hyper", "neurocoder", "constant", "scaled")
"""Kinds of heads: linear, the paper's three; Neurocoder with one program for all observations; linear, with the values
multiplied by a fixed `output_scale`. The last two are controls."""
GAMES = {
    "seaquest": "ALE/Seaquest-v5",
    "mspacman": "ALE/MsPacman-v5",
    "frostbite": "ALE/Frostbite-v5",
    "montezuma": "ALE/MontezumaRevenge-v5",
}
"""The paper's games: ids by short name."""


@dataclass(frozen=True)
class Settings:
    """How to train agents.

    Example:
        >>> settings = rl.Settings(steps=1000, rate=1e-3)
        >>> settings.rate_at(500, batch=20)  # it falls to zero
        0.0005
    """

    trainer: Literal["a2c", "a3c"] = "a2c"
    """a2c: batched, one learner; a3c: asynchronous CPU workers, as published."""
    environment: str | None = None
    """Any gymnasium id with a flat or an Atari observation; None: the paper's games."""
    steps: Count = 5_000_000
    """Agent steps of all environments together; an Atari step is 4 frames."""
    environments: Count = 256
    """Environments of a2c."""
    groups: int = 1
    """2: a2c halves its environments, and one half's emulators run while the device serves the other half, which
    learns by itself."""
    workers: Count = 16
    """Processes of a3c, with one environment each."""
    cores: Count | None = None
    """CPU threads for a2c's emulators; None: one for each core."""
    rollout: Count = 20
    """Steps between updates, t_max."""
    rate: NonNegative = 7e-4
    """Learning rate of RMSProp."""
    decay: bool = True
    """Whether the learning rate falls linearly to zero."""
    alpha: Share = 0.99
    """Decay of RMSProp's statistics."""
    epsilon: NonNegative = 1e-5
    """Added to the statistics inside the root."""
    correction: bool = False
    """Whether to allow for RMSProp's statistics starting at zero, as Adam does. Without, the first step is ten times
    the rate (alpha 0.99)."""
    reduce: Literal["mean", "sum"] = "mean"
    """Whether a loss is the mean or the sum over the steps of a rollout."""
    clip: float | None = 0.5
    """Largest norm of a gradient; None: no limit."""
    gamma: Share = 0.99
    """Discount."""
    entropy: NonNegative = 0.01
    """Weight of the policy's entropy."""
    value: NonNegative = 0.5
    """Weight of the squared error of the values."""
    body: Literal["small", "large"] = "small"
    """Convolutions: small as in Mnih et al. (2016), 16 and 32 filters; large as the paper's 3.2M parameters suggest."""
    width: Count = 512
    """Size of the agent's LSTM."""
    hidden: Count = 8
    """Size of the LSTM in the Neurocoder heads; the paper gives it for MNIST only."""
    residual: bool = True
    """Whether the Neurocoder heads have a gated residual."""
    sharpness: Positive = 1.0
    """Factor on the cosine in the Neurocoder heads' content attention; 1 in the paper."""
    orthogonality: NonNegative = 0.1
    """Weight of the Neurocoder heads' orthogonal loss; 0.1 in the paper, 0 leaves it out."""
    output_scale: Positive = 100.0
    """Factor on the values of `scaled` heads, for rewards that are not clipped."""
    stack: Count = 4
    """Atari frames in an observation."""
    life_loss: bool = True
    """Whether returns end where a life is lost; the game goes on, and scores are of whole games."""
    sticky: Share = 0.0
    """Probability that an Atari action is repeated."""
    clip_rewards: bool = True
    """Whether the learner sees rewards clipped to -1..1; scores are never clipped."""
    reward_scale: NonNegative = 1.0
    """Factor on the rewards that the learner sees, before they are clipped."""
    log_every: Count = 50_000
    """Agent steps between entries of the learning curve."""
    episodes: Count = 30
    """Episodes of the evaluation after training."""
    frames: Count = 108_000
    """Longest Atari episode, in frames."""
    save_agents: str = ""
    """Folder to save trained agents in, for `neurocoder play`; empty: none."""

    def __post_init__(self) -> None:
        validate(self)
        if self.groups not in (1, 2) or self.environments % self.groups:
            raise ValueError(f"groups must be 1 or 2 and divide environments ({self.environments}), got {self.groups}")
        if self.clip is not None and not 0 < self.clip < math.inf:
            raise ValueError(f"clip must be None or a finite number > 0, got {self.clip!r}")

    def rate_at(self, steps: int, batch: int) -> float:
        """The learning rate after this many agent steps, `batch` in an update. With `correction`, that of update n has
        a factor `sqrt(1 - alpha^n)`."""
        rate = self.rate * max(0.0, 1 - steps / self.steps) if self.decay else self.rate
        return rate * math.sqrt(1 - self.alpha ** (steps // batch + 1)) if self.correction else rate
