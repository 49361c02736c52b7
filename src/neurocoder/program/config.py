"""The configuration of program layers, and of their starting values."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import ClassVar, Literal

from ..layer.config import Config


@dataclass(frozen=True)
class Start(Config):
    """Starting values of a program layer that are a choice; `program.start` has the reasons for the defaults.

    Example:
        >>> config = nc.ProgramConfig(start=nc.Start(gate_bias=2.0))  # content attention weighs more at first
        >>> config.start.changes()
        {'gate_bias': 2.0}
    """

    gate_bias: float = -1.0
    """Bias of the gates g before the sigmoid: how much content attention weighs against least-used attention."""
    residual_gate_bias: float = 2.0
    """Bias of the integration network before the sigmoid."""
    spread: float = 0.1
    """Standard deviation of M_S relative to its mean."""
    variance: float = 1 / 3
    """Output variance without a residual, for inputs of unit variance; 1/3 is `nn.Linear`'s."""
    input_scale: float = 1.0
    """Factor on the composition network's input weight."""
    signal_scale: float = 1.0
    """Factor on the weight from its state to queries and gates; with a residual that weight starts at zero."""

    owner: ClassVar[str] = "program.start"

    def __post_init__(self) -> None:
        self._keep_number("gate_bias", signed=True)
        self._keep_number("residual_gate_bias", signed=True)
        self._keep_number("spread")
        for name in ("variance", "input_scale", "signal_scale"):
            self._keep_number(name, positive=True)

    def changes(self) -> dict[str, float]:
        """The fields that differ from their defaults."""
        return {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if getattr(self, f.name) != f.default}


@dataclass(frozen=True)
class ProgramConfig(Config):
    """A layer that composes its weight from singular programs (Le & Venkatesh, 2022).

    Example:
        >>> config = nc.ProgramConfig(slots=10, steps=1, heads=4, least_used=2)
        >>> config.components
        4
        >>> nc.Linear(8, 4, program=config)(torch.randn(32, 8)).shape
        torch.Size([32, 4])
    """

    slots: int = 30
    """P: slots in each of the memories M_U, M_V and M_S."""
    key_dim: int = 5
    """K: size of the program keys and queries."""
    steps: int = 5
    """J: recurrent attention steps."""
    heads: int = 3
    """H: attention heads, each of which retrieves one component per step; J * H components in all."""
    least_used: int = None  # type: ignore[assignment]  # a number from __post_init__ on
    """l_I: how many of the least-used slots the usage-based attention considers; None: 5, or all if there are fewer."""
    hidden: int = 32
    """Size of the composition network's LSTM."""
    orthogonality: float = 0.1
    """a: weight of the orthogonal loss L_o. Its gradient has norm 2a for each of M_U and M_V, however close to
    orthonormal they are: where the task's is smaller, as over a frozen base, a smaller a lets the slots learn."""
    residual: bool | Literal["plain"] = True
    """True: W = P + sigmoid(f(x)) sigma_r R, as in the paper; False: W = P; "plain": W = P + R, our extension."""
    sharpness: float = 1.0
    """beta: factor on the cosine in the content attention; 1 in the paper."""
    normalise: bool = False
    """The controller reads z over its root mean square, so that inputs of any scale steer alike; not in the paper."""
    start: Start = Start()
    """Starting values."""

    owner: ClassVar[str] = "program"

    def __post_init__(self) -> None:
        if isinstance(self.start, dict):  # as `to_dict` writes it
            object.__setattr__(self, "start", Start.from_dict(self.start))
        if not isinstance(self.start, Start):
            raise ValueError(f"program.start must be a neurocoder.Start, got {self.start!r}")
        self._keep_whole("slots", "key_dim", "steps", "heads", "hidden")
        if vars(self)["least_used"] is None:
            object.__setattr__(self, "least_used", min(5, self.slots))
        self._keep_whole("least_used", at_most="slots")
        self._keep_number("orthogonality")
        self._keep_number("sharpness", positive=True)
        self._keep_choice("residual", among=(True, False, "plain"))
        self._keep_choice("normalise")

    @property
    def components(self) -> int:
        """r = J * H, the number of components of the active program."""
        return self.steps * self.heads
