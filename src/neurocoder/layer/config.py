"""The base of all configurations: frozen, validated on construction, with a JSON round trip."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, ClassVar, Self


def whole(value: Any, low: int = 1) -> int | None:
    """The value as an int if it is a whole number >= `low` (numpy's too, but not a bool), else None."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < low:
        return None
    return int(value)


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
        """A JSON-serialisable dictionary; `kind` names the class."""
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
