"""Tables of runs, and the cells that most of them have."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from ..records.record import Record
from .sections import Cell, Estimate, PairedDifference, Table
from .statistics import differences, metric_by_seed

Row = Mapping[str, Cell]
"""Cells by heading."""


def table(title: str, rows: Iterable[Row], caption: str = "") -> Table:
    """A table of rows that all have the same headings.

    Example:
        >>> table("Squares", ({"x": x, "x^2": x * x} for x in (2, 3)))
        Table(title='Squares', headings=['x', 'x^2'], rows=[[2, 4], [3, 9]], caption='')
    """
    rows = list(rows)
    return Table(title, [*rows[0]] if rows else [], [[*row.values()] for row in rows], caption)


def estimate(
    runs: Sequence[Record],
    metric: str,
    digits: int = 2,
    scale: float = 1,
    lowest: float = -math.inf,
    highest: float = math.inf,
) -> Estimate | None:
    """A metric of runs times a factor; None if there is no run with it. `lowest` and `highest` as in `Estimate`."""
    values = [scale * value for value in metric_by_seed(runs, metric).values()]
    return Estimate(values, digits, lowest, highest) if values else None


def paired(
    runs: Sequence[Record], others: Sequence[Record], metric: str, digits: int = 2, scale: float = 1
) -> PairedDifference | None:
    """A metric of runs minus that of others, times a factor; None if they have no seed in common."""
    values = [scale * value for value in differences(metric_by_seed(runs, metric), metric_by_seed(others, metric))]
    return PairedDifference(values, digits) if values else None
