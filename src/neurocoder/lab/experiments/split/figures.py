"""The figures of continual learning: accuracy after each task, the matrix of accuracies, slots by task."""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from ...report import style
from ...report.figures import bar, heat_map, legend, means, panel_figure

LOOKS = {
    "mlp": (style.PURPLE, "o"),
    "mlp-400": (style.VERMILION, "v"),
    "mlp-wide": (style.VERMILION, "*"),
    "stored-program": ("0.45", "x"),
    "neurocoder": (style.BLUE, "s"),
    "neurocoder-plain": (style.GREEN, "^"),
    "growing": (style.SKY, "D"),
    "growing-small": (style.BLACK, "P"),
}
"""Colour and mark of each model."""


@style.styled
def accuracy_curves(panels: Mapping[str, Mapping[str, Sequence[Sequence[float]]]]) -> Figure:
    """Average accuracy over the tasks so far, after each task.

    Args:
        panels: by method, then by model, one curve (tasks,) per seed
    """
    columns = -(-len(panels) // -(-len(panels) // 5))
    figure, axes = panel_figure(len(panels), columns, 2.1, sharex=True, sharey=True)
    for axis, (method, models) in zip(axes, panels.items(), strict=True):
        for model, curves in models.items():
            colour, mark = LOOKS[model]
            x = range(1, len(curves[0]) + 1)
            means(axis, x, zip(*curves, strict=True), color=colour, marker=mark, ms=4, capsize=2, label=model)
        axis.set_title(method)
        axis.grid(axis="y")
        axis.set_xticks(x)
    legend(figure, axes, ncols=5)
    figure.supxlabel("tasks learned", fontsize=9)
    figure.supylabel("average accuracy so far, %", fontsize=9)
    return figure


@style.styled
def matrices(panels: Mapping[str, NDArray[np.float64]]) -> Figure:
    """Accuracy after task i (row) on task j (column), the mean over seeds.

    Args:
        panels: by title, a matrix (tasks, tasks)
    """
    columns = min(6, len(panels))
    figure, axes = panel_figure(len(panels), columns, 1.9, beside=0.4)
    figure.set_figwidth(max(columns / 6, 0.4) * figure.get_figwidth())
    for axis, (title, matrix) in zip(axes, panels.items(), strict=True):
        picture = heat_map(axis, matrix, vmin=0, vmax=100)
        for (row, column), value in np.ndenumerate(matrix) if len(matrix) <= 6 else ():
            colour = "w" if value < 65 else "k"
            axis.text(column, row, f"{value:.0f}", ha="center", va="center", fontsize=7, color=colour)
        axis.set_title(title, fontsize=8.5)
        places = range(0, len(matrix), max(1, len(matrix) // 5))
        axis.set_xticks(places, [place + 1 for place in places])
        axis.set_yticks(places, [place + 1 for place in places])
    figure.supxlabel("evaluated on task", fontsize=9)
    figure.supylabel("after task", fontsize=9)
    bar(figure, picture, figure.axes, label="accuracy, %")
    return figure


@style.styled
def slot_use(panels: Mapping[str, NDArray[np.float64]]) -> Figure:
    """Which slots serve which task after the last one.

    Args:
        panels: by title, mean attention over the slots of M_U (tasks, P)
    """
    figure, axes = panel_figure(len(panels), 1, 1.15, beside=0.5)
    for axis, (title, use) in zip(axes, panels.items(), strict=True):
        picture = heat_map(axis, use, aspect="auto", vmin=0)
        axis.set_title(title, fontsize=9)
        axis.set_yticks(range(len(use)), range(1, len(use) + 1))
        axis.set_ylabel("task")
        bar(figure, picture, axis)
    axes[-1].set_xlabel("slot of $M_U$; colour: mean attention")
    return figure


@style.styled
def growing_slots(found: Mapping[str, Any], matrix: NDArray[np.float64]) -> Figure:
    """Which slots each task wrote and uses; below, if keys are images, each task's accuracies and keys.

    Args:
        found: `written` (tasks,), `use` (tasks, columns), `width` slots to a column, `keys`: for each task, images in
            base64, or none
        matrix: accuracy after task i (row) on task j (column) (tasks, tasks)
    """
    use, tasks = np.array(found["use"]), len(matrix)
    figure = style.new_figure(2.2 + (2.6 if found["keys"] else 0))
    upper, *lower = figure.subfigures(2 if found["keys"] else 1, 1, squeeze=False)[:, 0]
    axis = upper.subplots()
    extent = (0, use.shape[1] * found["width"], tasks + 0.5, 0.5)
    picture = heat_map(axis, use, aspect="auto", vmin=0, extent=extent)
    for place in np.cumsum(found["written"])[:-1]:
        axis.axvline(place, color="w", lw=1)
    axis.set_xlim(0, sum(found["written"]))
    axis.set_xlabel("slot, in order of writing")
    axis.set_ylabel("task")
    axis.set_yticks(range(1, tasks + 1) if tasks <= 10 else range(1, tasks + 1, 5))
    bar(upper, picture, axis, label="attention")
    if not lower:
        return figure
    axes = lower[0].subplots(3, tasks, height_ratios=[1.3, 1, 1], squeeze=False)
    for task, (top, *pictures) in enumerate(axes.T):
        top.plot(range(1, tasks + 1), matrix[:, task], color=style.SKY, marker="o", ms=3)
        top.axvline(task + 1, color="0.7", lw=1)
        top.set_ylim(0, 104)
        top.set_xticks(range(1, tasks + 1))
        top.set_title(f"task {task + 1}: {found['written'][task]} slots", fontsize=8.5)
        if task:
            top.set_yticklabels([])
        for row, panel in enumerate(pictures):
            panel.imshow(np.hstack([_image(key) for key in found["keys"][task][3 * row : 3 * row + 3]]), cmap="gray")
            panel.set_axis_off()
    axes[0, 0].set_ylabel("accuracy, %")
    return figure


@style.styled
def memory_sizes(panels: Mapping[str, Sequence[tuple[int, int, float, float]]]) -> Figure:
    """Accuracy against the size of a growing memory.

    Args:
        panels: by title, points (rank, parameters, accuracy, accuracy of the nearest key)
    """
    figure, axes = panel_figure(len(panels), len(panels), 3.2, beside=0)
    ranks = sorted({rank for points in panels.values() for rank, *_ in points})
    for axis, (title, points) in zip(axes, panels.items(), strict=True):
        for index, rank in enumerate(ranks):
            own = [point[1:] for point in points if point[0] == rank]
            colour = matplotlib.colormaps[style.MAP](0.9 * index / max(1, len(ranks) - 1))
            sizes, accuracies, nearest = zip(*own, strict=True) if own else ((), (), ())
            axis.plot(sizes, accuracies, color=colour, marker="o", ms=5, ls="none", label=f"rank {rank}")
            axis.plot(sizes, nearest, color=colour, marker="x", ms=5, ls="none", alpha=0.6)
        axis.set_xscale("log")
        axis.set_title(title)
        axis.set_xlabel("parameters and keys")
        axis.grid(axis="y")
    axes[0].set_ylabel("average accuracy, %")
    legend(figure, axes, ncols=6)
    return figure


def _image(key: str) -> NDArray[np.uint8]:
    """A square image from bytes in base64, with a dark column beside it."""
    pixels = np.frombuffer(base64.b64decode(key), np.uint8)
    side = math.isqrt(len(pixels))
    return np.pad(pixels.reshape(side, side), ((0, 0), (0, 1)))
