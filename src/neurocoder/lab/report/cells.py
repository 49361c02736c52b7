"""Table cells as text, the same in every format."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from .sections import Cell, Estimate, PairedDifference, Table
from .statistics import summary

BLANK = "–"
LEGEND = (
    "Ours: mean ± standard deviation over n seeds (95% t-interval of the mean, n); an interval ends where the quantity "
    "does, an error at 0 and an accuracy at 100%. Differences are paired by seed; bold: the 95% interval excludes "
    "zero. –: not measured or not stated."
)


def ours(cell: Estimate) -> tuple[str, str]:
    """The number, and what follows it in brackets."""
    broken = sum(not math.isfinite(value) for value in cell.values)
    if broken:
        return "not finite", f"({broken} of n={len(cell.values)})"
    if not cell.values:
        return BLANK, ""
    found, sign = summary(cell.values, cell.lowest, cell.highest), "+" if isinstance(cell, PairedDifference) else ""

    def number(value: float, sign: str = sign) -> str:
        return f"{value:{sign}z,.{cell.digits}f}"

    if found.std is None or found.interval is None:
        return number(found.mean), "(n=1)"
    low, high = map(number, found.interval)
    return f"{number(found.mean)} ± {number(found.std, '')}", f"({low} to {high}, n={found.n})"


def brief(values: Sequence[float], digits: int) -> str:
    """Mean ± standard deviation, for tables that give n elsewhere."""
    return ours(Estimate(values, digits))[0]


def excludes_zero(cell: Cell) -> bool:
    """Whether it is a difference whose 95% interval excludes zero."""
    if not isinstance(cell, PairedDifference) or len(cell.values) < 2 or not all(map(math.isfinite, cell.values)):
        return False
    low, high = summary(cell.values).interval or (0, 0)
    return low > 0 or high < 0


def text(cell: Cell) -> str:
    """A cell as text."""
    match cell:
        case None:
            return BLANK
        case Estimate():
            return " ".join(filter(None, ours(cell)))
        case int():
            return f"{cell:,}"
        case float():
            return f"{cell:.10g}"
    return cell


def numeric(table: Table, column: int) -> bool:
    """Whether a column holds numbers, which are aligned on the right. The first names the rows."""
    words = (row[column] for row in table.rows)
    return column > 0 and not any(isinstance(word, str) and re.search("[A-Za-z]{2}", word) for word in words)
