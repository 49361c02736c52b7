"""The equations of an exact layer as they are written: one sample, one slot, one number at a time. The test oracle."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from .config import ExactConfig
from .memory import SCALE


def features(config: ExactConfig, basis: dict[str, Tensor], x: Tensor, z: Tensor, constant: bool) -> Tensor:
    """`[phi(x, z), x, 1]` (M,) of one input (d_in,) and control (d_z,), from the buffers of `ExactMemory`."""
    phi: list[float] = []
    for i, key in enumerate(basis["keys"]):
        if config.features in ("local", "rbf"):
            distance = sum(float(a - b) ** 2 for a, b in zip(z, key, strict=True))
            use = SCALE * math.exp(-distance / (2 * float(basis["bandwidth"]) ** 2))
            phi.append(use)
            for direction in basis["directions"]:
                phi.append(use * sum(float(a * (b - m)) for a, b, m in zip(direction, x, basis["mean"], strict=True)))
        else:
            projected = sum(float(a * b) for a, b in zip(key, z, strict=True))
            is_relu = config.features == "relu"
            phi.append(max(0.0, projected) if is_relu else SCALE * math.cos(projected + float(basis["phase"][i])))
    phi += [float(value) for value in x] if config.residual else []
    return torch.tensor(phi + [1.0] * constant, dtype=torch.float64)


def weights(phi: Sequence[Tensor], y: Tensor, ridge: float) -> Tensor:
    """The ridge solution (M, C) for features (M,) of N samples and targets (N, C): least squares with the rows
    `sqrt(ridge) I` added, without normal equations."""
    design = torch.stack(list(phi))
    rows = torch.cat([design, math.sqrt(ridge) * torch.eye(design.shape[1], dtype=design.dtype)])
    return torch.linalg.lstsq(rows, torch.cat([y, y.new_zeros(design.shape[1], y.shape[1])]), driver="gelsd").solution


def gcv(phi: Sequence[Tensor], y: Tensor, ridge: float) -> float:
    """`n |(I - H) y|² / tr(I - H)²` with the hat matrix H (N, N) built."""
    design = torch.stack(list(phi))
    gram = design.mT @ design + ridge * torch.eye(design.shape[1], dtype=design.dtype)
    rest = torch.eye(len(design), dtype=design.dtype) - design @ torch.linalg.solve(gram, design.mT)
    return float(len(design) * (rest @ y).square().sum() / rest.trace() ** 2)
