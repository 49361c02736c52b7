"""A model's parameters as one vector, and RMSProp on it: processes can share it, and a step is a handful of kernels."""

from __future__ import annotations

import torch
from torch import Tensor, nn

ALIGN = 64
"""Each parameter begins at a multiple of this many entries: matrix products are slow on unaligned memory."""


def size(model: nn.Module) -> int:
    """Length of the vector."""
    return sum(-(-entry.numel() // ALIGN) * ALIGN for entry in model.parameters())


class Flat:
    """Makes the parameters of a model, and their gradients, views of two vectors."""

    def __init__(self, model: nn.Module) -> None:
        entries = list(model.parameters())
        self.values = entries[0].new_zeros(size(model)).detach()
        self.gradient = torch.zeros_like(self.values)
        begin = 0
        for entry in entries:
            end = begin + entry.numel()
            view = self.values[begin:end].view_as(entry)
            view.copy_(entry.detach())
            entry.data = view
            entry.grad = self.gradient[begin:end].view_as(entry)
            begin += -(-entry.numel() // ALIGN) * ALIGN

    def clip(self, limit: float | None) -> Tensor:
        """The gradient's norm (), before it is scaled down to at most `limit`."""
        norm = torch.linalg.vector_norm(self.gradient)
        if limit is not None:
            self.gradient.mul_((limit / (norm + 1e-6)).clamp(max=1.0))
        return norm


def rmsprop(
    values: Tensor, squares: Tensor, gradient: Tensor, rate: Tensor | float, alpha: float, epsilon: float
) -> None:
    """`s = alpha s + (1 - alpha) g^2`, `x = x - rate g / sqrt(s + epsilon)`, in place; all (n,). Epsilon is inside the
    root, as in A3C; torch's RMSProp has it outside."""
    squares.mul_(alpha).addcmul_(gradient, gradient, value=1 - alpha)
    values.sub_(gradient / (squares + epsilon).sqrt_() * rate)
