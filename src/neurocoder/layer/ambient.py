"""The control that `nc.control` sets for some layers; it applies only in the thread or task that runs the block.

Two readers cannot see that context. Compiled code cannot read context variables, and a GPU's backward, in which
activation checkpointing reruns a forward, has its own thread. For them, each layer mirrors the control of the innermost
block. If several threads or tasks have open blocks, that control is ambiguous, which is an error.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

NAME = "ambient_control"
"""The attribute of a layer that mirrors its control."""


class Block:
    """One layer inside one `with nc.control(...)` block."""

    def __init__(self, control: Tensor, outer: Block | None) -> None:
        self.control, self.outer = control, outer


class Several:
    """Mirrored when several threads or tasks have open blocks."""


SEVERAL = Several()

_blocks: ContextVar[Mapping[Any, Block]] = ContextVar("neurocoder_controls", default={})  # noqa: B039 - never changed
_open: WeakKeyDictionary[Any, list[Block]] = WeakKeyDictionary()
_lock = threading.Lock()


def enter(layers: list[Any], control: Tensor) -> Any:
    """Set the control of these layers; returns what `leave` takes."""
    before = _blocks.get()
    entered = {layer: Block(control, before.get(layer)) for layer in layers}
    for layer, block in entered.items():
        with _lock:
            _open.setdefault(layer, []).append(block)
            _mirror(layer)
    return _blocks.set({**before, **entered}), entered


def leave(entered: Any) -> None:
    """Undo `enter`."""
    token, blocks = entered
    _blocks.reset(token)
    for layer, block in blocks.items():
        with _lock:
            _open[layer].remove(block)
            _mirror(layer)


def _mirror(layer: Any) -> None:
    """Set the mirror, bypassing `nn.Module`, which would make a learned control a parameter of the layer."""
    blocks = _open[layer]
    nested = all(inner.outer is outer for outer, inner in itertools.pairwise(blocks))
    innermost = blocks[-1].control if blocks else None
    object.__setattr__(layer, NAME, innermost if nested else SEVERAL)


def current(layer: Any) -> Tensor | None:
    """The control that applies to this layer in the current context."""
    if not torch.compiler.is_compiling():
        block = _blocks.get().get(layer)
        if block is not None:
            return block.control
        if torch._C._current_graph_task_id() < 0:  # not in a backward
            return None
    mirrored = getattr(layer, NAME)
    if mirrored is SEVERAL:
        raise ValueError(
            "several threads or tasks steer this layer by nc.control at once, which compiled code and activation "
            "checkpointing on a GPU cannot tell apart: pass the control as an argument, layer(x, control=z)"
        )
    return mirrored
