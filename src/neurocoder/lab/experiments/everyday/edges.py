"""The edge of each task and optimiser, by `neurocoder run everyday --preset rates`: from the plain network's validation
error with three other seeds at fifteen rates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean

TOLERANCE = 0.2
"""Training begins to fail where the error is so far, in logarithms, on the way from the best to the untrained one."""


RATES = ("edge/30", "edge/10", "edge/3", "edge")
"""Half decades, the last at the edge."""


def edge(found: Mapping[float, Sequence[float]]) -> float:
    """The largest rate whose mean error is within the tolerance: rate -> errors, one a seed. The smallest rate learns
    nothing."""
    means = {rate: fmean(values) for rate, values in found.items()}
    best, untrained = min(means.values()), means[min(means)]
    return max(rate for rate, mean in means.items() if mean <= best ** (1 - TOLERANCE) * untrained**TOLERANCE)


EDGES: Mapping[str, Sequence[float]] = {
    "mnist-300": (0, -1, -1.5, -1.5, 1),
    "mnist-2000": (-0.5, -1.5, -2, -2, -0.5),
    "mnist-raw": (-2.5, -3.5, -2.5, -2.5, -2),
    "mnist-noisy": (-0.5, -1.5, -2, -2, -1),
    "autoencoder": (0.5, -0.5, -2, -2, -1.5),
    "picture": (0, -0.5, -1.5, -1.5, -1),
    "friedman": (-0.5, -1, -1, -1, -0.5),
    "impedance": (-1, -2, -1, -1.5, -1),
    "few-linear": (0, -0.5, -1.5, -1.5, -1),
    "heavy-tails": (-1, -1.5, -1.5, -1.5, -0.5),
    "clusters": (0, -1, -1, -1, 0),
    "imbalanced": (0, -1, -1.5, -1.5, -0.5),
    "spirals": (0, -1, -1.5, -1.5, -0.5),
    "chessboard": (0, -1, -2, -2, -1),
    "rules": (0, -1, -1.5, -1.5, 0),
    "sums": (0, -1, -1.5, -1.5, -1),
    "languages": (-1, -1, -2, -2.5, -0.5),
    "next-byte": (0, -1, -1, -1, 0),
    "series": (-1, -1, -1, -1, -0.5),
    "pendulum": (-0.5, -1, -1.5, -1.5, -0.5),
}
"""log10 of the rates of sgd, momentum, adam, adamw and adagrad."""
