"""Numbers over seeds: mean, spread, interval, and paired differences."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean, stdev
from typing import NamedTuple

from scipy.special import stdtrit  # type: ignore[import-untyped]  # scipy ships no type stubs

from .results import Record


class Summary(NamedTuple):
    """Of n values; a single one has no spread and no interval."""

    n: int
    mean: float
    std: float | None
    """With n - 1 in the denominator."""
    interval: tuple[float, float] | None
    """95% interval of the mean, by Student's t."""

    @property
    def sign(self) -> bool | None:
        """Whether the mean is above zero; None where the interval holds zero or cannot be had."""
        if self.interval is None or self.interval[0] <= 0 <= self.interval[1]:
            return None
        return self.mean > 0


def summary(values: Sequence[float]) -> Summary:
    """Of one value a seed, all finite; needs one at least."""
    n, mean = len(values), fmean(values)
    if n == 1:
        return Summary(n, mean, None, None)
    std = stdev(values, mean)
    half = float(stdtrit(n - 1, 0.975)) * std / math.sqrt(n)
    return Summary(n, mean, std, (mean - half, mean + half))


def by_seed(records: Iterable[Record], variant: str, metric: str) -> dict[int, float]:
    """A variant's metric after the last step, in the order of the seeds."""
    found = {r.seed: r.metrics[metric] for r in records if r.variant == variant and metric in r.metrics}
    return dict(sorted(found.items()))


def differences(first: Mapping[int, float], second: Mapping[int, float]) -> list[float]:
    """First minus second for each seed that both have: what the seed alone decides cancels out."""
    return [first[seed] - second[seed] for seed in sorted(first.keys() & second.keys())]
