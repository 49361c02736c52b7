"""Execution of the programs that inputs found: only their `top_k` slots are touched."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import embedding_bag, linear

from ..ops.backend import is_traced, is_transformed, prefers_triton
from .notes import BackwardStats, attach_stats

MAX_SLOTS, MAX_RANK, MAX_TOP_K = 8192, 16, 16
"""Limits of the kernels."""


class Reading(NamedTuple):
    """Which slots N inputs use: k = top_k of them, the nearest first."""

    slots: Tensor
    """(N, k), whole numbers"""
    share: Tensor
    """w (N, k); each row sums to one, or is zero if nothing is written"""
    similarity: Tensor
    """cos(k_i, z) (N, k), -1 for an unwritten slot"""
    length: Tensor
    """||z|| (N,)"""
    uses_kernels: bool
    """Whether the Triton kernels serve this call."""


def blended(bank: Tensor, reading: Reading) -> Tensor:
    """`sum_i w_i B_i` over the slots of each input: a bank B (P, r, d) -> (N, r, d)."""
    share, rows = reading.share.to(bank.dtype), bank.flatten(1)
    if is_transformed():
        return torch.einsum("nk,nkd->nd", share, rows[reading.slots]).unflatten(1, bank.shape[1:])
    # With gradients, N=256, P=1000, r=k=4, 1024x1024: 21 ms; hand-written backward passes 20 to 65.
    found = embedding_bag(reading.slots, rows, per_sample_weights=share, mode="sum")
    return found.unflatten(1, bank.shape[1:])


def has_kernel(z: Tensor, bank: Tensor, top_k: int) -> bool:
    """Whether the Triton kernels serve controls z (N, d_z) and slots (P, r, d) like these: on a GPU, in eager mode, up
    to sizes that fit a block."""
    capacity, rank, _ = bank.shape
    is_small = capacity <= MAX_SLOTS and rank <= MAX_RANK and top_k <= MAX_TOP_K
    serves = is_small and torch.float64 not in (z.dtype, bank.dtype) and prefers_triton(bank)
    return serves and not (is_traced() or is_transformed() or bank.is_meta)


def execute(
    x: Tensor,
    U: Tensor,
    V: Tensor,
    reading: Reading,
    R: Tensor | None = None,
    bias: Tensor | None = None,
    make_stats: Callable[[], BackwardStats] | None = None,
) -> Tensor:
    """`y = sum_r ((w.U_r) x) (w.V_r) [+ R x] [+ bias]` (N, T, d_out).

    Args:
        x: (N, T, d_in); T inputs share the slots of one control.
        U: (P, r, d_in).
        V: (P, r, d_out).
        reading: which slots the N controls use.
        R: (d_out, d_in).
        bias: (d_out,).
        make_stats: makes what the backward adds to the memory's notes; None: nothing.
    """
    if reading.uses_kernels and len(x) and x.shape[1] == 1:
        is_cast = torch.is_autocast_enabled(x.device.type)
        if x.dtype == U.dtype or (is_cast and x.dtype != torch.float64):
            from .kernels import Execution

            dtype = torch.get_autocast_dtype(x.device.type) if is_cast else x.dtype
            y: Tensor = Execution.apply(x.squeeze(1), U, V, R, bias, reading.slots, reading.share, dtype, make_stats)
            return y.unsqueeze(1)
    y = torch.matmul(torch.matmul(x, blended(U, reading).mT), blended(V, reading))
    if R is not None:
        y = y + linear(x, R, bias)
    elif bias is not None:
        y = y + bias.to(y.dtype)
    return attach_stats(y, make_stats)
