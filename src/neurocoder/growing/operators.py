"""The Triton kernels of `kernels` as custom operators, for compiled code."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..ops.autograd import refuse_second_derivatives
from ..ops.launch import precision
from ..ops.operators import library, operator
from .kernels import Pairs, by_input, by_slot, nearest, paired


@operator
def nearest_slots(
    product: Tensor, length: Tensor, written: Tensor, top_k: int, sharpness: float
) -> tuple[Tensor, Tensor, Tensor]:
    """`kernels.nearest`"""
    return nearest(product.contiguous(), length.contiguous(), written, top_k, sharpness)


@torch.library.register_fake(f"{library.ns}::nearest_slots", lib=library)
def _(product: Tensor, length: Tensor, written: Tensor, top_k: int, sharpness: float) -> tuple[Tensor, ...]:
    share = product.new_empty(len(product), top_k)
    return share.new_empty(share.shape, dtype=torch.int64), share, torch.empty_like(share)


@operator
def run_slots(
    x: Tensor,
    U: Tensor,
    V: Tensor,
    narrow_U: Tensor,
    narrow_V: Tensor,
    slots: Tensor,
    share: Tensor,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:
    """`y_n = sum_r c_nr (w.V_r)` (N, d_out) and `c_nr = (w.U_r) x_n` (N, r) of x (N, d_in), slots and w (N, k).

    The kernels read the narrow banks; the gradients are those of U and V, in their dtype.
    """
    c, y = by_input(x.contiguous(), (narrow_U, narrow_V), slots, share.contiguous(), dtype)
    assert y is not None
    return y, c


@torch.library.register_fake(f"{library.ns}::run_slots", lib=library)
def _(x: Tensor, U: Tensor, V: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    *_, share, dtype = rest
    return x.new_empty(len(x), V.shape[2], dtype=dtype), share.new_empty(len(x), U.shape[1])


@operator
def run_slots_backward(
    grad: Tensor,
    x: Tensor,
    U: Tensor,
    V: Tensor,
    order: Tensor,
    starts: Tensor,
    slots: Tensor,
    share: Tensor,
    c: Tensor,
    dtype: torch.dtype,
    wants: list[bool],
) -> list[Tensor]:
    """The gradients of x, and of U and V in this dtype; empty where not wanted. Pairs are those of `paired`."""
    grad, x, share, pairs = grad.contiguous(), x.contiguous(), share.contiguous(), Pairs(order, starts)
    wants_x, wants_U, wants_V = wants
    exactness, none = precision(grad.dtype), [x.new_empty(0) for _ in wants]
    grad_c, grad_x = by_input(grad, (V, U), slots, share, x.dtype if wants_x else None)
    return [
        none[0] if grad_x is None else grad_x,
        by_slot(x, grad_c, share, pairs, U, exactness, dtype) if wants_U else none[1],
        by_slot(grad, c, share, pairs, V, exactness, dtype) if wants_V else none[2],
    ]


@torch.library.register_fake(f"{library.ns}::run_slots_backward", lib=library)
def _(grad: Tensor, x: Tensor, U: Tensor, V: Tensor, *rest: Any) -> list[Tensor]:
    *_, dtype, wants = rest
    return [
        like.new_empty(like.shape if wanted else 0, dtype=kind)
        for like, kind, wanted in zip((x, U, V), (x.dtype, dtype, dtype), wants, strict=True)
    ]


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    x, U, V, narrow_U, narrow_V, slots, share, _ = inputs
    ctx.save_for_backward(x, narrow_U, narrow_V, slots, share, output[1])
    ctx.dtype, ctx.wants = U.dtype, [tensor.requires_grad for tensor in (x, U, V)]


def _backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Any, ...]:
    refuse_second_derivatives()
    x, U, V, slots, share, c = ctx.saved_tensors
    # Traced, so that the compiler fuses what leads to the sort.
    pairs = paired(slots, share, len(U))
    found = run_slots_backward(grad, x, U, V, *pairs, slots, share, c, ctx.dtype, ctx.wants)
    return *(each if wanted else None for each, wanted in zip(found, ctx.wants, strict=True)), *[None] * 5


torch.library.register_autograd(f"{library.ns}::run_slots", _backward, setup_context=_setup, lib=library)
