"""The orthogonal loss on a GPU: value and gradient in two kernels per memory, where autograd takes two dozen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ...ops.launch import WIDTH, SideStream, aligned, cdiv, on_device_of, padded
from .triton_orthogonality import distance_kernel, gram_kernel

_TILE = 4096
"""Slots times columns per program instance; larger tiles exceed the on-chip memory of a small GPU."""


class OrthogonalLoss(torch.autograd.Function):
    """`sum_i weight_i (||M_U M_U^T - I|| + ||M_V M_V^T - I||)` over memories on one device, in one dtype."""

    @staticmethod
    def forward(ctx: Any, weights: Sequence[float], *slots: Tensor) -> Tensor:
        """M_U (P, d_in) and M_V (P, d_out) of each memory -> (); the gradients are computed here too."""
        slots = tuple(tensor.contiguous() for tensor in slots)
        distances = slots[0].new_empty(len(slots), dtype=torch.float32)
        ctx.sizes = [aligned(tensor.numel()) for tensor in slots]  # each is aligned for vectors of four
        gradients = slots[0].new_empty(sum(ctx.sizes))
        ctx.shapes = [tensor.shape for tensor in slots]
        streams = [SideStream(slots[0], number) for number in range(WIDTH)]
        parts = _parts(ctx, gradients)
        with on_device_of(slots[0]):
            for index, weight in enumerate(weights):
                pair = slice(2 * index, 2 * index + 2)
                with streams[index % WIDTH]:
                    _distances(slots[pair], parts[pair], distances[pair], weight)
            for stream in streams:
                stream.join()
        ctx.save_for_backward(gradients)
        return distances.sum().to(gradients.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """The gradients of all matrices, with one product."""
        return None, *_parts(ctx, ctx.saved_tensors[0] * grad)


def _parts(ctx: Any, flat: Tensor) -> list[Tensor]:
    """The matrices in a flat tensor."""
    return [part[: shape.numel()].view(shape) for part, shape in zip(flat.split(ctx.sizes), ctx.shapes, strict=True)]


def _distances(memory: Sequence[Tensor], gradients: Sequence[Tensor], distances: Tensor, weight: float) -> None:
    """For one memory, M_U and M_V: fills the gradients and both distances (2,)."""
    left, right = memory
    (slots, d_in), d_out = left.shape, right.shape[1]
    width = padded(slots)
    columns = min(128, _TILE // width)
    blocks = cdiv(max(d_in, d_out), columns)
    shares = left.new_empty(2, blocks, width, width, dtype=torch.float32)
    sizes = {"P": slots, "PP": width, "BD": columns}
    gram_kernel[blocks, 2](left, right, shares, d_in, d_out, blocks, **sizes)
    distance_kernel[blocks, 2](left, right, *gradients, distances, shares, weight, d_in, d_out, blocks, **sizes)
