"""What the backward passes since the last optimiser step saw; a forward changes nothing."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..ops.torch_private import at_end_of_backward, current_backward

_NONE = 2.0
"""Similarity of no candidate: above every cosine, so never new."""


class Notes:
    """Visits (P,), and the C least similar inputs with their similarity (C,) and keys (C, d_z), least first.

    They live and die with the gradients of U and V, which a later backward looks at before it notes. Without gradients,
    as after `zero_grad()`, it forgets. So it does if the gradients have changed since the backward before, and are all
    zero: `zero_grad(set_to_none=False)`, `zero_` or `_foreach_zero_`. Clipped or scaled gradients still count. In a
    CUDA graph their values are looked at in each replay. Code compiled by `torch.compile` does not look: there, notes
    end only with a step.

    They are not buffers, since DDP overwrites buffers with the first process's.
    """

    def __init__(self, visits: Tensor, width: int, count: int) -> None:
        """Empty notes for a memory with such visits, keys of this width (d_z), and so many candidates (C)."""
        self.visits = torch.zeros_like(visits)
        self.similarity = visits.new_full((count,), _NONE)
        self.keys = visits.new_zeros(count, width)
        self.is_masked = False
        """Whether the last forward, other than one that a backward reruns, was inside a block of `mask`."""
        self._backward = -1
        self._gradients: list[tuple[int, int]] | None = None
        """Those that the notes belong to, as the last backward left them; empty while it runs; None: no notes."""

    def clear(self) -> None:
        """Forget everything."""
        self.visits.zero_()
        self.similarity.fill_(_NONE)
        self._gradients = None

    def begin(self, banks: tuple[Tensor, ...]) -> None:
        """Called in a backward, before it changes the gradients of these: forget what belongs to gradients that are
        gone."""
        number = current_backward()
        if number == self._backward:
            return
        gradients = [bank.grad for bank in banks if bank.grad is not None]
        if not gradients:
            self.clear()
        elif is_capturing() or self._gradients not in (None, _identities(gradients)):
            is_gone = ~torch.stack([gradient.any() for gradient in gradients]).any()
            self.visits.masked_fill_(is_gone, 0.0)
            self.similarity.masked_fill_(is_gone, _NONE)
        self._backward, self._gradients = number, []
        # At the very end: after DDP, which registers what changes gradients later than this.
        at_end_of_backward(lambda: at_end_of_backward(lambda: self._end(banks)))

    def _end(self, banks: tuple[Tensor, ...]) -> None:
        self._gradients = _identities([bank.grad for bank in banks if bank.grad is not None])


def is_capturing() -> bool:
    """Whether a CUDA graph is being captured, whose replays do without what the host knows."""
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()


def _identities(gradients: list[Tensor]) -> list[tuple[int, int]]:
    """Which tensors these are, and how often each was changed."""
    return [(id(gradient), gradient._version) for gradient in gradients]


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


class BackwardStats(NamedTuple):
    """What one forward saw, and its backward adds to the notes: the visits and the least similar inputs."""

    begin: Callable[[], None] | None
    """Forgets notes that belong to gradients that are gone; None in compiled code."""
    notes: tuple[Tensor, Tensor, Tensor]
    """The memory's notes: visits, similarity and keys."""
    slots: Tensor
    """(N, k)"""
    share: Tensor
    """w (N, k)"""
    similarity: Tensor
    """Of the candidates (C,)."""
    keys: Tensor
    """Of the candidates (C, d_z)."""

    def accumulate(self) -> None:
        """Add them to the notes; called in a backward."""
        if self.begin is not None:
            self.begin()
        visits, similarity, keys = self.notes
        visits.index_add_(0, self.slots.flatten(), self.share.flatten())
        merged = torch.cat([similarity, self.similarity]), torch.cat([keys, self.keys])
        for old, new in zip((similarity, keys), least(*merged, len(similarity)), strict=True):
            old.copy_(new)


class _AttachStats(torch.autograd.Function):
    """The identity; its backward accumulates statistics, once per forward that is differentiated."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, *stats: Any) -> Tensor:
        ctx.stats = stats
        return y.view_as(y)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        if ctx.stats is not None:
            BackwardStats(*ctx.stats).accumulate()
            ctx.stats = None
        return grad, *[None] * len(BackwardStats._fields)


def attach_stats(y: Tensor, make_stats: Callable[[], BackwardStats] | None) -> Tensor:
    """y, whose backward accumulates these statistics; None: y."""
    result: Any = y if make_stats is None else _AttachStats.apply(y, *make_stats())
    return result
