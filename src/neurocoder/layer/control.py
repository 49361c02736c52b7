"""Steering the layers of a model by another tensor: `control`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor, nn

from ..surgery.targets import require_module
from . import ambient
from .base import coded_layers


@contextmanager
def control(model: nn.Module, z: Tensor) -> Iterator[None]:
    """Steer the layers that were built with `control_dim` by `z (..., control_dim)`.

    The control applies in the thread or asyncio task that runs the block. Compiled code cannot tell threads apart: it
    takes the control of whichever thread has a block open, and raises an error if several have. With activation
    checkpointing, which reruns the forward, the backward must run inside the block too.

    Example:
        >>> layer = nc.Linear(8, 4, control_dim=3)
        >>> with nc.control(layer, torch.randn(32, 3)):  # one program for each z, not for each x
        ...     y = layer(torch.randn(32, 8))
        >>> y.shape
        torch.Size([32, 4])
    """
    require_module("model", model)
    if not isinstance(z, Tensor) or not z.is_floating_point():
        raise ValueError(f"control must be a floating-point tensor, got {z.dtype if isinstance(z, Tensor) else z!r}")
    layers = [layer for layer in coded_layers(model).values() if layer.control_dim is not None]
    if not layers:
        raise ValueError(
            "model must have a layer that was built with control_dim, found none: use nc.recode(..., control_dim=...)"
        )
    for layer in layers:
        if z.dim() == 0 or z.shape[-1] != layer.control_dim:
            raise ValueError(f"control must have shape (..., {layer.control_dim}), got {tuple(z.shape)}")
    entered = ambient.enter(layers, z)
    try:
        yield
    finally:
        ambient.leave(entered)
