"""One look for all figures: sizes and fonts for a page, colours that colour-blind readers can tell apart."""

from __future__ import annotations

import functools
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any, ParamSpec

import matplotlib
from matplotlib.figure import Figure

from ..files import replacing

BLACK, PURPLE, VERMILION, BLUE, SKY, GREEN = "#000000", "#CC79A7", "#D55E00", "#0072B2", "#56B4E9", "#009E73"
"""From the palette of Okabe and Ito. In all figures Neurocoders are blue to green, other models purple and vermilion;
grey is context."""
MAP = "viridis"
"""Colour map of images: lightness grows with the value."""
WIDTH = 9.5
"""Of every figure, in inches."""

RC: Any = {  # Any: keys of matplotlib.rcParams, a long literal type of its own
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.labelsize": 9,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "legend.fontsize": 8.5,
    "legend.frameon": False,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.color": "0.88",
    "axes.axisbelow": True,
    "lines.linewidth": 1.6,
    "image.interpolation": "nearest",
    "figure.facecolor": "white",
}
METADATA: Any = {"svg": {"Date": None, "Creator": None}, "png": {"Software": None}}
"""No dates and no versions: the same figure gives the same bytes."""

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


def new_figure(height: float) -> Figure:
    """An empty figure. It has no window and need not be closed."""
    return Figure(figsize=(WIDTH, height), layout="constrained")


def render(figure: Figure, kind: str, dpi: int = 150) -> bytes:
    """A figure as the content of an `svg` or `png` file."""
    target = io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": "neurocoder"}):
        figure.savefig(target, format=kind, dpi=dpi, metadata=METADATA[kind])
    return target.getvalue()


def save(figure: Figure, target: Path, dpi: int = 150) -> None:
    """Write a figure atomically (PNG or SVG by its suffix)."""
    with replacing(target) as temporary:
        temporary.write_bytes(render(figure, target.suffix[1:], dpi))
