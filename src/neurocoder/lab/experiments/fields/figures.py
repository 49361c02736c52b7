"""Figures of the images: quality against time, and pictures that the networks made."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from ...report import style
from ...report.figures import legend, means, panel_figure
from .pictures import Grid

COLOURS = {
    "core": style.BLUE,
    "core-shift": style.SKY,
    "diagonal": style.GREEN,
    "softmax": style.GREEN,
    "attention": style.SKY,
    "hyper": style.VERMILION,
    "low-rank": style.VERMILION,
    "basis": style.VERMILION,
    "patterns": style.VERMILION,
    "film": style.PURPLE,
    "shift": style.PURPLE,
    "concatenated": style.PURPLE,
}
LINES = dict.fromkeys(COLOURS, "-o") | {
    **{"softmax": "--D", "attention": "--v", "low-rank": "--s", "basis": ":^", "patterns": "-.P"},
    **{"shift": "--s", "concatenated": ":^", "core-shift": "--s"},
}
Points = Mapping[str, Sequence[tuple[float, Sequence[float]]]]
"""By contender: seconds, and the values of the seeds, at each length."""


def against_time(panels: Mapping[str, Points], titles: Mapping[str, str]) -> Figure:
    """A panel for each quantity."""
    figure, axes = panel_figure(len(panels), len(panels), 3.6)
    for axis, (name, points) in zip(axes, panels.items(), strict=True):
        for contender, own in points.items():
            if contender in COLOURS:
                seconds, values = [at for at, _ in own], [each for _, each in own]
                look: dict[str, Any] = {
                    "fmt": LINES[contender],
                    "color": COLOURS[contender],
                    "label": titles[contender],
                }
                means(axis, seconds, values, -math.inf, **look, capsize=2, markersize=4)
        axis.set(xscale="log", xlabel="seconds of training", ylabel=f"{name}, dB")
        axis.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.xaxis.set_major_formatter("{x:g}")
        axis.xaxis.set_minor_formatter(NullFormatter())
    legend(figure, axes, ncols=4)
    return figure


def grids(rows: Mapping[str, Grid]) -> Figure:
    """Pictures under each other, with their titles."""
    heights = [(style.WIDTH - 0.5) * grid.shape[0] / grid.shape[1] + 0.35 for grid in rows.values()]
    figure = style.new_figure(sum(heights))
    axes = figure.subplots(len(rows), 1, squeeze=False, height_ratios=heights)[:, 0]
    for axis, (title, grid) in zip(axes, rows.items(), strict=True):
        axis.imshow(grid, cmap="gray" if grid.ndim == 2 else None, interpolation="nearest")
        axis.set_title(title, loc="left")
        axis.set_axis_off()
    return figure
