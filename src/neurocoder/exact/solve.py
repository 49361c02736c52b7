"""Ridge regression from sums alone, with the ridge chosen by generalised cross-validation."""

from __future__ import annotations

import warnings
from typing import NamedTuple

import torch
from torch import Tensor

from .sums import Sums

RIDGES = 61
"""Candidates for the ridge, from 1e-12 to 1 times the largest eigenvalue of G. From 1e-10 on, Gaussians lose 0.4 points
on CLINC150 and 0.7 on MNIST (results/logs/exact_floor.txt); at a condition of 1e12 rounding is 1e-3 of the weights."""
SLACK, SMALL = 0.01, 1e-10
"""By how much the GCV score may exceed the least one where that makes the ridge smaller, down to this candidate.
Telling classes apart wants less shrinkage than squared error: on held-out CIFAR-100 2,000 random ReLU have 42.6%
instead of 40.2, local programs after 6,000 images 34.1 instead of 32.3; MNIST loses at most 0.3 points
(results/logs/exact_ridge.txt)."""
WORST_CONDITION = 1e13
"""Above this condition number, float64 leaves fewer than three digits of the weights."""


class Solution(NamedTuple):
    """What `solve` chose and found.

    Example:
        >>> head = nc.ExactLinear(4, 2, exact=nc.ExactConfig(features="none"))
        >>> head.observe(torch.randn(100, 4), torch.randn(100, 2))
        >>> solution = head.solve(ridge=1.0)
        >>> solution.ridge, 0 < solution.freedom < 5  # of 4 inputs and a constant
        (1.0, True)
    """

    ridge: float
    """Added to the diagonal of G."""
    condition: float
    """The condition number of G + ridge I: sums in another order, or after samples left, give weights that differ by
    about 1e-16 times it."""
    freedom: float
    """Effective degrees of freedom, tr G (G + ridge I)^-1."""
    error: float
    """The estimate of the mean squared error on new samples, by generalised cross-validation."""


def solve(sums: Sums, ridge: float | None) -> tuple[Tensor, Solution]:
    """`V = (G + ridge I)^-1 B` (M, C), by an eigendecomposition of G.

    With `ridge=None` the GCV score `n RSS / (n - tr H)²` decides (Golub, Heath & Wahba, 1979), where RSS and the trace
    of the hat matrix H follow from G, B and the sum of y²: the smallest candidate within `SLACK` of the least is taken.
    """
    values, axes = torch.linalg.eigh(sums.G.sum(0), UPLO="U")
    values, samples = values.clamp(min=0), sums.samples.sum()
    projected = axes.mT @ sums.B
    power = projected.square().sum(1)
    top = values[-1].clamp(min=1e-300)
    candidates = torch.logspace(-12, 0, RIDGES, dtype=torch.float64, device=values.device)
    ridges = top * candidates if ridge is None else top.new_tensor([ridge])
    shifted = values + ridges.unsqueeze(1)
    freedom = (values / shifted).sum(1)
    residual = sums.square.sum() - (power * (shifted + ridges.unsqueeze(1)) / shifted.square()).sum(1)
    room = samples - freedom
    score = samples * residual.clamp(min=0) / room.square()
    usable = torch.where(room > 1e-3 * samples, score, torch.inf)
    least = usable == usable.min()
    near = (usable <= (1 + SLACK) * usable.min()) & (candidates[-len(ridges) :] >= SMALL)
    best = int((least | near).int().argmax())
    condition = float((top + ridges[best]) / (values[0] + ridges[best]))
    if condition > WORST_CONDITION:
        warnings.warn(
            f"solve: float64 cannot take a condition number of {condition:.0e}: use a larger ridge", stacklevel=3
        )
    V = axes @ (projected / shifted[best].unsqueeze(1))
    return V.float(), Solution(float(ridges[best]), condition, float(freedom[best]), float(score[best]))
