"""Statistics over seeds: mean, spread, interval, and paired differences."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean, stdev
from typing import NamedTuple

from scipy.special import stdtrit  # type: ignore[import-untyped]  # scipy ships no type stubs

from ..records.record import Record


class Summary(NamedTuple):
    """Summary of n values; a single one has no spread and no interval."""

    n: int
    mean: float
    std: float | None
    """With n - 1 in the denominator."""
    interval: tuple[float, float] | None
    """95% interval of the mean, by Student's t."""


def summary(values: Sequence[float], lowest: float = -math.inf, highest: float = math.inf) -> Summary:
    """Summary of one finite value per seed; needs at least one. The interval is cut off at `lowest` and `highest`."""
    n, mean = len(values), fmean(values)
    if n == 1:
        return Summary(n, mean, None, None)
    std = stdev(values, mean)
    half = float(stdtrit(n - 1, 0.975)) * std / math.sqrt(n)
    return Summary(n, mean, std, (max(mean - half, lowest), min(mean + half, highest)))


def metric_by_seed(records: Iterable[Record], metric: str) -> dict[int, float]:
    """A metric after the last step of one variant's records that have it, ordered by seed."""
    return dict(sorted((r.seed, r.metrics[metric]) for r in records if metric in r.metrics))


def by_seed(records: Iterable[Record], variant: str, metric: str) -> dict[int, float]:
    """A variant's metric after the last step, ordered by seed."""
    return metric_by_seed((record for record in records if record.variant == variant), metric)


def differences(first: Mapping[int, float], second: Mapping[int, float]) -> list[float]:
    """First minus second for each seed that both have: effects of the seed alone cancel out."""
    return [first[seed] - second[seed] for seed in sorted(first.keys() & second.keys())]
