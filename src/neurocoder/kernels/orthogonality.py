"""The orthogonal loss on a GPU: value and gradient by two kernels, where autograd takes two dozen."""

from __future__ import annotations

from typing import Any

import torch
import triton
from torch import Tensor
from torch.autograd.function import once_differentiable

from .branch import on_device_of
from .triton_orthogonality import distance_kernel, gram_kernel

_COLUMNS = 128
"""Columns of one program."""


class OrthogonalLoss(torch.autograd.Function):
    """`weight * (||M_U M_U^T - I|| + ||M_V M_V^T - I||)` for M_U (P, d_in), M_V (P, d_out)."""

    @staticmethod
    def forward(ctx: Any, left: Tensor, right: Tensor, weight: float) -> Tensor:
        """A scalar; the gradients are computed with it."""
        with on_device_of(left):
            return OrthogonalLoss._forward(ctx, left.contiguous(), right.contiguous(), weight)

    @staticmethod
    def _forward(ctx: Any, left: Tensor, right: Tensor, weight: float) -> Tensor:
        (slots, d_in), d_out = left.shape, right.shape[1]
        blocks, padded = triton.cdiv(max(d_in, d_out), _COLUMNS), max(16, triton.next_power_of_2(slots))
        shares = left.new_empty(2, blocks, padded, padded, dtype=torch.float32)
        loss = left.new_empty((), dtype=torch.float32)
        grads = torch.empty_like(left), torch.empty_like(right)
        sizes = {"P": slots, "PP": padded, "BD": _COLUMNS}
        gram_kernel[blocks, 2](left, right, loss, shares, d_in, d_out, blocks, **sizes)
        distance_kernel[blocks, 2](left, right, *grads, loss, shares, weight, d_in, d_out, blocks, **sizes)
        ctx.save_for_backward(*grads)
        return loss.to(left.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """The gradients of both matrices, by one operation."""
        return *torch._foreach_mul(ctx.saved_tensors, grad), None
