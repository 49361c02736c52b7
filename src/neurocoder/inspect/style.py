"""One look for all figures: sizes and fonts for a page, colours that colour-blind readers can tell apart.

matplotlib is imported only when a figure is drawn.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ParamSpec

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BLUE, VERMILION = "#0072B2", "#D55E00"
"""From the palette of Okabe and Ito."""
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

Arguments = ParamSpec("Arguments")


def styled(draw: Callable[Arguments, Figure]) -> Callable[Arguments, Figure]:
    """A decorator: the function draws in the style of these figures, whatever the user's settings are.

    Example:
        >>> @nc.plot.styled
        ... def draw(values):
        ...     figure = Figure(figsize=(4, 3))
        ...     figure.subplots().plot(values)
        ...     return figure
        >>> figure = draw([1, 2, 4])
    """

    @functools.wraps(draw)
    def wrapper(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Figure:
        try:
            import matplotlib
        except ImportError:
            raise ImportError(f"the figure {draw.__name__!r} needs matplotlib: pip install matplotlib") from None
        with matplotlib.rc_context():
            matplotlib.rcdefaults()
            matplotlib.rcParams.update(RC)
            return draw(*args, **kwargs)

    return wrapper
