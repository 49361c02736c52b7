"""The equations of an exact layer as they are written: one sample, one slot, one number at a time. The test oracle."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .config import ExactConfig
from .memory import SCALE


def features(config: ExactConfig, basis: dict[str, Tensor], x: Tensor, z: Tensor, constant: bool) -> Tensor:
    """`[phi(x, z), x, 1]` (M,) of one input (d_in,) and control (d_z,), from the buffers of `ExactMemory`."""
    phi: list[Tensor] = []
    for i, key in enumerate(basis["keys"]):
        distance, product, s = (z - key).square().sum(), (z * key).sum(), basis["bandwidth"]
        if config.features in ("local", "rbf"):
            use = SCALE * torch.exp(-distance / (2 * s**2))
            read = [a @ (x - basis["mean"]) for a in basis["directions"]]
        elif config.features == "relu":
            use, read = SCALE * torch.relu(product / math.sqrt(len(z))), []
        else:
            use, read = SCALE * torch.cos(product / s + basis["phase"][i]), []
        phi += [use, *(use * value for value in read)]
    phi += [*x] if config.residual else []
    return torch.stack([*phi, x.new_ones(())] if constant else phi)


def weights(phi: Tensor, y: Tensor, ridge: float) -> Tensor:
    """`(sum phi phi^T + ridge I)^-1 sum phi y^T` (M, C) for features (N, M) and targets (N, C)."""
    gram = sum(torch.outer(one, one) for one in phi) + ridge * torch.eye(phi.shape[1], dtype=phi.dtype)
    return torch.linalg.solve(gram, sum(torch.outer(one, target) for one, target in zip(phi, y, strict=True)))
