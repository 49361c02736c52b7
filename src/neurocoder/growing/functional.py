"""The programs that inputs found, of which only their `top_k` slots are touched."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import embedding_bag

from ..ops.backend import is_exporting, is_traced, is_transformed, prefers_triton

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
    """Whether the Triton kernels serve controls z (N, d_z) and slots (P, r, d) like these: on a GPU, also in compiled
    code, up to sizes that fit a block. What is exported has torch operations alone."""
    capacity, rank, _ = bank.shape
    is_small = capacity <= MAX_SLOTS and rank <= MAX_RANK and top_k <= MAX_TOP_K
    serves = is_small and torch.float64 not in (z.dtype, bank.dtype) and prefers_triton(bank)
    return serves and not (is_exporting() or is_transformed() or bank.is_meta)


def uses_operators() -> bool:
    """Whether the kernels run as operators, in compiled code, rather than by themselves."""
    return is_traced()


def kernel_dtype(reading: Reading, x: Tensor, U: Tensor) -> torch.dtype | None:
    """The dtype in which a kernel executes inputs x (N, T, d_in) with slots U; None: none does."""
    if not (reading.uses_kernels and len(x) and x.shape[1] == 1):
        return None
    if torch.is_autocast_enabled(x.device.type) and x.dtype != torch.float64:
        return torch.get_autocast_dtype(x.device.type)
    return x.dtype if x.dtype == U.dtype else None
