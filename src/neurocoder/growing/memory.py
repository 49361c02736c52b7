"""The growing program memory: slots, their keys, and how inputs find them."""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from .config import SHORTEST, GrowingConfig
from .functional import Reading, uses_operators
from .guard import StepGuard
from .notes import BackwardStats, Notes, candidates

_ABSENT = -2.0
"""Stands for the cosine to an unwritten slot: below every cosine."""


class GrowingMemory(nn.Module):
    """P slots, of which the first `written` are in use.

    Slot i has a program, `U_i (r, d_in)` and `V_i (r, d_out)`, which learns, and a unit key `k_i (d_z)`, which is
    written once and never trained. Free slots hold their starting values: `U` is N(0, 1/d_in) and `V` zero, so that a
    new slot outputs zero until trained.

    Example:
        >>> memory = nc.GrowingLinear(8, 4, growing=nc.GrowingConfig(slots=16, rank=2)).memory
        >>> memory.capacity, int(memory.written), memory.U.shape
        (16, 0, torch.Size([16, 2, 8]))
    """

    keys: Tensor
    visits: Tensor
    born: Tensor
    written: Tensor
    steps: Tensor

    def __init__(
        self, d_in: int, d_out: int, d_z: int, config: GrowingConfig, *, device: Any = None, dtype: Any = None
    ) -> None:
        super().__init__()
        self.config = config
        slots, rank = config.slots, config.rank
        options = {"device": device, "dtype": dtype}
        self.U = nn.Parameter(torch.empty(slots, rank, d_in, **options))
        self.V = nn.Parameter(torch.empty(slots, rank, d_out, **options))
        self.register_buffer("keys", torch.zeros(slots, d_z, **options))
        wide = torch.promote_types(self.U.dtype, torch.float32)  # counts would stop growing in bfloat16
        self.register_buffer("visits", torch.zeros(slots, device=device, dtype=wide))
        self.register_buffer("born", torch.zeros(slots, device=device, dtype=torch.int64))
        self.register_buffer("written", torch.zeros((), device=device, dtype=torch.int64))
        self.register_buffer("steps", torch.zeros((), device=device, dtype=torch.int64))
        self.written_bound = 0
        """No more slots than this are written, as far as the host knows without asking the device."""
        self.is_captured = False
        """Whether a CUDA graph uses these slots: it would go on with the old ones if their number changed."""
        self.guard = StepGuard(self)
        self.renew()

    @property
    def capacity(self) -> int:
        """P, written or free."""
        return len(self.U)

    @property
    def reuses(self) -> bool:
        """Whether new inputs may overwrite slots of little use: there can be no more slots."""
        return self.config.reuse_below > 0 and self.capacity >= self.config.limit

    def renew(self) -> None:
        """Empty notes, and a guard of the parameters, where these, their size, device or dtype may be others."""
        self.notes = Notes(self.visits, self.keys.shape[1], self.config.writes)
        self.guard.watch(self.parameters())

    def start(self, rows: int) -> tuple[Tensor, Tensor]:
        """Starting values of U and V for so many slots, drawn in float32 on the CPU."""
        rank, d_in, d_out = *self.U.shape[1:], self.V.shape[2]
        options: dict[str, Any] = {"device": "cpu", "dtype": torch.float32}
        # Zero: random outputs for classes that come later would stay in the slots.
        return torch.randn(rows, rank, d_in, **options) / math.sqrt(d_in), torch.zeros(rows, rank, d_out, **options)

    @torch.no_grad()
    def reset(self) -> None:
        """Starting values; nothing is written."""
        u, v = self.start(self.capacity)
        self.U.copy_(u)
        self.V.copy_(v)
        for buffer in self.buffers():
            buffer.zero_()
        self.written_bound = 0
        self.notes.clear()

    @torch.no_grad()
    def forward(self, z: Tensor, length: Tensor | None = None, uses_kernels: bool = False) -> Reading:
        """`w = softmax_i(beta cos(k_i, z))` over the `top_k` nearest written slots; no gradient passes.

        Args:
            z: the controls (N, d_z), of any length; a zero control has cosine 0 to every key.
            length: ||z|| (N,) if it is known, of z's dtype.
            uses_kernels: the answer of `has_kernel`.
        """
        if z.is_cuda and not torch.compiler.is_compiling() and torch.cuda.is_current_stream_capturing():
            self.is_captured = True
        with _exact(z.device):
            dtype = torch.promote_types(z.dtype, self.visits.dtype)
            z = z.to(dtype)
            length = z.norm(dim=-1) if length is None else length
            product = z @ self.keys.to(dtype).mT
            if uses_kernels:
                from .kernels import nearest
                from .operators import nearest_slots

                search = nearest_slots if uses_operators() else nearest
                config = self.config
                slots, share, similarity = search(product, length, self.written, config.top_k, config.sharpness)
                return Reading(slots, share, similarity, length, uses_kernels)
            is_free = torch.arange(self.capacity, device=z.device) >= self.written
            cosine = product / length.clamp(min=SHORTEST).unsqueeze(-1)
            similarity, slots = cosine.masked_fill(is_free, _ABSENT).topk(self.config.top_k, dim=-1)
            logits = (self.config.sharpness * similarity).masked_fill(similarity == _ABSENT, -math.inf)
            share = torch.softmax(logits, dim=-1).nan_to_num(0.0)
            return Reading(slots, share, similarity.clamp(min=-1.0), length, uses_kernels)

    @torch.no_grad()
    def backward_stats(self, reading: Reading, z: Tensor, counts: Tensor | None = None) -> BackwardStats:
        """What the call that read the controls z (N, d_z), N > 0, saw of those that count (N,); None: of all."""
        notes, wide = self.notes, self.visits.dtype
        nearest, length, share = reading.similarity[:, 0].to(wide), reading.length.to(wide), reading.share.to(wide)
        if counts is not None:
            length, share = length.masked_fill(~counts, 0.0), share.masked_fill(~counts.unsqueeze(-1), 0.0)
        least = candidates(z.detach().to(wide), length, nearest, len(notes.similarity))
        begin = None if torch.compiler.is_compiling() else partial(notes.begin, (self.U, self.V))
        totals = (notes.visits, notes.similarity, notes.keys)
        return BackwardStats(begin, totals, reading.slots, share, *least)

    @torch.no_grad()
    def write(self, similarity: Tensor, keys: Tensor, allowed: Tensor | bool = True) -> list[tuple[Tensor, Tensor]]:
        """Write each candidate to the next free slot if it is new, also beside those written before it in this call.

        If none is free, and slots are reused, it overwrites `argmin_i n_i` over the slots with `n_i < b` and
        `age_i >= b`: its key, its age, its visits (0) and V (0). U stays: it is a random start that has hardly moved.

        Args:
            similarity: their cosines to the nearest key (C,), least first.
            keys: unit keys (C, d_z).
            allowed: whether anything may be written.

        Returns:
            For each candidate, the slot (1,) that it would overwrite, and whether it did (); empty without reuse.

        Nothing here depends on a value on the host: a write that is refused rewrites what is there.
        """
        done: list[Tensor] = []
        reused: list[tuple[Tensor, Tensor]] = []
        for index in range(len(keys)):
            near = similarity[index]
            if done:
                fresh = (keys[:index] @ keys[index]).masked_fill(~torch.stack(done), _ABSENT)
                near = torch.maximum(near, fresh.amax())
            is_new = (near < self.config.max_similarity) & allowed
            is_free = self.written < self.capacity
            place, writes = self.written.clamp(max=self.capacity - 1).view(1), is_new & is_free
            self.written.add_(writes)
            if self.reuses:
                least, victim = self._least_useful()
                overwrites = is_new & ~is_free & least.isfinite()
                place, writes = torch.where(is_free, place, victim), writes | overwrites
                for tensor in (self.visits, self.V):
                    set_row(tensor, victim, overwrites, tensor.new_zeros(()))
                reused.append((victim, overwrites))
            set_row(self.keys, place, writes, keys[index].to(self.keys.dtype))
            set_row(self.born, place, writes, self.steps)
            done.append(writes)
        return reused

    def _least_useful(self) -> tuple[Tensor, Tensor]:
        """The fewest visits () of a slot that may be overwritten, infinite if there is none, and that slot (1,)."""
        bound = self.config.reuse_below
        is_young = (self.visits < bound) & (self.steps - self.born >= bound)
        visits, slot = self.visits.masked_fill(~is_young, math.inf).min(dim=0, keepdim=True)
        return visits.squeeze(0), slot

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        """As in any module, but visits stay at least float32."""
        visits = self.visits
        super()._apply(fn, recurse)
        if self.visits.dtype.itemsize < visits.dtype.itemsize:
            self.visits = visits.to(self.visits.device)
        self.written_bound = self.capacity
        self.renew()
        return self

    def _load_from_state_dict(self, *args: Any) -> None:
        super()._load_from_state_dict(*args)
        self.written_bound = self.capacity
        self.renew()

    def __getstate__(self) -> dict[str, Any]:
        """What is copied and pickled: not what belongs to this object's gradients, nor that a graph uses it."""
        state = {name: value for name, value in super().__getstate__().items() if name not in ("notes", "guard")}
        return {**state, "is_captured": False}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self.guard = StepGuard(self)
        self.renew()


def set_row(tensor: Tensor, place: Tensor, allowed: Tensor, value: Tensor) -> None:
    """Write a row (or a number, for all of it) at this place (1,) if allowed ()."""
    old = tensor.index_select(0, place)
    tensor.index_copy_(0, place, torch.where(allowed, value, old))


def _exact(device: torch.device) -> AbstractContextManager[Any]:
    """No autocast: rounded cosines, times the sharpness, would move the attention."""
    # torch 2.11 cannot trace the second question; what it compiles for has autocast.
    if device.type != "meta" and (torch.compiler.is_compiling() or torch.amp.is_autocast_available(device.type)):
        return torch.autocast(device.type, enabled=False)
    return nullcontext()
