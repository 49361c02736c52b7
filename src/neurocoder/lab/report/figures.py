"""What several figures draw: panels in rows, means with intervals, curves of several seeds, maps, a common legend."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from numpy.typing import NDArray

from . import style
from .statistics import summary

Curve = NDArray[np.float64]
"""Rows of (x, y)."""


def panel_figure(
    count: int, columns: int, height: float, beside: float = 0.6, **options: Any
) -> tuple[Figure, list[Any]]:
    """A figure with panels in rows of so many columns, from left to right; the rest of the last row is empty.

    Args:
        height: of a row.
        beside: height of what is above and below all rows.
        options: of `Figure.subplots`.
    """
    rows = -(-count // columns)
    figure = style.new_figure(beside + height * rows)
    axes = [*figure.subplots(rows, columns, squeeze=False, **options).flat]
    for axis in axes[count:]:
        axis.remove()
    return figure, axes[:count]


def means(
    axis: Axes, x: Sequence[float], values: Iterable[Sequence[float]], lowest: float = -math.inf, **look: Any
) -> None:
    """A line through the means of the values (n, seeds) at each x (n,), with their 95% intervals; `lowest` as in
    `Estimate`."""
    summaries = [summary(at, lowest) for at in values]
    ends = [each.interval or (each.mean, each.mean) for each in summaries]
    reach = [[each.mean - low, high - each.mean] for each, (low, high) in zip(summaries, ends, strict=True)]
    axis.errorbar(x, [each.mean for each in summaries], np.transpose(reach), **look)


def curves(axis: Axes, runs: Sequence[Curve], centre: Curve, colour: str, line: str = "-", **thin: Any) -> None:
    """The seeds' curves as thin lines, and their centre, mean or median, as a thick one."""
    for run in runs:
        axis.plot(*run.T, color=colour, linewidth=0.6, **thin)
    axis.plot(*centre.T, line, color=colour, marker="o" if len(centre) == 1 else None)  # a point has no line


def heat_map(axis: Axes, values: Any, **options: Any) -> AxesImage:
    """An image without frame and tick marks."""
    axis.spines[:].set_visible(False)
    axis.tick_params(length=0)
    return axis.imshow(values, **{"cmap": style.MAP, **options})


def bar(figure: Any, image: AxesImage, axes: Any, **options: Any) -> None:
    """A colour bar without a frame."""
    figure.colorbar(image, ax=axes, pad=0.01, **options).outline.set_visible(False)


def legend(figure: Figure, axes: Iterable[Axes], order: Sequence[str] | None = None, **options: Any) -> None:
    """One legend for the labels of all axes, above them; `order`: of the labels, else as they come."""
    handles: dict[str, Any] = {}
    for axis in axes:
        handles |= dict(zip(*reversed(axis.get_legend_handles_labels()), strict=True))
    names = order or list(handles)
    figure.legend([handles[name] for name in names], names, loc="outside upper left", **options)
