"""Checks of a config, read from the annotations of its fields: call `validate(self)` in its `__post_init__`.

A field of type `Count`, `Positive`, `NonNegative`, `Share`, `Annotated[int, Range(2)]` or `Literal["a", "b"]` is
checked, also within `... | None`; other fields are not. The command line shows these types as the int or float that
they are.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, is_dataclass
from numbers import Real
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints


@dataclass(frozen=True)
class Range:
    """From `low` to `high`, both included; without `low` itself if `above`. Infinity is never included."""

    low: float
    high: float = math.inf
    above: bool = False

    def words(self, kind: type) -> str:
        """What a number of this kind must be."""
        if self.high < math.inf:
            return f"in {self.low}..{self.high}"
        number = "a whole number" if kind is int else "a finite number"
        return f"{number} {'>' if self.above else '>='} {self.low}"

    def __contains__(self, value: Any) -> bool:
        return self.low <= value <= self.high and value < math.inf and not (self.above and value == self.low)


Count = Annotated[int, Range(1)]
Positive = Annotated[float, Range(0, above=True)]
NonNegative = Annotated[float, Range(0)]
Share = Annotated[float, Range(0, 1)]


def check(name: str, value: Any, annotation: Any) -> Any:
    """The value; raises `ValueError` unless it is as annotated.

    Example:
        >>> check("epochs", 0, Count)
        Traceback (most recent call last):
        ValueError: epochs must be a whole number >= 1, got 0
    """
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin in (Union, UnionType):
        rest = [kind for kind in arguments if kind is not type(None)]
        if len(rest) == 1 and not (value is None and len(arguments) == 2):
            check(name, value, rest[0])
    elif origin is Literal and value not in arguments:
        raise ValueError(f"{name} must be {' or '.join(map(repr, arguments))}, got {value!r}")
    elif origin is Annotated:
        kind, *marks = arguments
        numbers = int if kind is int else Real
        for limits in (mark for mark in marks if isinstance(mark, Range)):
            if isinstance(value, bool) or not isinstance(value, numbers) or value not in limits:
                raise ValueError(f"{name} must be {limits.words(kind)}, got {value!r}")
    return value


def validate(config: Any, *, options: bool = False) -> None:
    """Check each field of a dataclass, and of dataclasses in it. `options`: messages name `--the-option` of a field."""
    annotations = get_type_hints(type(config), include_extras=True)
    for field in fields(config):
        value = getattr(config, field.name)
        if is_dataclass(value):
            validate(value, options=options)
        else:
            name = f"--{field.name.replace('_', '-')}" if options else field.name
            check(name, value, annotations[field.name])
