"""The learners that are compared: exact layers with each kind of features, and what the field uses beside them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import neurocoder as nc

from ... import continual as cl

LEARNERS = {
    "local": "local programs, rank 32",
    "local-16": "local programs, rank 16",
    "rbf": "Gaussians (GKEAL)",
    "relu": "random ReLU (ACIL, RanPAC)",
    "fourier": "random Fourier features",
    "ridge": "ridge regression",
    "slda": "streaming LDA",
    "mean": "nearest class mean",
    "fecam": "FeCAM",
    "1nn": "1-NN over all samples",
    "1nn-4000": "1-NN over a reservoir of 4,000",
}
"""Names in variants, and in tables."""
RANKS = {"local": 32, "local-16": 16}
WIDTHS = {"rbf": 0.5, "fourier": 0.5}
"""Of the Gaussians, where they differ from the layer's default; chosen on held-out data."""


def make(
    name: str, d: int, classes: int, features: int, residual: bool, ridge: float | None, seed: int, device: Any
) -> Any:
    """A learner of inputs (N, d) with about so many features, if it has any."""
    if name in ("local", "local-16", "rbf", "relu", "fourier", "ridge"):
        kind = name.partition("-")[0] if name != "ridge" else "none"
        rank = min(RANKS.get(name, 32), d)
        slots = max(1, features // (rank + 1)) if kind == "local" else features
        config = nc.ExactConfig(
            features=kind,
            slots=slots,
            rank=rank,
            width=WIDTHS.get(name, nc.ExactConfig.width),
            ridge=ridge,
            residual=residual or kind == "none",
            seed=seed,
        )
        return nc.ExactLinear(d, classes, exact=config, device=device)
    simple: dict[str, Callable[[], Any]] = {
        "slda": lambda: cl.StreamingLDA(d, classes, device=device),
        "mean": lambda: cl.NearestMean(d, classes, device),
        "fecam": lambda: cl.FeCAM(d, classes, device=device),
        "1nn": lambda: cl.NearestNeighbours(d, classes, device=device),
        "1nn-4000": lambda: cl.NearestNeighbours(d, classes, capacity=4_000, seed=seed, device=device),
    }
    return simple[name]()
