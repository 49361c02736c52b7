"""One look for all figures: sizes and fonts for print, colours that colour-blind readers can tell apart."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ParamSpec

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ..files import replacing

BLACK, ORANGE, SKY, GREEN = "#000000", "#E69F00", "#56B4E9", "#009E73"
YELLOW, BLUE, VERMILION, PURPLE = "#F0E442", "#0072B2", "#D55E00", "#CC79A7"
"""The palette of Okabe and Ito."""
SERIES = (BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY, BLACK)
"""Colours of lines, in order; yellow is too pale for one."""
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
"""A marker beside each colour of `SERIES`, for print in black and white."""
MAP = "viridis"
"""Colour map of images: lightness grows with the value."""
WIDTH = 6.75
"""Text width of a full page, in inches."""

RC: Any = {  # Any: keys of matplotlib.rcParams, a long literal type of its own
    "font.size": 8,
    "axes.titlesize": 9,
    "axes.labelsize": 8,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "legend.fontsize": 7,
    "legend.frameon": False,
    "axes.linewidth": 0.7,
    "xtick.major.width": 0.7,
    "ytick.major.width": 0.7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": False,
    "grid.color": "0.88",
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "lines.linewidth": 1.4,
    "lines.markersize": 4,
    "image.interpolation": "nearest",
    "figure.facecolor": "white",
    "mathtext.fontset": "dejavusans",
}
SAVE: Any = {"svg.hashsalt": "neurocoder", "svg.fonttype": "none", "pdf.fonttype": 42}
"""The same figure gives the same file, and its text stays text."""

Arguments = ParamSpec("Arguments")


def styled(draw: Callable[Arguments, Figure]) -> Callable[Arguments, Figure]:
    """A decorator: the function draws in this style, whatever the user's settings are."""

    @functools.wraps(draw)
    def wrapper(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Figure:
        with matplotlib.rc_context():
            matplotlib.rcdefaults()
            matplotlib.rcParams.update(RC)
            return draw(*args, **kwargs)

    return wrapper


def new_figure(height: float, width: float = WIDTH) -> Figure:
    """An empty figure, in inches. It has no window and need not be closed."""
    return Figure(figsize=(width, height), layout="constrained")


def panel_title(axis: Axes, letter: str, title: str) -> None:
    """Such as `(a) test error`, at the left edge."""
    axis.set_title(f"$\\bf{{({letter})}}$ {title}", loc="left")


def spread(
    axis: Axes, x: Sequence[float], values: Sequence[Sequence[float]], colour: str, label: str, marker: str = "o"
) -> None:
    """A line through the means, a band of one standard deviation and a dot per seed.

    Args:
        values: for each x one value per seed; their number may differ.
    """
    means = np.array([np.mean(v) for v in values])
    deviations = np.array([np.std(v, ddof=1) if len(v) > 1 else 0.0 for v in values])
    axis.fill_between(x, means - deviations, means + deviations, color=colour, alpha=0.18, linewidth=0)
    axis.plot(x, means, color=colour, marker=marker, label=label, zorder=3)
    for place, found in zip(x, values, strict=True):
        axis.plot([place] * len(found), found, ".", color=colour, ms=3, alpha=0.45, zorder=2)


def level(axis: Axes, values: Sequence[float], colour: str, label: str, linestyle: str = "--") -> None:
    """A horizontal line at the mean of the seeds, with a band of one standard deviation."""
    mean, deviation = float(np.mean(values)), float(np.std(values, ddof=1)) if len(values) > 1 else 0.0
    axis.axhspan(mean - deviation, mean + deviation, color=colour, alpha=0.18, linewidth=0)
    axis.axhline(mean, color=colour, linestyle=linestyle, label=label)


def save(figure: Figure, target: Path, dpi: int = 200) -> None:
    """Write a figure atomically (PNG, SVG or PDF by its suffix)."""
    kind = target.suffix[1:]
    metadata = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(kind)
    with replacing(target) as temporary, matplotlib.rc_context(SAVE):
        figure.savefig(temporary, format=kind, dpi=dpi, metadata=metadata)
