"""The base of all configurations: frozen, validated on construction, with a JSON round trip."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from .checks import require_choice, require_number, whole


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

    def _keep_choice(self, *names: str, among: tuple[bool | str, ...] = (True, False)) -> None:
        """Require one of these values."""
        for name in names:
            require_choice(f"{self.owner}.{name}", getattr(self, name), among)

    def _keep_number(self, name: str, **bounds: bool) -> None:
        """Require a finite number within the bounds of `require_number` and keep it as a Python float."""
        object.__setattr__(self, name, require_number(f"{self.owner}.{name}", getattr(self, name), **bounds))
