"""Linear Main Networks on a fixed random projection of the input (paper, section 4.1)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

PIXELS, PROJECTED = 784, 200
"""Numbers in an MNIST image, and in its projection z."""


def random_projection() -> Tensor:
    """U (784, 200), drawn from torch's generator; it preserves the variance of its input."""
    return torch.randn(PIXELS, PROJECTED) / PIXELS**0.5


class Projected(nn.Module):
    """A layer on a fixed projection `z = x U`; the layer sees only z."""

    projection: Tensor

    def __init__(self, layer: nn.Module, projection: Tensor) -> None:
        super().__init__()
        self.register_buffer("projection", projection)
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        """(N, 784) -> (N, 10)"""
        return self.layer(x @ self.projection)
