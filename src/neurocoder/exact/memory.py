"""What an exact layer fixes before it learns: keys, directions and random projections, and the features they give."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, pad

from .config import ExactConfig

SCALE = 30.0
"""Of the features, beside the input and the constant: the ridge weighs 900 times less on them."""
REACH = 4.0
"""What the directions make of an input one median distance away from the mean."""

LARGEST = 1e18
"""Median distance between inputs: answers square distances in float32."""


class ExactMemory(nn.Module):
    """The fixed part of an exact layer, the basis: buffers, so that no optimiser moves them.

        local     phi = w_i(z) [1, A (x - m)]_i       w_i(z) = 30 exp(-|z - k_i|² / 2 s²)       P (r + 1) features
        rbf       phi = w_i(z)                                                                  P
        relu      phi = 30 relu(K z / sqrt(d_z))      K ~ N(0, 1)                               P
        fourier   phi = 30 cos(K z / s + b)           K ~ N(0, 1), b uniform                    P

    `z` is the control, or x itself. Keys are drawn from the Gaussian of the inputs given to `fix`; the directions A are
    the principal directions of these inputs, m is their mean and s is `width` times their median distance.
    """

    keys: Tensor
    """k (P, d_z) of `local` and `rbf`; K of `relu` and `fourier`"""
    directions: Tensor
    """A (r, d_in) of `local`"""
    mean: Tensor
    """m (d_in) of `local`"""
    phase: Tensor
    """b (P) of `fourier`"""
    bandwidth: Tensor
    """s (); 0 before it is known"""

    def __init__(self, d_in: int, d_z: int, config: ExactConfig, device: torch.device | str | None) -> None:
        super().__init__()
        self.config, self.needs_inputs = config, config.features in ("local", "rbf")
        self.rank = min(config.rank, d_in) if config.features == "local" else 0
        slots = 0 if config.features == "none" else config.slots
        self.width = slots * (self.rank + 1)
        shapes = {"keys": (slots, d_z), "directions": (self.rank, d_in), "mean": (d_in,), "phase": (slots,)}
        for name, shape in (shapes | {"bandwidth": ()}).items():
            self.register_buffer(name, torch.zeros(shape, device=device, dtype=torch.float32))
        self.draw()

    def draw(self) -> None:
        """The random numbers, from the seed alone. Fourier features expect inputs of unit variance then."""
        if not self.keys.is_meta:
            generator = torch.Generator().manual_seed(self.config.seed)
            options: Any = {"generator": generator, "device": "cpu", "dtype": torch.float32}
            self.keys.copy_(torch.randn(self.keys.shape, **options))
            self.phase.copy_(2 * torch.pi * torch.rand(self.phase.shape, **options))
            self.bandwidth.fill_(0 if self.needs_inputs else self.config.width * (2 * self.keys.shape[1]) ** 0.5)

    def fix(self, x: Tensor, z: Tensor) -> None:
        """Fix the basis by inputs (N, d_in) and controls (N, d_z), in float64."""
        of_x, of_z = (torch.pdist(rows[:1000]).median() for rows in (x, z))
        if len(x) <= self.rank or not (of_x > 0 and of_z > 0):
            raise ValueError(f"basis must be given at least {max(2, self.rank + 1)} inputs that differ, got {len(x)}")
        if max(of_x, of_z) > LARGEST or min(of_x, of_z) < 1 / LARGEST:
            raise ValueError(f"basis must be given inputs that differ by 1e-18 to {LARGEST:.0e}: scale them first")
        self.draw()
        self.bandwidth.copy_(self.config.width * of_z)
        if self.needs_inputs:
            spread, axes = torch.linalg.svd(z - z.mean(0), full_matrices=False)[1:]
            self.keys.copy_(z.mean(0) + (self.keys.double() @ axes.mT * spread / len(z) ** 0.5) @ axes)
            self.mean.copy_(x.mean(0))
            axes = torch.linalg.svd(x - x.mean(0), full_matrices=False).Vh
            self.directions.copy_(axes[: self.rank] * REACH / of_x)

    def use(self, z: Tensor) -> Tensor:
        """w / 30 (N, P): how strongly each slot is used; 0 to 1 for Gaussians."""
        keys, s = self.keys.to(z.dtype), self.bandwidth.to(z.dtype)
        if self.config.features == "relu":
            return torch.relu(linear(z, keys) / z.shape[1] ** 0.5)
        if self.config.features == "fourier":
            return torch.cos(linear(z, keys) / s + self.phase.to(z.dtype))
        centre = keys.mean(0)  # distances from it keep their digits
        z, keys = z - centre, keys - centre
        square = z.square().sum(1, keepdim=True) + keys.square().sum(1) - 2 * z @ keys.mT
        return torch.exp(square.clamp(min=0) / (-2 * s**2))

    def forward(self, x: Tensor, z: Tensor) -> Tensor:
        """phi (N, F) of inputs (N, d_in) and controls (N, d_z), in their precision."""
        read = pad(linear(x - self.mean.to(x.dtype), self.directions.to(x.dtype)), (1, 0), value=1.0)
        return SCALE * (self.use(z).unsqueeze(2) * read.unsqueeze(1)).flatten(1)

    def numbers(self) -> int:
        """How many numbers the basis stores; what the seed draws again costs nothing."""
        return (self.keys.numel() + self.directions.numel() + self.mean.numel() * (self.rank > 0)) * self.needs_inputs
