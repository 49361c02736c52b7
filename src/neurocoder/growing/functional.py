"""Execution of the programs that inputs found: only their `top_k` slots are touched."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.functional import embedding_bag, linear

from ..ops.backend import is_traced, is_transformed, prefers_triton
from .notes import Note, noted

if TYPE_CHECKING:
    from .memory import Reading

SHORTEST = 1e-12
"""The least length that a control is divided by."""
MAX_SLOTS, MAX_RANK, MAX_TOP_K = 8192, 16, 16
"""Limits of the kernels."""


def blended(bank: Tensor, reading: Reading) -> Tensor:
    """`sum_i w_i B_i` over the slots of each input: a bank B (P, r, d) -> (N, r, d)."""
    share, rows = reading.share.to(bank.dtype), bank.flatten(1)
    if is_transformed():
        return torch.einsum("nk,nkd->nd", share, rows[reading.slots]).unflatten(1, bank.shape[1:])
    # With gradients, N=256, P=1000, r=k=4, 1024x1024: 21 ms; hand-written backward passes 20 to 65.
    found = embedding_bag(reading.slots, rows, per_sample_weights=share, mode="sum")
    return found.unflatten(1, bank.shape[1:])


def has_kernel(tensor: Tensor, capacity: int, rank: int, top_k: int) -> bool:
    """Whether the Triton kernels serve a tensor like this: on a GPU, in eager mode, up to sizes that fit a block."""
    is_small = capacity <= MAX_SLOTS and rank <= MAX_RANK and top_k <= MAX_TOP_K
    serves = is_small and tensor.dtype != torch.float64 and prefers_triton(tensor)
    return serves and not (is_traced() or is_transformed() or tensor.is_meta)


def execute(
    x: Tensor,
    U: Tensor,
    V: Tensor,
    reading: Reading,
    R: Tensor | None = None,
    bias: Tensor | None = None,
    noting: Callable[[], Note] | None = None,
) -> Tensor:
    """`y = sum_r ((w.U_r) x) (w.V_r) [+ R x] [+ bias]` (N, T, d_out).

    Args:
        x: (N, T, d_in); T inputs share the slots of one control.
        U: (P, r, d_in).
        V: (P, r, d_out).
        reading: which slots the N controls use.
        R: (d_out, d_in).
        bias: (d_out,).
        noting: makes what the backward notes; None: nothing.
    """
    if has_kernel(U, len(U), U.shape[1], reading.slots.shape[1]) and len(x) and x.shape[1] == 1:
        is_cast = torch.is_autocast_enabled(x.device.type)
        if x.dtype == U.dtype or (is_cast and x.dtype != torch.float64):
            from .kernels import Execution

            dtype = torch.get_autocast_dtype(x.device.type) if is_cast else x.dtype
            y: Tensor = Execution.apply(x.squeeze(1), U, V, R, bias, reading.slots, reading.share, dtype, noting)
            return y.unsqueeze(1)
    y = torch.matmul(torch.matmul(x, blended(U, reading).mT), blended(V, reading))
    if R is not None:
        y = y + linear(x, R, bias)
    elif bias is not None:
        y = y + bias.to(y.dtype)
    return noted(y, noting)
