"""How well a signal inside the network detects where chunks begin.

The network is fed `(x_t, y_{t-1})`. The beginning of a chunk at t0 can show in the network at two times: at t0, since
chunks begin at the same x in every sequence and the network may learn where; and at t0 + 1, when the first y of the
chunk is fed. A good score is higher at these two times than in the rest of the chunk. The first chunk is left out: the
network starts there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata  # type: ignore[import-untyped]  # scipy ships no type stubs
from torch import Tensor

Scores = NDArray[np.float64]


def auc(positive: Scores, negative: Scores) -> float:
    """The chance that a positive scores higher than a negative, ties counted half; nan if either is empty."""
    if not len(positive) or not len(negative):
        return math.nan
    ranks = rankdata(np.concatenate((positive, negative)))[: len(positive)]
    return float((ranks.mean() - (len(positive) + 1) / 2) / len(negative))


def change(signal: Tensor) -> Scores:
    """Distance from the previous time step: (N, T, ...) -> (N, T), 0 at the first time."""
    distance = signal.diff(dim=1).flatten(2).norm(dim=-1).double().cpu().numpy()
    return np.pad(distance, ((0, 0), (1, 0)))


class Positions:
    """A score (N, T) by its position in chunks of `points` points, the first chunk left out."""

    def __init__(self, score: Scores, points: int) -> None:
        if points < 4 or score.shape[1] < 2 * points:
            raise ValueError(f"score must have two chunks of 4 points or more, got points={points}, {score.shape=}")
        self.chunks = score[:, points:].reshape(-1, points)
        self.pairs = self.chunks[:, : points // 2 * 2].reshape(len(self.chunks), -1, 2).max(-1)

    def either(self, which: NDArray[np.bool_] | slice = slice(None)) -> float:
        """AUC of the maximum over positions 0 and 1, of some chunks, against that over 2 and 3, 4 and 5, ... of all."""
        return auc(self.pairs[which, 0], self.pairs[:, 1:].ravel())


def judge(scores: Mapping[str, Scores], points: int) -> dict[str, dict[str, float]]:
    """How well each score (N, T) detects the beginnings of chunks; `jump` is among the scores.

    Returns:
        for each score the AUC `either` (its maximum over the first two points of a chunk), and `quiet` (the same at the
        half of the chunks where y jumps least)
    """
    jumps = Positions(scores["jump"], points)
    quiet = jumps.chunks[:, 1] <= np.median(jumps.chunks[:, 1])
    found = {name: Positions(score, points) for name, score in scores.items()}
    return {name: {"either": score.either(), "quiet": score.either(quiet)} for name, score in found.items()}
