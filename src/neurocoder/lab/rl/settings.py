"""How agents are trained: the one configuration of trainers, environments and agents."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

HEADS = ("plain", "hyper", "neurocoder")
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
    steps: int = 5_000_000
    """Agent steps of all environments together; an Atari step is 4 frames."""
    environments: int = 256
    """Environments of a2c."""
    groups: int = 1
    """2: a2c halves its environments, and one half's emulators run while the device serves the other half, which
    learns by itself."""
    workers: int = 16
    """Processes of a3c, with one environment each."""
    cores: int | None = None
    """CPU threads for a2c's emulators; None: one for each core."""
    rollout: int = 20
    """Steps between updates, t_max."""
    rate: float = 7e-4
    """Learning rate of RMSProp."""
    decay: bool = True
    """Whether the learning rate falls linearly to zero."""
    alpha: float = 0.99
    """Decay of RMSProp's statistics."""
    epsilon: float = 1e-5
    """Added to the statistics inside the root."""
    correction: bool = False
    """Whether to allow for RMSProp's statistics starting at zero, as Adam does. Without, the first step is ten times
    the rate (alpha 0.99)."""
    reduce: Literal["mean", "sum"] = "mean"
    """Whether a loss is the mean or the sum over the steps of a rollout."""
    clip: float | None = 0.5
    """Largest norm of a gradient; None: no limit."""
    gamma: float = 0.99
    """Discount."""
    entropy: float = 0.01
    """Weight of the policy's entropy."""
    value: float = 0.5
    """Weight of the squared error of the values."""
    body: Literal["small", "large"] = "small"
    """Convolutions: small as in Mnih et al. (2016), 16 and 32 filters; large as the paper's 3.2M parameters suggest."""
    width: int = 512
    """Size of the agent's LSTM."""
    hidden: int = 8
    """Size of the LSTM in the Neurocoder heads; the paper gives it for MNIST only."""
    residual: bool = True
    """Whether the Neurocoder heads have a gated residual."""
    sharpness: float = 1.0
    """Factor on the cosine in the Neurocoder heads' content attention; 1 in the paper."""
    orthogonality: float = 0.1
    """Weight of the Neurocoder heads' orthogonal loss; 0.1 in the paper, 0 leaves it out."""
    stack: int = 4
    """Atari frames in an observation."""
    life_loss: bool = True
    """Whether returns end where a life is lost; the game goes on, and scores are of whole games."""
    sticky: float = 0.0
    """Probability that an Atari action is repeated."""
    clip_rewards: bool = True
    """Whether the learner sees rewards clipped to -1..1; scores are never clipped."""
    reward_scale: float = 1.0
    """Factor on the rewards that the learner sees, before they are clipped."""
    log_every: int = 50_000
    """Agent steps between entries of the learning curve."""
    episodes: int = 30
    """Episodes of the evaluation after training."""
    frames: int = 108_000
    """Longest Atari episode, in frames."""
    keep: str = ""
    """Folder to keep trained agents in, for `neurocoder play`; empty: none."""

    def __post_init__(self) -> None:
        for name in ("steps", "environments", "workers", "rollout", "width", "hidden", "stack", "log_every"):
            _whole(name, getattr(self, name))
        for name in ("episodes", "frames"):
            _whole(name, getattr(self, name))
        if self.cores is not None:
            _whole("cores", self.cores)
        if self.groups not in (1, 2) or self.environments % self.groups:
            raise ValueError(f"groups must be 1 or 2 and divide environments ({self.environments}), got {self.groups}")
        for name in ("rate", "epsilon", "entropy", "value", "orthogonality", "reward_scale"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be a finite number >= 0, got {getattr(self, name)!r}")
        for name in ("alpha", "gamma", "sticky"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} must be in 0..1, got {getattr(self, name)!r}")
        if not 0 < self.sharpness < math.inf:
            raise ValueError(f"sharpness must be a finite number > 0, got {self.sharpness!r}")
        if self.clip is not None and not 0 < self.clip < math.inf:
            raise ValueError(f"clip must be None or a finite number > 0, got {self.clip!r}")
        known = {"trainer": ("a2c", "a3c"), "reduce": ("mean", "sum"), "body": ("small", "large")}
        for name, values in known.items():
            if getattr(self, name) not in values:
                raise ValueError(f"{name} must be {values[0]!r} or {values[1]!r}, got {getattr(self, name)!r}")

    def rate_at(self, steps: int, batch: int) -> float:
        """The learning rate after this many agent steps, `batch` in an update. With `correction`, that of update n has
        a factor `sqrt(1 - alpha^n)`."""
        rate = self.rate * max(0.0, 1 - steps / self.steps) if self.decay else self.rate
        return rate * math.sqrt(1 - self.alpha ** (steps // batch + 1)) if self.correction else rate


def _whole(name: str, value: object) -> None:
    if type(value) is not int or value < 1:
        raise ValueError(f"{name} must be a whole number >= 1, got {value!r}")
