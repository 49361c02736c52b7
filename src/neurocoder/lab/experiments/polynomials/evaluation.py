"""Evaluation of networks on held-out polynomial sequences: errors, and how well signals inside the network detect where
chunks begin.

The network is fed `(x_t, y_{t-1})`. The beginning of a chunk at t0 can show in the network at two times: at t0, since
chunks begin at the same x in every sequence and the network may learn where; and at t0 + 1, when the first y of the
chunk is fed. A good score is higher at these two times than in the rest of the chunk. The first chunk is left out: the
network starts there.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import rankdata  # type: ignore[import-untyped]  # scipy ships no type stubs
from torch import Tensor, nn

import neurocoder as nc

from .data import Family, generator, network_input
from .models import Regressor

PART = 256
"""Sequences per forward pass: a program layer keeps about r * P numbers per point."""
Scores = NDArray[np.float64]
"""(N, T)"""


class HeldOut:
    """Fixed sequences on the device: the same for every model, seed and device."""

    def __init__(self, family: Family, count: int, validation: bool, device: torch.device) -> None:
        sample = family.sample(count, generator("validation" if validation else "test", 0))
        self.family, self.floor = family, family.realised_floor(sample)
        self.y = sample.y.to(device)
        self.inputs = network_input(family.places().to(device, torch.float32), self.y)
        self.first = family.first_points().to(device)
        self.mean_square = self.y.double().square().mean()

    def errors(self, predictions: Tensor) -> Tensor:
        """Square errors (N, T)."""
        return (predictions.double() - self.y).square()

    def persistence(self) -> float:
        """R² of predicting `y_{t-1}`, the number that the network is fed."""
        mse = self.errors(self.inputs[..., 1]).mean()
        return 1 - (mse / self.mean_square).item()

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """Mean square error; the same above the first-point floor; at the first points of chunks and at the rest; and
        `r2 = 1 - mse / mean(y^2)`, which does not depend on the scale of y."""
        by_time = self.errors(torch.cat([model(part) for part in self.inputs.split(PART)])).mean(0)
        means = by_time.mean(), by_time[self.first].mean(), by_time[~self.first].mean()
        mse, first, rest = torch.stack(means).tolist()
        r2 = 1 - mse / self.mean_square.item()
        return {"mse": mse, "above_floor": mse - self.floor, "first_points": first, "rest": rest, "r2": r2}

    def observe(self, model: nn.Module) -> dict[str, Any]:
        """How well signals detect the beginnings of chunks, and an example."""
        assert isinstance(model, Regressor)
        predictions: list[Tensor] = []
        scores: defaultdict[str, list[Scores]] = defaultdict(list)
        attention = None
        for part in self.inputs.split(PART):
            states = model.states(part)
            predictions.append(model.output(states).squeeze(-1))
            scores["state"].append(change(states))
            if isinstance(model.output, nc.Linear):
                u = model.output.programs(states).u  # (N, T, r, P)
                scores["attention"].append(change(u[:, :, 0]))
                scores["attention_all"].append(change(u))
                attention = u[0, :, 0] if attention is None else attention
        prediction = torch.cat(predictions)
        scores["jump"] = [change(self.inputs[..., 1:])]
        scores["surprise"] = [self.errors(prediction).sqrt().roll(1, dims=1).cpu().numpy()]
        return {
            "boundaries": boundary_auc({name: np.concatenate(s) for name, s in scores.items()}, self.family.points),
            "floor": self.floor,
            "example": {
                "y": rounded(self.y[0]),
                "prediction": rounded(prediction[0]),
                "attention": None if attention is None else rounded(attention),
            },
        }


def boundary_auc(scores: Mapping[str, Scores], points: int) -> dict[str, dict[str, float]]:
    """How well each score (N, T) detects the beginnings of chunks of `points` points; `jump` is among the scores.

    Returns:
        for each score the AUC `either` (its maximum over the first two points of a chunk), and `quiet` (the same at the
        half of the chunks where y jumps least)
    """
    jumps = in_chunks(scores["jump"], points)[:, 1]
    small_jumps = jumps <= np.median(jumps)
    found = {}
    for name, score in scores.items():
        chunks = in_chunks(score, points)
        found[name] = {"either": auc_first_two(chunks), "quiet": auc_first_two(chunks, small_jumps)}
    return found


def in_chunks(score: Scores, points: int) -> Scores:
    """A score (N, T) by its position in chunks of `points` points, the first chunk left out: (N * chunks, points)."""
    if points < 4 or score.shape[1] < 2 * points:
        raise ValueError(f"score must have two chunks of 4 points or more, got points={points}, {score.shape=}")
    return score[:, points:].reshape(-1, points)


def auc_first_two(chunks: Scores, which: NDArray[np.bool_] | slice = slice(None)) -> float:
    """AUC of the maximum over positions 0 and 1, of some chunks, against that over 2 and 3, 4 and 5, ... of all."""
    points = chunks.shape[1]
    pairs = chunks[:, : points // 2 * 2].reshape(len(chunks), -1, 2).max(-1)
    return auc(pairs[which, 0], pairs[:, 1:].ravel())


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


def rounded(values: Tensor) -> list[Any]:
    """Rounded for a readable record, finely, since attention changes little from one time to the next."""
    return np.round(values.double().cpu().numpy(), 6).tolist()
