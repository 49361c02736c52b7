"""The parts of a report, free of any format: sections of tables and figures."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Estimate:
    """A result of ours, one value per seed; reports print mean, standard deviation, n and 95% interval."""

    values: Sequence[float]
    digits: int = 2
    """Decimals to print."""
    lowest: float = -math.inf
    """The least that the quantity can be, such as 0 for an error: the interval is cut off there."""
    highest: float = math.inf
    """The most that it can be, such as 100 percent."""


class PairedDifference(Estimate):
    """A paired difference, one value per seed; printed with its sign, bold if its 95% interval excludes zero."""


Cell = str | int | float | None | Estimate
"""None is a blank: not measured, or not published. Integers get thousands separators, floats are the paper's."""


@dataclass(frozen=True)
class Table:
    """Rows of cells under headings."""

    title: str
    headings: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    caption: str = ""


class UndrawableError(Exception):
    """Raised by `Plot.draw`: what the figure needs is not at hand. The report leaves it out, and says why."""


@dataclass(frozen=True)
class Plot:
    """A figure that is drawn when a report is written."""

    name: str
    """Name of its files, without suffix."""
    caption: str
    draw: Callable[[], Figure]


@dataclass(frozen=True)
class Section:
    """What one part of the paper shows, and what we found: figures, text, then tables."""

    title: str
    text: Sequence[str] = ()
    """Paragraphs: what is measured. What was found is in tables and figures."""
    tables: Sequence[Table] = ()
    plots: Sequence[Plot] = ()
    page: str = ""
    """Of a part that has a page of its own, over all presets: what the name of its file adds to the experiment's."""
