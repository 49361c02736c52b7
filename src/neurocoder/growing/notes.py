"""What the backward passes since the last optimiser step saw; a forward changes nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from .memory import GrowingMemory, Reading

_NONE = 2.0
"""Similarity of no candidate: above every cosine, so never new."""


class Notes:
    """Visits (P,), and the C least similar inputs with their similarity (C,) and keys (C, d_z), least first.

    They live and die with the gradients of U: if these are dropped, as after a skipped step, the notes are too. They
    are not buffers, since DDP overwrites buffers with the first process's.
    """

    def __init__(self, memory: GrowingMemory) -> None:
        count, wide = memory.config.writes, memory.visits
        self.visits = torch.zeros_like(wide)
        self.similarity = torch.full((count,), _NONE, device=wide.device, dtype=wide.dtype)
        self.keys = torch.zeros(count, memory.keys.shape[1], device=wide.device, dtype=wide.dtype)
        self._task = -1

    def clear(self) -> None:
        """Forget everything."""
        self.visits.zero_()
        self.similarity.fill_(_NONE)

    def begin(self, parameter: Tensor) -> None:
        """Called in a backward: forget what belongs to gradients that are gone."""
        task = torch._C._current_graph_task_id()
        if parameter.grad is None and task != self._task:
            self.clear()
        self._task = task


def candidates(z: Tensor, length: Tensor, nearest: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The `count` least similar of N inputs, the first of equal ones: similarity (C,) and unit keys (C, d_z).

    A control that is zero or not finite is never a candidate.

    Args:
        z: (N, d_z).
        length: ||z|| (N,).
        nearest: cosine to the nearest key (N,).
        count: C, or fewer if N is smaller.
    """
    similarity = nearest.masked_fill(~((length > 0) & length.isfinite()), _NONE)
    order = _least(similarity, count)
    chosen = z[order] / length[order].clamp(min=torch.finfo(length.dtype).tiny).unsqueeze(-1)
    return similarity[order], chosen.nan_to_num(0.0, 0.0, 0.0)


def least(similarity: Tensor, keys: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The `count` least similar candidates, the first of equal ones."""
    order = _least(similarity, count)
    return similarity[order], keys[order]


def _least(values: Tensor, count: int) -> Tensor:
    """Where the least values are, the first of equal ones (C,); one alone needs no sort."""
    return values.argmin(dim=0, keepdim=True) if count == 1 else values.sort(stable=True).indices[:count]


class _Note(torch.autograd.Function):
    """The identity; its backward takes notes, once per forward that is differentiated."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, memory: GrowingMemory | None, notes: tuple[Tensor, ...], *seen: Tensor) -> Tensor:
        ctx.memory, ctx.notes, ctx.seen = memory, notes, seen
        return y.view_as(y)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        if ctx.seen is not None:
            if ctx.memory is not None:
                ctx.memory.notes.begin(ctx.memory.U)
            visits, similarity, keys = ctx.notes
            slots, share, new_similarity, new_keys = ctx.seen
            visits.index_add_(0, slots.flatten(), share.flatten())
            merged = torch.cat([similarity, new_similarity]), torch.cat([keys, new_keys])
            for old, new in zip((similarity, keys), least(*merged, len(similarity)), strict=True):
                old.copy_(new)
            ctx.seen = None
        return grad, *[None] * 6


def noted(y: Tensor, memory: GrowingMemory, reading: Reading, z: Tensor) -> Tensor:
    """y, whose backward notes the visits and the least similar inputs of this call.

    Compiled code cannot see whether gradients were dropped: there, notes end only with a step.
    """
    if len(z) == 0:
        return y
    notes = memory.notes
    with torch.no_grad():
        wide = notes.visits.dtype
        nearest, length = reading.similarity[:, 0].to(wide), reading.length.to(wide)
        found = candidates(z.detach().to(wide), length, nearest, len(notes.similarity))
    owner = None if torch.compiler.is_compiling() else memory
    kept = (notes.visits, notes.similarity, notes.keys)
    result: Any = _Note.apply(y, owner, kept, reading.slots, reading.share.to(wide), *found)
    return result
