"""What the backward passes since the last optimiser step saw; a forward changes nothing."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

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
    similarity = torch.where((length > 0) & (length < math.inf), nearest, _NONE)
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


class Note(NamedTuple):
    """What one forward saw: the visits and the least similar inputs that its backward notes."""

    memory: GrowingMemory | None
    """None in compiled code, which cannot see whether gradients were dropped: there, notes end only with a step."""
    kept: tuple[Tensor, Tensor, Tensor]
    """The memory's notes: visits, similarity and keys."""
    slots: Tensor
    """(N, k)"""
    share: Tensor
    """w (N, k)"""
    similarity: Tensor
    """Of the candidates (C,)."""
    keys: Tensor
    """Of the candidates (C, d_z)."""

    def take(self) -> None:
        """Add it to the memory's notes; called in a backward."""
        if self.memory is not None:
            self.memory.notes.begin(self.memory.U)
        visits, similarity, keys = self.kept
        visits.index_add_(0, self.slots.flatten(), self.share.flatten())
        merged = torch.cat([similarity, self.similarity]), torch.cat([keys, self.keys])
        for old, new in zip((similarity, keys), least(*merged, len(similarity)), strict=True):
            old.copy_(new)


def note_of(memory: GrowingMemory, reading: Reading, z: Tensor) -> Note:
    """What the call that read the controls z (N, d_z), N > 0, saw."""
    notes = memory.notes
    with torch.no_grad():
        wide = notes.visits.dtype
        nearest, length = reading.similarity[:, 0].to(wide), reading.length.to(wide)
        found = candidates(z.detach().to(wide), length, nearest, len(notes.similarity))
    owner = None if torch.compiler.is_compiling() else memory
    kept = (notes.visits, notes.similarity, notes.keys)
    return Note(owner, kept, reading.slots, reading.share.to(wide), *found)


class _Noted(torch.autograd.Function):
    """The identity; its backward takes a note, once per forward that is differentiated."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, *note: Any) -> Tensor:
        ctx.note = note
        return y.view_as(y)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        if ctx.note is not None:
            Note(*ctx.note).take()
            ctx.note = None
        return grad, *[None] * len(Note._fields)


def noted(y: Tensor, noting: Callable[[], Note] | None) -> Tensor:
    """y, whose backward takes this note; None: y."""
    result: Any = y if noting is None else _Noted.apply(y, *noting())
    return result
