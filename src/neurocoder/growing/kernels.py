"""Growing layers on a GPU, by Triton kernels: no input's program is built.

    c_nr      = sum_i w_ni U_ir . x_n         by input: it loads its k slots
    y_n       = sum_i w_ni sum_r c_nr V_ir    by input, in the same kernel
    grad V_ir = sum_n w_ni c_nr grad y_n      by slot: it loads the inputs that use it

The backward computes grad c and grad x as the forward does c and y, with U and V exchanged, and grad U as grad V.
Nothing depends on the order in which a GPU works: the same input gives the same bits. In a CUDA graph, what the main
stream does not wait for runs concurrently, on side streams.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import linear

from ..ops.autograd import cast, refuse_second_derivatives
from ..ops.launch import SideStream, cdiv, on_device_of, power_of_two, precision
from .config import SHORTEST
from .notes import BackwardStats
from .triton_slots import by_input_kernel, by_slot_kernel, centred_kernel, nearest_kernel

FEATURES, TILE = 256, 16
"""Features that one program instance of `by_slot_kernel` takes, and inputs that it takes at a time, which is also what
ranks are padded to: the least that tensor cores multiply."""
WIDE = 2048
"""Features times rank that one program instance of `by_input_kernel` takes at a time."""
WARPS, NARROW_WARPS = 4, 2
"""Warps of a program instance of `by_input_kernel`, for banks in float32 and in half of it. 8,192 inputs, 256 slots,
r = k = 4, 768x3072, on an H200: 209 us in float32, 110 in bfloat16; with 4 warps bfloat16 is no faster."""
ROW = 4096
"""Features that one program instance of `centred_kernel` takes at a time."""


def centred(rows: Tensor) -> tuple[Tensor, Tensor]:
    """`z_n = x_n - mean(x_n)` and `||z_n||` of inputs x (N, d): (N, d) and (N,), float32."""
    rows, (count, width) = rows.contiguous(), rows.shape
    z, length = torch.empty_like(rows, dtype=torch.float32), rows.new_empty(count, dtype=torch.float32)
    if count:
        with on_device_of(rows):
            centred_kernel[count,](rows, z, length, width, BD=min(ROW, power_of_two(width)))
    return z, length


def nearest(
    product: Tensor, length: Tensor, written: Tensor, k: int, sharpness: float
) -> tuple[Tensor, Tensor, Tensor]:
    """The `top_k` nearest of the first `written` () slots: slots, share and similarity, each (N, k).

    Args:
        product: k_i . z of each control and key (N, P), float32.
        length: ||z|| (N,).
        written: (), whole.
        k: `top_k`.
        sharpness: beta.
    """
    count, capacity = product.shape
    slots = torch.empty(count, k, device=product.device, dtype=torch.int64)
    share, similarity = product.new_empty(count, k), product.new_empty(count, k)
    if count:
        blocks: dict[str, Any] = {"P": capacity, "K": k, "PP": power_of_two(capacity), "KK": power_of_two(k)}
        with on_device_of(product):
            nearest_kernel[count,](*(product, length, written, slots, share, similarity, sharpness, SHORTEST), **blocks)
    return slots, share, similarity


def narrowed(bank: Tensor, dtype: torch.dtype) -> Tensor:
    """A bank as the kernels read it: in autocast's dtype, which halves what they load."""
    narrow: Tensor = cast(bank, dtype)
    return narrow.contiguous()


def by_input(
    rows: Tensor,
    banks: tuple[Tensor, Tensor],
    slots: Tensor,
    share: Tensor,
    dtype: torch.dtype | None,
    base: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """`c_nr = sum_i w_ni A_ir . x_n` (N, r) and `y_n = sum_i w_ni sum_r c_nr B_ir [+ b_n]` (N, d_out).

    Args:
        rows: x (N, d_in), N > 0.
        banks: A (P, r, d_in) and B (P, r, d_out).
        slots: (N, k).
        share: w (N, k), float32.
        dtype: y's; None: y is not needed.
        base: b (N, d_out).
    """
    (first, second), (count, k), rank = banks, slots.shape, banks[0].shape[1]
    widths = first.shape[2], second.shape[2]
    coefficients = share.new_empty(count, rank)
    y = None if dtype is None else second.new_empty(count, widths[1], dtype=dtype)
    padded = power_of_two(rank)
    with on_device_of(rows):
        by_input_kernel[count,](
            *(rows, first, second, slots, share, rows if base is None else base),
            *(coefficients, rows if y is None else y, *widths),
            **{"R": rank, "K": k, "WRITE": y is not None, "BASE": base is not None},
            **{"BR": padded, "BD": min(WIDE // padded, power_of_two(max(widths)))},
            num_warps=WARPS if first.dtype.itemsize == 4 else NARROW_WARPS,
        )
    return coefficients, y


class Pairs(NamedTuple):
    """Which inputs use which slots, listed by slot."""

    order: Tensor
    """The pairs n * k + j by slot, in the order of the inputs (N * k,); those without a share come last."""
    starts: Tensor
    """Where each slot's pairs begin in it (P + 1,)."""


def paired(slots: Tensor, share: Tensor, capacity: int) -> Pairs:
    """Sort the pairs of slots and share (N, k) by slot."""
    narrow = torch.int16  # holds MAX_SLOTS, and takes fewer passes of the sort
    keys, order = slots.masked_fill(share == 0, capacity).flatten().to(narrow).sort(stable=True)
    starts = torch.searchsorted(keys, torch.arange(capacity + 1, device=slots.device, dtype=narrow))
    return Pairs(order, starts)


def by_slot(
    rows: Tensor,
    coefficients: Tensor,
    share: Tensor,
    pairs: Pairs,
    bank: Tensor,
    input_precision: str,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """`grad B_ir = sum_n w_ni c_nr x_n`, like the bank B (P, r, d).

    Args:
        rows: x (N, d).
        coefficients: c (N, r), float32.
        share: w (N, k), float32.
        pairs: the same, by slot.
        bank: B.
        input_precision: of the products, as `tl.dot` names it.
        dtype: of the gradient; None: the bank's.
    """
    slots, rank, width = bank.shape
    grad = torch.empty_like(bank, dtype=dtype)
    block = min(FEATURES, max(TILE, power_of_two(width)))
    with on_device_of(rows):
        by_slot_kernel[slots, cdiv(width, block)](
            *(rows, coefficients, share, *pairs, grad, width),
            **{"R": rank, "K": share.shape[1], "T": TILE, "BD": block, "PRECISION": input_precision},
        )
    return grad


class Execution(torch.autograd.Function):
    """`y_n = sum_r ((w.U_r) x_n) (w.V_r) [+ R x_n] [+ bias]` for inputs x (N, d_in), N > 0, with slots and share
    (N, k).

    `make_stats` makes what the backward adds to the notes, as a part of the forward; None: nothing.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        U: Tensor,
        V: Tensor,
        R: Tensor | None,
        bias: Tensor | None,
        slots: Tensor,
        share: Tensor,
        dtype: torch.dtype,
        make_stats: Callable[[], BackwardStats] | None,
    ) -> Tensor:
        ctx.bank_dtype = U.dtype
        x, U, V, share = x.contiguous(), narrowed(U, dtype), narrowed(V, dtype), share.float().contiguous()
        side, ctx.stats = SideStream(x), None
        if make_stats is not None:
            with side:
                ctx.stats = make_stats()
        base, rows, bias = None, None, cast(bias, dtype)
        if R is not None:
            rows, R = cast(x, dtype), cast(R, dtype)
            base = linear(rows, R, bias)
        c, y = by_input(x, (U, V), slots, share, dtype, base)
        assert y is not None
        if R is None and bias is not None:
            y += bias
        side.join()
        ctx.save_for_backward(x, U, V, R, slots, share, c, rows if ctx.needs_input_grad[3] else None)
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        refuse_second_derivatives()
        x, U, V, R, slots, share, c, rows = ctx.saved_tensors
        wants_x, wants_U, wants_V, wants_R, wants_bias, *_ = ctx.needs_input_grad
        grad_x = grad_U = grad_V = grad_R = grad_bias = None
        grad, exactness = grad.contiguous(), precision(grad.dtype)
        side, plain = SideStream(grad), SideStream(grad, 1)
        stats, ctx.stats = ctx.stats, None
        with torch.autocast(grad.device.type, enabled=False):
            with side:
                if wants_U or wants_V:
                    pairs = paired(slots, share, len(U))
                ready = side.mark()
                if wants_V:
                    grad_V = by_slot(grad, c, share, pairs, V, exactness, ctx.bank_dtype)
            with plain:
                if wants_R:
                    grad_R = grad.mT @ rows
                if wants_bias:
                    grad_bias = grad.sum(0)
                if stats is not None:
                    stats.accumulate()
            if wants_x or wants_U:
                base = grad @ R if wants_x and R is not None else None
                grad_c, grad_x = by_input(grad, (V, U), slots, share, x.dtype if wants_x else None, base)
                if wants_U:
                    side.await_mark(ready)
                    grad_U = by_slot(x, grad_c, share, pairs, U, exactness, ctx.bank_dtype)
            side.join()
            plain.join()
        return grad_x, grad_U, grad_V, grad_R, grad_bias, None, None, None, None
