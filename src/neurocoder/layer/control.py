"""Steering layers by another tensor: `control`, which applies only in the thread or task that runs the block.

Two readers cannot see that context. Compiled code cannot read context variables, and a GPU's backward, in which
activation checkpointing reruns a forward, has its own thread. For them, each layer mirrors the control of the innermost
block. If several threads or tasks have open blocks, that control is ambiguous, which is an error.
"""

from __future__ import annotations

import itertools
import threading
import warnings
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from ..ops.torch_private import current_backward
from .checks import require_floating, require_module


class Block:
    """One layer inside one `with` block."""

    def __init__(self, value: Tensor, outer: Block | None) -> None:
        self.value, self.outer, self.is_open = value, outer, True


AMBIGUOUS: Any = object()
"""Mirrored when several threads or tasks have open blocks."""

_lock = threading.Lock()


class Ambient:
    """A tensor that layers read inside a `with` block: a control, say."""

    def __init__(self, attribute: str, use: str, remedy: str) -> None:
        """
        Args:
            attribute: of a layer; it mirrors the value of the innermost block.
            use: what several threads must not do at once, for the error.
            remedy: what to do instead.
        """
        self.attribute, self.use, self.remedy = attribute, use, remedy
        self._blocks: ContextVar[Mapping[Any, Block]] = ContextVar(attribute, default={})  # noqa: B039 - never changed
        self._open: WeakKeyDictionary[Any, list[Block]] = WeakKeyDictionary()

    def _mirror(self, layer: Any) -> None:
        """Set the mirror, bypassing `nn.Module`, which would make a learned control a parameter of the layer."""
        blocks = self._open[layer]
        nested = all(inner.outer is outer for outer, inner in itertools.pairwise(blocks))
        innermost = blocks[-1].value if blocks else None
        object.__setattr__(layer, self.attribute, innermost if nested else AMBIGUOUS)

    def current(self, layer: Any) -> Tensor | None:
        """The value that applies to this layer in the current context."""
        if not torch.compiler.is_compiling():
            block = self._blocks.get().get(layer)
            while block is not None and not block.is_open:  # it ended in another context, or before one inside it
                block = block.outer
            if block is not None:
                return block.value
            if current_backward() < 0:
                return None
        mirrored = getattr(layer, self.attribute)
        if mirrored is AMBIGUOUS:
            raise ValueError(
                f"several threads or tasks {self.use} at once, which compiled code and activation checkpointing on a "
                f"GPU cannot tell apart: {self.remedy}"
            )
        return mirrored

    @contextmanager
    def block(self, layers: list[Any], value: Tensor) -> Iterator[None]:
        """Let these layers read this value."""
        if torch.compiler.is_compiling():  # a block inside compiled code: it has the mirrors alone
            before = [getattr(layer, self.attribute) for layer in layers]
            for layer in layers:
                object.__setattr__(layer, self.attribute, value)
            try:
                yield
            finally:
                for layer, earlier in zip(layers, before, strict=True):
                    object.__setattr__(layer, self.attribute, earlier)
            return
        outer = self._blocks.get()
        blocks = {layer: Block(value, outer.get(layer)) for layer in layers}
        for layer, block in blocks.items():
            with _lock:
                self._open.setdefault(layer, []).append(block)
                self._mirror(layer)
        here = {**outer, **blocks}
        self._blocks.set(here)
        try:
            yield
        finally:
            is_innermost = self._blocks.get() is here
            if is_innermost:
                self._blocks.set(outer)
            for block in blocks.values():
                block.is_open = False
            for layer, block in blocks.items():
                with _lock:
                    self._open[layer].remove(block)
                    self._mirror(layer)
            if not is_innermost:
                warnings.warn(
                    f"blocks that {self.use} overlapped, as those of generators that yield inside of one do: each "
                    f"also applied to what ran meanwhile; {self.remedy}",
                    stacklevel=4,
                )


NAME = "ambient_control"
"""The attribute of a layer that mirrors its control."""
_control = Ambient(NAME, "steer this layer by nc.control", "pass the control as an argument, layer(x, control=z)")
current_control = _control.current


@contextmanager
def control(model: nn.Module, z: Tensor) -> Iterator[None]:
    """Steer the layers that were built with `control_dim` by `z (..., control_dim)`.

    The control applies in the thread or asyncio task that runs the block: do not yield inside of one in a generator,
    whose caller would be steered too. Compiled code cannot tell threads apart: it takes the control of whichever thread
    has a block open, and raises an error if several have. With activation checkpointing, which reruns the forward, the
    backward must run inside the block too, and a backward serves one control: that of the innermost block then.

    Example:
        >>> layer = nc.Linear(8, 4, control_dim=3)
        >>> with nc.control(layer, torch.randn(32, 3)):  # one program for each z, not for each x
        ...     y = layer(torch.randn(32, 8))
        >>> y.shape
        torch.Size([32, 4])
    """
    require_module("model", model)
    require_floating("control", z)
    layers = steered_layers(model)
    for layer in layers:
        if z.dim() == 0 or z.shape[-1] != layer.control_dim:
            raise ValueError(f"control must have shape (..., {layer.control_dim}), got {tuple(z.shape)}")
    with steering(layers, z):
        yield


def steering(layers: list[Any], z: Tensor) -> AbstractContextManager[None]:
    """The same for some layers, whose width z has."""
    return _control.block(layers, z)


def steered_layers(model: nn.Module) -> list[Any]:
    """The layers that were built with `control_dim`; at least one."""
    layers: list[Any] = [one for one in model.modules() if hasattr(one, NAME) and one.control_dim is not None]
    if not layers:
        raise ValueError(
            "model must have a layer that was built with control_dim, found none: use nc.recode(..., control_dim=...); "
            "after nc.restore call the plain model itself"
        )
    return layers
