"""Growing layers on a GPU, by Triton kernels: no input's program is built.

    c_nr = sum_i w_ni U_ir . x_n           by slot: each slot loads the inputs that use it
    y_n  = sum_i w_ni sum_r c_nr V_ir      by input: it loads its k slots

The backward is the same with U and V exchanged, and sums gradients by slot. Nothing depends on the order in which a GPU
works: the same input gives the same bits.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..kernels.layer import refuse_second_derivatives
from ..kernels.rounding import cdiv, power_of_two
from ..kernels.side_stream import on_device_of
from .config import GrowingConfig
from .execution import SHORTEST
from .triton_slots import by_input_kernel, by_slot_kernel, nearest_kernel

FEATURES, TILE = 128, 16
"""Features that one program instance of `by_slot_kernel` takes, and inputs that it takes at a time, which is also what
ranks are padded to: the least that tensor cores multiply."""
WIDE = 2048
"""Features times rank that one program instance of `by_input_kernel` takes."""


def nearest(product: Tensor, length: Tensor, written: Tensor, config: GrowingConfig) -> tuple[Tensor, Tensor, Tensor]:
    """The `top_k` nearest of the first `written` () slots: slots, share and similarity, each (N, k).

    Args:
        product: k_i . z of each control and key (N, P), float32.
        length: ||z|| (N,).
        written: (), whole.
        config: `top_k` and `sharpness`.
    """
    (count, capacity), k = product.shape, config.top_k
    slots = torch.empty(count, k, device=product.device, dtype=torch.int64)
    share, similarity = product.new_empty(count, k), product.new_empty(count, k)
    if count:
        blocks: dict[str, Any] = {"P": capacity, "K": k, "PP": power_of_two(capacity), "KK": power_of_two(k)}
        with on_device_of(product):
            nearest_kernel[count,](
                *(product, length, written, slots, share, similarity, config.sharpness, SHORTEST), **blocks
            )
    return slots, share, similarity


class Pairs(NamedTuple):
    """Which inputs use which slots, listed by input and by slot."""

    slots: Tensor
    """(N, k)"""
    share: Tensor
    """w (N, k), float32"""
    order: Tensor
    """The pairs n * k + j by slot, in the order of the inputs (N * k,); those without a share come last."""
    starts: Tensor
    """Where each slot's pairs begin in it (P + 1,)."""


def paired(slots: Tensor, share: Tensor, capacity: int) -> Pairs:
    """Sort the pairs by slot."""
    narrow = torch.int16  # holds MAX_SLOTS, and takes fewer passes of the sort
    keys, order = slots.masked_fill(share == 0, capacity).flatten().to(narrow).sort(stable=True)
    starts = torch.searchsorted(keys, torch.arange(capacity + 1, device=slots.device, dtype=narrow))
    return Pairs(slots, share, order, starts)


def _by_slot(
    rows: Tensor, pairs: Pairs, bank: Tensor, *, reads: bool = False, coefficients: Tensor | None = None
) -> tuple[Tensor | None, Tensor | None]:
    """What the inputs read from their slots (N, r), and the gradient of the bank for these coefficients (N, r)."""
    slots, rank, width = bank.shape
    count, k = pairs.slots.shape
    chunks = cdiv(width, FEATURES)
    readings = rows.new_zeros(chunks, count, k, rank, dtype=torch.float32) if reads else None
    grad = None if coefficients is None else torch.empty_like(bank, memory_format=torch.contiguous_format)
    with on_device_of(rows):
        by_slot_kernel[slots, chunks](
            *(bank, rows, rows if coefficients is None else coefficients, pairs.share, pairs.order, pairs.starts),
            *(rows if readings is None else readings, bank if grad is None else grad, count * k, width),
            **{"R": rank, "K": k, "READ": reads, "SUM": grad is not None},
            **{"T": TILE, "BD": min(FEATURES, max(TILE, power_of_two(width)))},
        )
    return None if readings is None else readings.sum((0, 2)), grad


def _by_input(bank: Tensor, pairs: Pairs, coefficients: Tensor, dtype: torch.dtype) -> Tensor:
    """`y_n = sum_i w_ni sum_r c_nr B_ir` (N, d)."""
    _, rank, width = bank.shape
    count, k = pairs.slots.shape
    y = bank.new_empty(count, width, dtype=dtype)
    padded = power_of_two(rank)
    block = min(WIDE // padded, power_of_two(width))
    with on_device_of(bank):
        by_input_kernel[count, cdiv(width, block)](
            *(bank, coefficients, pairs.slots, pairs.share, y, width),
            **{"R": rank, "K": k, "BR": padded, "BD": block},
        )
    return y


class Execution(torch.autograd.Function):
    """`y_n = sum_r ((w.U_r) x_n) (w.V_r)` for inputs x (N, d_in), N > 0, with slots and share (N, k)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, U: Tensor, V: Tensor, slots: Tensor, share: Tensor, dtype: torch.dtype) -> Tensor:
        x, U, V = x.contiguous(), U.contiguous(), V.contiguous()
        pairs = paired(slots, share.float().contiguous(), len(U))
        read, _ = _by_slot(x, pairs, U, reads=True)
        assert read is not None
        ctx.save_for_backward(x, U, V, read, *pairs)
        return _by_input(V, pairs, read, dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        refuse_second_derivatives()
        x, U, V, read, *rest = ctx.saved_tensors
        pairs, wants = Pairs(*rest), ctx.needs_input_grad
        grad_read, grad_V = _by_slot(
            grad.contiguous(), pairs, V, reads=wants[0] or wants[1], coefficients=read if wants[2] else None
        )
        grad_x = grad_U = None
        if grad_read is not None:
            grad_U = _by_slot(x, pairs, U, coefficients=grad_read)[1] if wants[1] else None
            grad_x = _by_input(U, pairs, grad_read, x.dtype) if wants[0] else None
        return grad_x, grad_U, grad_V, None, None, None
