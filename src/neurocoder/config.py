"""Configurations of the coded layers: frozen, validated on construction, with a JSON round trip."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self


def _whole(owner: str, name: str, value: Any, low: int = 1, high: tuple[str, int] | None = None) -> None:
    """Require a whole number of at least `low`, and at most `high`, given as (field name, its value)."""
    bound = f"in {low}..{high[0]} ({high[1]})" if high else f"a whole number >= {low}"
    whole = isinstance(value, int) and not isinstance(value, bool)
    if not whole or value < low or (high is not None and value > high[1]):
        raise ValueError(f"{owner}.{name} must be {bound}, got {value!r}")


def _number(owner: str, name: str, value: Any, *, positive: bool = False) -> None:
    """Require a finite real number that is >= 0 (or > 0)."""
    real = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not real or value < 0 or (positive and value == 0):
        raise ValueError(f"{owner}.{name} must be a finite number {'> 0' if positive else '>= 0'}, got {value!r}")


@dataclass(frozen=True)
class Config:
    """What a coded layer is made from. `owner` is the word that error messages use for it."""

    owner: ClassVar[str] = "config"

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready dictionary; `kind` names the class."""
        return {"kind": type(self).__name__, **dataclasses.asdict(self)}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        """The inverse of `to_dict`."""
        fields = dict(data)
        kind = fields.pop("kind", cls.__name__)
        if kind != cls.__name__:
            raise ValueError(f"{cls.owner}.kind must be {cls.__name__!r}, got {kind!r}")
        unknown = sorted(set(fields) - {field.name for field in dataclasses.fields(cls)})
        if unknown:
            raise ValueError(f"{cls.__name__} has no field {', '.join(map(repr, unknown))}")
        return cls(**fields)


@dataclass(frozen=True)
class ProgramConfig(Config):
    """A layer that composes its weight from singular programs (Le & Venkatesh, 2022)."""

    slots: int = 30
    """P: slots in each of the memories M_U, M_V and M_S."""
    key_dim: int = 5
    """K: size of the program keys and queries."""
    steps: int = 5
    """J: recurrent attention steps."""
    heads: int = 3
    """H: attention heads, hence components retrieved at each step; J * H components in all."""
    least_used: int = 5
    """l_I: how many of the least-used slots the usage-based attention considers."""
    hidden: int = 32
    """Size of the composition network's LSTM."""
    orthogonality: float = 0.1
    """a: weight of the orthogonal loss L_o."""
    residual: bool | Literal["plain"] = True
    """True: W = P + sigmoid(f(x)) sigma_r R, as in the paper; False: W = P; "plain": W = P + R, our extension."""
    sharpness: float = 1.0
    """beta: factor on the cosine inside the content attention; 1 is the paper."""

    owner: ClassVar[str] = "program"

    def __post_init__(self) -> None:
        for name in ("slots", "key_dim", "steps", "heads", "hidden"):
            _whole(self.owner, name, getattr(self, name))
        _whole(self.owner, "least_used", self.least_used, high=("slots", self.slots))
        _number(self.owner, "orthogonality", self.orthogonality)
        _number(self.owner, "sharpness", self.sharpness, positive=True)
        if not (self.residual is True or self.residual is False or self.residual == "plain"):
            raise ValueError(f"program.residual must be True, False or 'plain', got {self.residual!r}")

    @property
    def components(self) -> int:
        """r = J * H, the number of components of the active program."""
        return self.steps * self.heads


@dataclass(frozen=True)
class MixtureConfig(Config):
    """Sparsely gated mixture of experts (Shazeer et al., 2017)."""

    experts: int = 10
    """Number of experts, each a whole weight matrix."""
    active: int = 2
    """k: experts that answer for one input."""
    balance: float = 0.01
    """Weight of the importance and load losses."""

    owner: ClassVar[str] = "mixture"

    def __post_init__(self) -> None:
        _whole(self.owner, "experts", self.experts)
        _whole(self.owner, "active", self.active, high=("experts", self.experts))
        _number(self.owner, "balance", self.balance)


@dataclass(frozen=True)
class StoredProgramConfig(Config):
    """Neural Stored-program Memory (Le, Tran & Venkatesh, 2020): attention over whole weight matrices."""

    programs: int = 10
    """Number of stored weight matrices."""
    key_dim: int = 5
    """Size of the program keys and queries."""

    owner: ClassVar[str] = "stored_program"

    def __post_init__(self) -> None:
        _whole(self.owner, "programs", self.programs)
        _whole(self.owner, "key_dim", self.key_dim)


@dataclass(frozen=True)
class HyperConfig(Config):
    """HyperNetwork (Ha, Dai & Le, 2017): a small network generates scales of the weight."""

    hidden: int = 32
    """Size of the hidden layer of the network that generates the scales."""

    owner: ClassVar[str] = "hyper"

    def __post_init__(self) -> None:
        _whole(self.owner, "hidden", self.hidden)
