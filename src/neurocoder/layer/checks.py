"""Checks of arguments that several layers and functions share; each error names the argument."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from .config import whole


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


def require_size(owner: str, name: str, value: Any) -> int:
    """Require a layer size to be a whole number of at least one; returns it as an int."""
    size = whole(value)
    if size is None:
        raise ValueError(f"{owner}: {name} must be a whole number >= 1, got {value!r}")
    return size


def require_scalar(name: str, value: Any) -> None:
    """Require what a loss returns: a tensor of shape ()."""
    if not isinstance(value, Tensor) or value.dim():
        got = f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
        raise ValueError(f"{name} must return a tensor of shape (), got {got}")
