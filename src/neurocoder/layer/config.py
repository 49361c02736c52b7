"""Configurations of the coded layers: frozen, validated on construction, with a JSON round trip."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, ClassVar, Literal, Self


def whole(value: Any, low: int = 1) -> int | None:
    """The value as an int if it is a whole number >= `low` (numpy's too, but not a bool), else None."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < low:
        return None
    return int(value)


def kind_of(config_type: type[Config]) -> str:
    """What files call a configuration: the class name of one of ours, module and qualified name of a user's."""
    module = config_type.__module__
    is_ours = module.partition(".")[0] == __name__.partition(".")[0]
    return config_type.__name__ if is_ours else f"{module}.{config_type.__qualname__}"


def may_mean(kind: str, config_type: type[Config]) -> bool:
    """Whether a file may mean this class: a user's may have moved to another module, which older files do not name."""
    own = kind_of(config_type)
    return kind == own or ("." in own and kind.rpartition(".")[2] == config_type.__name__)


@dataclass(frozen=True)
class Config:
    """The configuration of a coded layer. `owner` is its name in error messages.

    Example:
        >>> config = nc.HyperConfig(hidden=16)
        >>> config.to_dict()
        {'kind': 'HyperConfig', 'hidden': 16}
        >>> nc.HyperConfig.from_dict(config.to_dict()) == config
        True
    """

    owner: ClassVar[str] = "config"

    def to_dict(self) -> dict[str, Any]:
        """A JSON-serialisable dictionary; `kind` names the class, with its module if it is not one of the library."""
        return {"kind": kind_of(type(self)), **dataclasses.asdict(self)}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        """The inverse of `to_dict`."""
        fields = dict(data)
        kind = fields.pop("kind", cls.__name__)
        if not may_mean(kind, cls):
            raise ValueError(f"{cls.owner}.kind must be {kind_of(cls)!r}, got {kind!r}")
        unknown = sorted(set(fields) - {field.name for field in dataclasses.fields(cls)})
        if unknown:
            raise ValueError(f"{cls.__name__} has no field {', '.join(map(repr, unknown))}")
        return cls(**fields)

    def _keep_whole(self, *names: str, at_most: str | None = None) -> None:
        """Require whole numbers >= 1 and, with `at_most`, no larger than that field; keep them as Python ints."""
        for name in names:
            value = getattr(self, name)
            number, high = whole(value), None if at_most is None else getattr(self, at_most)
            if number is None or (high is not None and number > high):
                bound = "a whole number >= 1" if high is None else f"in 1..{at_most} ({high})"
                raise ValueError(f"{self.owner}.{name} must be {bound}, got {value!r}")
            object.__setattr__(self, name, number)

    def _keep_number(self, name: str, *, positive: bool = False, signed: bool = False) -> None:
        """Require a finite number >= 0 (> 0, or of either sign) and keep it as a Python float."""
        value = getattr(self, name)
        number = float(value) if not isinstance(value, bool) and isinstance(value, Real) else math.nan
        if not math.isfinite(number) or (number < 0 and not signed) or (positive and number == 0):
            bound = "" if signed else " > 0" if positive else " >= 0"
            raise ValueError(f"{self.owner}.{name} must be a finite number{bound}, got {value!r}")
        object.__setattr__(self, name, number)


@dataclass(frozen=True)
class Start(Config):
    """Starting values of a program layer that are a choice; `initialisation` has the reasons for the defaults.

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
    least_used: int = 5
    """l_I: how many of the least-used slots the usage-based attention considers."""
    hidden: int = 32
    """Size of the composition network's LSTM."""
    orthogonality: float = 0.1
    """a: weight of the orthogonal loss L_o."""
    residual: bool | Literal["plain"] = True
    """True: W = P + sigmoid(f(x)) sigma_r R, as in the paper; False: W = P; "plain": W = P + R, our extension."""
    sharpness: float = 1.0
    """beta: factor on the cosine in the content attention; 1 in the paper."""
    start: Start = Start()
    """Starting values."""

    owner: ClassVar[str] = "program"

    def __post_init__(self) -> None:
        if isinstance(self.start, dict):  # as `to_dict` writes it
            object.__setattr__(self, "start", Start.from_dict(self.start))
        if not isinstance(self.start, Start):
            raise ValueError(f"program.start must be a neurocoder.Start, got {self.start!r}")
        self._keep_whole("slots", "key_dim", "steps", "heads", "hidden")
        self._keep_whole("least_used", at_most="slots")
        self._keep_number("orthogonality")
        self._keep_number("sharpness", positive=True)
        if not isinstance(self.residual, bool | str) or self.residual not in (True, False, "plain"):
            raise ValueError(f"program.residual must be True, False or 'plain', got {self.residual!r}")

    @property
    def components(self) -> int:
        """r = J * H, the number of components of the active program."""
        return self.steps * self.heads


@dataclass(frozen=True)
class MixtureConfig(Config):
    """Sparsely gated mixture of experts (Shazeer et al., 2017).

    Example:
        >>> model = nc.recode(nn.Sequential(nn.Linear(8, 4)), "0", nc.MixtureConfig(experts=5))
        >>> type(model[0]).__name__
        'MixtureLinear'
    """

    experts: int = 10
    """Number of experts, each a whole weight matrix."""
    active: int = 2
    """k: experts used per input."""
    balance: float = 0.01
    """Weight of the importance and load losses."""

    owner: ClassVar[str] = "mixture"

    def __post_init__(self) -> None:
        self._keep_whole("experts")
        self._keep_whole("active", at_most="experts")
        self._keep_number("balance")


@dataclass(frozen=True)
class StoredProgramConfig(Config):
    """Neural Stored-program Memory (Le, Tran & Venkatesh, 2020): attention over whole weight matrices.

    Example:
        >>> model = nc.recode(nn.Sequential(nn.Linear(8, 4)), "0", nc.StoredProgramConfig(programs=5))
        >>> type(model[0]).__name__
        'StoredProgramLinear'
    """

    programs: int = 10
    """Number of stored weight matrices."""
    key_dim: int = 5
    """Size of the program keys and queries."""

    owner: ClassVar[str] = "stored_program"

    def __post_init__(self) -> None:
        self._keep_whole("programs", "key_dim")


@dataclass(frozen=True)
class HyperConfig(Config):
    """HyperNetwork (Ha, Dai & Le, 2017): a small network generates scales for the weight.

    Example:
        >>> model = nc.recode(nn.Sequential(nn.Linear(8, 4)), "0", nc.HyperConfig(hidden=16))
        >>> type(model[0]).__name__
        'HyperLinear'
    """

    hidden: int = 32
    """Size of the hidden layer of the network that generates the scales."""

    owner: ClassVar[str] = "hyper"

    def __post_init__(self) -> None:
        self._keep_whole("hidden")
