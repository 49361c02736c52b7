"""What an exact layer fixes before it learns: keys, directions and random projections, and the features they give."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from .config import ExactConfig

SCALE = 30.0
"""Of the features, beside the input and the constant: the ridge weighs 900 times less on them."""
REACH = 4.0
"""What the directions make of an input one median distance away from the mean."""


class ExactMemory(nn.Module):
    """The fixed part of an exact layer, the basis: buffers, so that no optimiser moves them.

        local     phi = w_i(z) [1, A (x - m)]_i       w_i(z) = 30 exp(-|z - k_i|² / 2 s²)       P (r + 1) features
        rbf       phi = w_i(z)                                                                  P
        relu      phi = relu(W z)                     W ~ N(0, 1 / d_z)                         P
        fourier   phi = 30 cos(W z + b)               W ~ N(0, 1 / s²), b uniform               P

    `z` is the control, or x itself. Keys are drawn from the Gaussian of the inputs given to `fix`; the directions A are
    the principal directions of these inputs, m is their mean and s is `width` times their median distance.
    """

    keys: Tensor
    """k (P, d_z) of `local` and `rbf`; W of `relu` and `fourier`"""
    directions: Tensor
    """A (r, d_in) of `local`"""
    mean: Tensor
    """m (d_in) of `local`"""
    phase: Tensor
    """b (P) of `fourier`"""
    bandwidth: Tensor
    """s ()"""
    origin: Tensor
    """Hashes of the inputs that fixed the basis (n,)"""

    def __init__(self, d_in: int, d_z: int, config: ExactConfig, device: torch.device | str | None) -> None:
        super().__init__()
        self.config, self.d_in, self.d_z = config, d_in, d_z
        local, slots = config.features == "local", 0 if config.features == "none" else config.slots
        self.rank = min(config.rank, d_in) if local else 0
        empty = {
            "keys": (slots, d_z),
            "directions": (self.rank, d_in),
            "mean": (d_in if local else 0,),
            "phase": (slots if config.features == "fourier" else 0,),
            "bandwidth": (),
        }
        for name, shape in empty.items():
            self.register_buffer(name, torch.zeros(shape, device=device, dtype=torch.float32))
        self.register_buffer("origin", torch.zeros(0, device=device, dtype=torch.int64))
        self.draw()

    @property
    def ready(self) -> bool:
        """Whether the basis is fixed."""
        return not self.needs_inputs or len(self.origin) > 0

    @property
    def needs_inputs(self) -> bool:
        """Whether inputs must fix the basis; else the seed does."""
        return self.config.features in ("local", "rbf")

    @property
    def width(self) -> int:
        """F: how many features there are, without x and the constant."""
        return len(self.keys) * (self.rank + 1)

    def draw(self) -> None:
        """The random projections, from the seed alone. Fourier features expect inputs of unit variance then."""
        if self.needs_inputs or self.keys.is_meta:
            return
        generator = torch.Generator().manual_seed(self.config.seed)
        spread = self.d_z**-0.5
        if self.config.features == "fourier":
            self.bandwidth.fill_(self.config.width * (2 * self.d_z) ** 0.5)
            self.phase.copy_(2 * torch.pi * torch.rand(len(self.phase), generator=generator, device="cpu"))
            spread = 1 / float(self.bandwidth)
        self.keys.copy_(spread * torch.randn(self.keys.shape, generator=generator, device="cpu"))

    def fix(self, x: Tensor, z: Tensor, origin: Tensor) -> None:
        """Fix the basis by inputs (N, d_in), controls (N, d_z) and the hashes of these samples (N,)."""
        x, z = x.double(), z.double()
        needed = max(2, self.rank + 1)
        if len(x) < needed:
            raise ValueError(f"basis must be given at least {needed} inputs, got {len(x)}")
        distance = torch.pdist(z[:1000]).median()
        if not distance > 0:
            raise ValueError("basis must be given inputs that differ, got inputs of which most are equal")
        if self.needs_inputs:
            generator = torch.Generator().manual_seed(self.config.seed)
            _, spread, axes = torch.linalg.svd(z - z.mean(0), full_matrices=False)
            noise = torch.randn(len(self.keys), len(spread), generator=generator, dtype=torch.float64, device="cpu").to(
                z
            )
            self.keys.copy_(z.mean(0) + (noise * spread / len(z) ** 0.5) @ axes)
            if self.rank:
                axes = torch.linalg.svd(x - x.mean(0), full_matrices=False).Vh
                self.mean.copy_(x.mean(0))
                self.directions.copy_(axes[: self.rank] * REACH / torch.pdist(x[:1000]).median())
            self.bandwidth.copy_(self.config.width * distance)
        elif self.config.features == "fourier":
            ratio = self.bandwidth / (self.config.width * distance)
            self.keys.mul_(ratio)
            self.bandwidth.copy_(self.config.width * distance)
        self.origin = origin

    def use(self, z: Tensor) -> Tensor:
        """w (N, P): how strongly each slot is used, before the directions."""
        features, keys = self.config.features, self.keys.to(z.dtype)
        if features == "relu":
            return torch.relu(linear(z, keys))
        if features == "fourier":
            return SCALE * torch.cos(linear(z, keys, self.phase.to(z.dtype)))
        if features == "none":
            return z.new_zeros(z.shape[0], 0)
        centre = keys.mean(0)  # distances from it keep their digits
        z, keys = z - centre, keys - centre
        square = z.square().sum(1, keepdim=True) + keys.square().sum(1) - 2 * z @ keys.mT
        return SCALE * torch.exp(square.clamp(min=0) / (-2 * self.bandwidth.to(z.dtype) ** 2))

    def read(self, x: Tensor) -> Tensor:
        """[1, A (x - m)] (N, 1 + r): what every local program reads of an input."""
        one = x.new_ones(x.shape[0], 1)
        if not self.rank:
            return one
        return torch.cat([one, linear(x - self.mean.to(x.dtype), self.directions.to(x.dtype))], 1)

    def forward(self, x: Tensor, z: Tensor) -> Tensor:
        """phi (N, F) of inputs (N, d_in) and controls (N, d_z), in their precision."""
        use = self.use(z)
        return (use.unsqueeze(2) * self.read(x).unsqueeze(1)).flatten(1) if self.rank else use

    def numbers(self) -> int:
        """How many numbers the basis stores; what the seed draws again costs nothing."""
        if not self.needs_inputs:
            return 0
        return self.keys.numel() + self.directions.numel() + self.mean.numel()
