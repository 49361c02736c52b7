"""The figures of the digits experiment, after the paper's Figure 4."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from ..experiments.patterns import Turns
from . import style

Image = NDArray[Any]
FEW = 6
"""Up to this many columns are drawn apart."""
PATTERNS = (style.BLUE, style.VERMILION)
CURVES = ((style.BLUE, "o"), (style.GREEN, "^"), (style.PURPLE, "s"))
LEVELS = ((style.VERMILION, "--"), (style.BLACK, ":"))
"""Blue for steps and red for the linear classifier, as in the paper."""


@style.styled
def error_over_steps(
    curves: Mapping[str, Mapping[int, Sequence[float]]], levels: Mapping[str, Sequence[float]], measure: str
) -> Figure:
    """Error against J: curves with the errors of all seeds by J; horizontal lines for models without steps."""
    figure = style.new_figure(2.9, 4.6)
    axis = figure.subplots()
    for (label, curve), (colour, marker) in zip(curves.items(), CURVES, strict=False):
        style.spread(axis, list(curve), list(curve.values()), colour, label, marker)
    for (label, values), (colour, line) in zip(levels.items(), LEVELS, strict=False):
        style.level(axis, values, colour, label, line)
    axis.set_xlabel("steps $J$")
    axis.set_ylabel(f"{measure}, %")
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    axis.grid(axis="y")
    figure.legend(loc="outside upper left", ncols=2)
    return figure


@style.styled
def attention_grid(images: Image, models: Mapping[str, Sequence[Any]], components: int) -> Figure:
    """An image of each digit, and below it each model's attention: slots downwards, components across.

    Args:
        images: (10, 28, 28)
        models: by title, mean attention over each digit's images (10, r, P)
        components: number of first components to show
    """
    heights = [0.62, *(0.35 + 0.055 * max(10, len(mean[0][0])) for mean in models.values())]
    figure = style.new_figure(sum(heights) + 0.2)
    axes = figure.subplots(1 + len(models), 10, height_ratios=heights, squeeze=False)
    for digit, axis in enumerate(axes[0]):
        axis.imshow(images[digit], cmap="gray_r")
        axis.set_axis_off()
    for row, (title, mean) in zip(axes[1:], models.items(), strict=True):
        attention = np.asarray(mean)[:, :components].swapaxes(1, 2)
        for axis, columns in zip(row, attention, strict=True):
            picture = columns_of_slots(axis, columns, attention.min(), attention.max())
            numbered(axis.xaxis, columns.shape[1], most=10)
        numbered(row[0].yaxis, attention.shape[1])
        row[0].set_ylabel(f"{title}\nslot of $M_U$")
        bar = figure.colorbar(picture, ax=list(row), pad=0.01, fraction=0.05, aspect=9 + attention.shape[1] / 2)
        bar.outline.set_visible(False)
        bar.set_label("attention $w^u$")
    figure.supxlabel("component", fontsize=8)
    return figure


def columns_of_slots(axis: Axes, columns: Image, low: float, high: float) -> Any:
    """Attention vectors side by side (P, columns), on a common scale."""
    picture = axis.imshow(columns, cmap=style.MAP, vmin=low, vmax=high, aspect="auto")
    axis.tick_params(length=0)
    axis.set_yticks([])
    axis.spines[:].set_visible(False)
    if columns.shape[1] <= FEW:
        axis.set_xticks(np.arange(0.5, columns.shape[1] - 1), minor=True)
        axis.grid(which="minor", axis="x", color="white", linewidth=1.5)
        axis.tick_params(which="minor", length=0)
    return picture


def numbered(axis: Axis, count: int, most: int = 30) -> None:
    """Ticks numbered from 1: all if there are few; beyond `most` only every tenth."""
    step = 1 if count <= 5 else 5 if count <= most else 10
    shown = [1, *range(step, count + 1, step)] if step > 1 else list(range(1, count + 1))
    axis.set_ticks([number - 1 for number in shown], [str(number) for number in shown])


@style.styled
def pattern_columns(models: Mapping[str, Sequence[Mapping[str, Any]]]) -> Figure:
    """The patterns of each component, one column each, above the share of images that follow it.

    Args:
        models: by title, what `patterns.find` found for the first components
    """
    figure = style.new_figure(2.6)
    parts = figure.subfigures(1, len(models), squeeze=False)[0]
    for part, (title, components) in zip(parts, models.items(), strict=True):
        best = [component["best"] for component in components]
        values = np.concatenate([found["centres"] for found in best])
        widths = [max(4, len(found["share"])) for found in best]
        axes = part.subplots(1, len(best), width_ratios=widths, squeeze=False)[0]
        for n, (axis, component, found) in enumerate(zip(axes, components, best, strict=True)):
            picture = columns_of_slots(axis, np.asarray(found["centres"]).T, values.min(), values.max())
            shares = [f"{100 * share:.0f}" for share in found["share"]]
            axis.set_xticks(range(len(shares)), shares, fontsize=7 if len(shares) < 4 else 5.5)
            axis.set_title(f"component {n + 1}", fontsize=7)
            numbers = f"silh. {max(component['silhouettes']):.2f}\nexpl. {100 * found['explain']:.0f}%"
            axis.set_xlabel(numbers, fontsize=7)
        numbered(axes[0].yaxis, values.shape[1])
        axes[0].set_ylabel("slot of $M_U$")
        bar = part.colorbar(picture, ax=list(axes), pad=0.02, fraction=0.06, aspect=25)
        bar.outline.set_visible(False)
        bar.set_label("attention $w^u$")
        part.suptitle(title, fontsize=9)
    return figure


Node = tuple[int, ...]
"""The patterns taken on the way to it."""
ACROSS, DOWN, PICTURE, HEAD, LEFT = 1.35, 0.62, 0.36, 0.3, 0.5
"""The tree in inches: level spacing, a row of digits, a digit's image, the headings, the root's centre."""
ROW = 5
"""Digits per row in a leaf."""


@style.styled
def decision_tree(ways: Sequence[Turns], images: Image) -> Figure:
    """Which digits follow the same of two patterns, component by component.

    An edge shows the share of its digits' images that take this turn, among those that reached it; below each image is
    the share of the digit's images that take every turn.
    """
    paths = [way.patterns for way in ways]
    depth, leaves = len(paths[0]), sorted(set(paths))
    rows = {leaf: -(-paths.count(leaf) // ROW) for leaf in leaves}
    most = min(ROW, max(paths.count(leaf) for leaf in leaves))
    width, height = LEFT + ACROSS * depth + max(1.3, 0.2 + (PICTURE + 0.06) * most), DOWN * sum(rows.values()) + HEAD
    figure = Figure(figsize=(width, height))
    axis = figure.add_axes((0, 0, 1, 1))
    axis.set_axis_off()
    middles, top = {}, height - HEAD
    for leaf in leaves:
        middles[leaf] = top - DOWN * rows[leaf] / 2
        top -= DOWN * rows[leaf]
    places = place(leaves, middles)
    for node, (x, y) in places.items():
        below = [digit for digit, path in enumerate(paths) if path[: len(node)] == node]
        if node:
            share = float(np.mean([ways[digit].shares[len(node) - 1] for digit in below]))
            branch(axis, places[node[:-1]], (x, y), node[-1], len(below), share)
        if len(node) < depth:
            half = len(below) if len(below) < 6 else -(-len(below) // 2)
            lines = "\n".join(" ".join(map(str, digits)) for digits in (below[:half], below[half:]) if digits)
            frame = {"boxstyle": "round,pad=0.35", "facecolor": "white", "edgecolor": "0.4", "linewidth": 0.7}
            axis.text(x, y, lines, ha="center", va="center", fontsize=7, zorder=4, bbox=frame)
            continue
        for index, digit in enumerate(below):
            row, column = divmod(index, -(-len(below) // rows[node]))
            left = x + 0.06 + (PICTURE + 0.06) * column
            bottom = y + DOWN * ((rows[node] - 1) / 2 - row) - PICTURE / 2 + 0.06
            extent = (left, left + PICTURE, bottom, bottom + PICTURE)
            axis.imshow(images[digit], cmap="gray_r", extent=extent, zorder=4, aspect="auto")
            whole = f"{100 * ways[digit].whole:.0f}%"
            axis.text(left + PICTURE / 2, bottom - 0.03, whole, ha="center", va="top", fontsize=6)
    for level in range(depth):
        axis.text(LEFT + ACROSS * (level + 0.5), height - 0.12, f"component {level + 1}", ha="center", va="center")
    axis.text(LEFT + ACROSS * depth + 0.06, height - 0.12, "share on this path", va="center")
    for pattern, colour in enumerate(PATTERNS):
        axis.text(0.06, height - 0.12 - 0.14 * pattern, f"pattern {pattern + 1}", color=colour, va="center", fontsize=7)
    axis.set(xlim=(0, width), ylim=(0, height))
    return figure


def place(leaves: Sequence[Node], heights: Mapping[Node, float]) -> dict[Node, tuple[float, float]]:
    """The position of each node: a leaf at its height, an inner node midway between its children."""
    depth, y = len(leaves[0]), dict(heights)
    for level in reversed(range(depth)):
        for node in {leaf[:level] for leaf in leaves}:
            children = [y[child] for child in {leaf[: level + 1] for leaf in leaves} if child[:level] == node]
            y[node] = sum(children) / len(children)
    return {node: (LEFT + ACROSS * len(node), height) for node, height in y.items()}


def branch(
    axis: Axes, start: tuple[float, float], end: tuple[float, float], pattern: int, digits: int, share: float
) -> None:
    """An edge of the tree; its width grows with its number of digits."""
    (x0, y0), (x1, y1), colour = start, end, PATTERNS[pattern]
    axis.plot([x0, x1], [y0, y1], color=colour, linewidth=0.8 + 0.3 * digits, solid_capstyle="round", zorder=1)
    frame = {"boxstyle": "round,pad=0.15", "facecolor": "white", "edgecolor": "none"}
    at = (0.45 * x0 + 0.55 * x1, 0.45 * y0 + 0.55 * y1)
    axis.text(*at, f"{100 * share:.0f}%", color=colour, ha="center", va="center", fontsize=7, zorder=2, bbox=frame)
