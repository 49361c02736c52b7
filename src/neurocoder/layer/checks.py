"""Checks of arguments that several layers and functions share; each error names the argument."""

from __future__ import annotations

import math
from numbers import Integral, Real
from typing import Any

from torch import Tensor, nn


def require_module(name: str, value: Any) -> None:
    """Require an instance of `nn.Module`."""
    if not isinstance(value, nn.Module):
        raise ValueError(f"{name} must be an nn.Module, got {value!r}")


def require_floating(name: str, value: Any) -> None:
    """Require a floating-point tensor."""
    if not isinstance(value, Tensor) or not value.is_floating_point():
        got = value.dtype if isinstance(value, Tensor) else type(value).__name__
        raise ValueError(f"{name} must be a floating-point tensor, got {got}")


def require_plain(owner: str, plain: Any, *attributes: str) -> None:
    """Require the attributes of the plain layer to replace."""
    if not all(hasattr(plain, name) for name in (*attributes, "weight", "bias")):
        raise ValueError(f"{owner}: plain must have {', '.join(attributes)}, weight and bias, got {plain!r}")


def whole(value: Any, low: int = 1) -> int | None:
    """The value as an int if it is a whole number >= `low` (numpy's too, but not a bool), else None."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < low:
        return None
    return int(value)


def require_whole(name: str, value: Any, low: int = 1) -> int:
    """Require a whole number >= `low`; returns it as an int."""
    number = whole(value, low)
    if number is None:
        raise ValueError(f"{name} must be a whole number >= {low}, got {value!r}")
    return number


def require_number(name: str, value: Any, *, positive: bool = False, signed: bool = False) -> float:
    """Require a finite number >= 0 (> 0, or of either sign); returns it as a float."""
    number = float(value) if not isinstance(value, bool) and isinstance(value, Real) else math.nan
    if not math.isfinite(number) or (number < 0 and not signed) or (positive and number == 0):
        bound = "" if signed else " > 0" if positive else " >= 0"
        raise ValueError(f"{name} must be a finite number{bound}, got {value!r}")
    return number


def require_choice(name: str, value: Any, among: tuple[bool | str, ...] = (True, False)) -> None:
    """Require one of these values; 1 is not True."""
    if not isinstance(value, bool | str) or value not in among:
        *words, last = map(repr, among)
        raise ValueError(f"{name} must be {', '.join(words)} or {last}, got {value!r}")


def require_scalar(name: str, value: Any) -> None:
    """Require what a loss returns: a tensor of shape ()."""
    if not isinstance(value, Tensor) or value.dim():
        got = f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
        raise ValueError(f"{name} must return a tensor of shape (), got {got}")
