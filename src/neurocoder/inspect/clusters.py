"""Inputs that share programs: k-means over the vectors that decide their programs, and how clear the groups are."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from ..layer.checks import whole

STILL = 1e-3
"""Vectors that differ by less than this share of their norm count as equal."""
ROUNDS, STARTS = 50, 4
"""Of k-means."""
SAMPLE = 2_000
"""Of more inputs than this, a fixed sample finds the groups."""


class Clusters(NamedTuple):
    """Inputs that share programs: k groups of N vectors, the largest first.

    Example:
        >>> found = nc.inspect.clusters(torch.tensor([[0.0], [0.1], [9.0]]))
        >>> found.groups, found.typical(0, 1), round(found.silhouette, 2)
        (tensor([0, 0, 1]), tensor([0]), 0.66)
    """

    groups: Tensor
    """Which group each input is in (N,)."""
    centres: Tensor
    """The mean vector of each group (k, D)."""
    distance: Tensor
    """Of each input to the centre of its group (N,); the smallest are the most typical ones."""
    silhouette: float
    """How clear the groups are, at most 1: from 0.5 on they are distinct, below 0.25 programs vary continuously."""

    def typical(self, group: int, count: int | None = None) -> Tensor:
        """The inputs nearest to the centre of a group, the nearest first (count,)."""
        members = (self.groups == group).nonzero().flatten()
        return members[self.distance[members].argsort(stable=True)][:count]


def _means(points: Tensor, groups: Tensor, count: int) -> Tensor:
    sums = points.new_zeros(count, points.shape[1]).index_add_(0, groups, points)
    return sums / groups.bincount(minlength=count).clamp(min=1).unsqueeze(1)


def _k_means(points: Tensor, count: int, generator: torch.Generator) -> tuple[Tensor, float]:
    """Groups (N,) and the sum of squared distances; the start spreads centres by their distance (k-means++)."""
    chosen = [int(torch.randint(len(points), (), generator=generator))]
    for _ in range(count - 1):
        nearest = torch.cdist(points, points[chosen]).amin(1) ** 2
        weight = nearest if nearest.sum() > 0 else torch.ones_like(nearest)
        chosen.append(int(torch.multinomial(weight, 1, generator=generator)))
    centres, groups = points[chosen], None
    for _ in range(ROUNDS):
        now = torch.cdist(points, centres).argmin(1)
        if groups is not None and torch.equal(now, groups):
            break
        groups, centres = now, _means(points, now, count)
    assert groups is not None
    return groups, float((points - centres[groups]).square().sum())


def silhouette(distances: Tensor, groups: Tensor) -> float:
    """How clear groups are: the mean over the inputs of

        (b - a) / max(a, b)

    with a the mean distance to the others of the own group, b that to the nearest other group. It is at most 1. An
    input that is alone in its group counts as 0; with a single group the result is 0.

    Args:
        distances: between all inputs (N, N).
        groups: which group each input is in (N,).

    Example:
        >>> points = torch.tensor([[0.0], [1.0], [4.0], [6.0]])
        >>> round(nc.inspect.silhouette(torch.cdist(points, points), torch.tensor([0, 0, 1, 1])), 3)
        0.654
    """
    groups = groups.unique(return_inverse=True)[1]
    sizes = groups.bincount().to(distances)
    if len(sizes) < 2:
        return 0.0
    sums = distances.new_zeros(len(groups), len(sizes)).index_add_(1, groups, distances)
    own = sizes[groups]
    a = sums.gather(1, groups.unsqueeze(1)).squeeze(1) / (own - 1).clamp(min=1)
    b = (sums / sizes).scatter(1, groups.unsqueeze(1), math.inf).amin(1)
    score = (b - a) / torch.maximum(a, b).clamp(min=torch.finfo(distances.dtype).tiny)
    return float(torch.where(own > 1, score, 0.0).mean())


def clusters(points: Tensor, count: int | None = None, most: int = 10) -> Clusters:
    """Groups of similar vectors, by k-means from fixed starts: the same vectors always give the same groups.

    Args:
        points: (N, D), such as `vectors(programs)`. Of more than 2,000, a fixed sample finds the groups and their
            silhouette; the others join the nearest group.
        count: how many groups; None: 2 to `most`, those with the largest mean silhouette, or one if all are equal.

    Example:
        >>> points = torch.cat([torch.randn(20, 4), 9 + torch.randn(12, 4)])
        >>> nc.inspect.clusters(points).groups.bincount()
        tensor([20, 12])
    """
    points = points.detach().to("cpu", torch.float32)
    if points.dim() != 2 or not len(points):
        raise ValueError(f"points must have shape (inputs, numbers), got {tuple(points.shape)}")
    if count is not None and (whole(count) is None or count > len(points)):
        raise ValueError(f"count must be a whole number in 1..{len(points)}, the inputs, got {count!r}")
    bad = int((~points.isfinite().all(1)).sum())
    if bad:
        raise ValueError(f"points must be finite, got {bad} of {len(points)} inputs with numbers that are not")
    mean = points.mean(0)
    spread = (points - mean).square().sum(1).mean().sqrt()
    equal = bool(spread <= STILL * mean.norm().clamp(min=1e-12))
    wanted = [count] if count is not None else [1] if equal else list(range(2, min(most, len(points) - 1) + 1)) or [1]
    groups, clearest = torch.zeros(len(points), dtype=torch.int64), 0.0
    if wanted != [1]:
        groups, clearest = _clearest(points, mean, wanted)
    order = groups.bincount().argsort(descending=True, stable=True)
    groups = order.argsort()[groups]
    centres = _means(points, groups, len(order))
    return Clusters(groups, centres, (points - centres[groups]).norm(dim=1), clearest)


def _clearest(points: Tensor, mean: Tensor, wanted: list[int]) -> tuple[Tensor, float]:
    """Of the groupings into so many groups, the one with the largest silhouette."""
    if points.shape[1] > len(points):  # fewer numbers with the same distances
        points = torch.linalg.qr((points - mean).double().mT, mode="r").R.mT.float()
    sample = torch.arange(len(points))
    if len(points) > SAMPLE:
        sample = torch.randperm(len(points), generator=torch.Generator().manual_seed(0))[:SAMPLE].sort().values
    grouped = points if max(wanted) > SAMPLE // 10 else points[sample]  # many groups need every input
    distances = torch.cdist(points[sample], points[sample])
    best: list[tuple[Tensor, float]] = []
    for count in wanted:
        generator = torch.Generator().manual_seed(0)
        groups, _ = min((_k_means(grouped, count, generator) for _ in range(STARTS)), key=lambda found: found[1])
        if len(grouped) < len(points):
            groups = torch.cdist(points, _means(grouped, groups, count)[groups.unique()]).argmin(1)
        groups = groups.unique(return_inverse=True)[1]  # without empty ones
        best.append((groups, silhouette(distances, groups[sample])))
    return max(best, key=lambda found: found[1])
