"""The figures of the digits experiment, after the paper's Figure 4."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from ...report import style
from ...report.figures import bar, heat_map, means
from ...report.statistics import summary

CURVES = ((style.BLUE, "o"), (style.SKY, "^"), (style.GREEN, "s"))
LEVELS = ((style.PURPLE, "--"), (style.VERMILION, "-."))
SMALL = 4
"""Shares from this percentage on are written."""
APART = 0.14
"""Between the marks of two curves at the same J."""


@style.styled
def error_over_steps(
    curves: Mapping[str, Mapping[int, Sequence[float]]], levels: Mapping[str, Sequence[float]], measure: str
) -> Figure:
    """Error against J: curves with the errors of all seeds by J; horizontal lines for models without steps."""
    figure = style.new_figure(3.6)
    axis = figure.subplots()
    for place, ((label, curve), (colour, marker)) in enumerate(zip(curves.items(), CURVES, strict=False)):
        shift = APART * (place - (len(curves) - 1) / 2)
        x = [steps + shift for steps in curve]
        for at, values in zip(x, curve.values(), strict=True):
            axis.plot([at] * len(values), values, ".", color=colour, ms=4, alpha=0.35)
        means(axis, x, curve.values(), lowest=0, marker=marker, color=colour, linewidth=1, capsize=2.5, label=label)
    for (label, values), (colour, line) in zip(levels.items(), LEVELS, strict=False):
        low, high = summary(values).interval or (np.nan, np.nan)
        axis.axhspan(low, high, color=colour, alpha=0.15, linewidth=0)
        axis.axhline(float(np.mean(values)), color=colour, linestyle=line, label=label)
    axis.set_xlabel("steps $J$")
    axis.set_ylabel(f"{measure}, %")
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    axis.grid(axis="y")
    figure.legend(loc="outside right upper")
    return figure


@style.styled
def attention_grid(images: NDArray[Any], models: Mapping[str, Sequence[Any]], components: int) -> Figure:
    """An image of each digit, and below it each model's attention: slots downwards, components across.

    Args:
        images: (10, 28, 28)
        models: by title, mean attention over each digit's images (10, r, P)
        components: number of first components to show
    """
    heights = [0.8, *(0.35 + 0.07 * max(10, len(mean[0][0])) for mean in models.values())]
    figure = style.new_figure(sum(heights) + 0.2)
    axes = figure.subplots(1 + len(models), 10, height_ratios=heights, squeeze=False)
    for digit, axis in enumerate(axes[0]):
        axis.imshow(images[digit], cmap="gray_r")
        axis.set_axis_off()
    for row, (title, mean) in zip(axes[1:], models.items(), strict=True):
        attention = np.asarray(mean)[:, :components].swapaxes(1, 2)  # (10, P, components)
        slots, shown = attention.shape[1:]
        for axis, columns in zip(row, attention, strict=True):
            extent, limits = (0.5, shown + 0.5, slots + 0.5, 0.5), {"vmin": attention.min(), "vmax": attention.max()}
            picture = heat_map(axis, columns, **limits, aspect="auto", extent=extent)
            for edge in range(1, shown):
                axis.axvline(edge + 0.5, color="white", linewidth=1.5)
            axis.set_xticks(range(1, shown + 1))
            axis.set_yticks([])
        row[0].set_yticks([1, *range(5, slots + 1, 5)])
        row[0].set_ylabel(f"{title}\nslot of $M_U$")
        bar(figure, picture, list(row), fraction=0.05, aspect=9 + slots / 2, label="attention $w^u$")
    figure.supxlabel("component", fontsize=9)
    return figure


@style.styled
def path_shares(models: Mapping[str, Sequence[Sequence[int]]]) -> Figure:
    """Which share of each digit's images follows which path through the two patterns of each component.

    Args:
        models: by title, images by digit and path (10, 2^components)
    """
    figure = style.new_figure(3.4)
    axes = figure.subplots(1, len(models), sharey=True, squeeze=False)[0]
    for axis, (title, paths) in zip(axes, models.items(), strict=True):
        shares = 100 * np.asarray(paths) / np.sum(paths, axis=1, keepdims=True)
        picture = heat_map(axis, shares, cmap="Blues", vmin=0, vmax=100, aspect="auto")
        for (digit, path), share in np.ndenumerate(shares):
            if share >= SMALL:
                colour = "white" if share > 55 else "black"
                axis.text(path, digit, f"{share:.0f}", ha="center", va="center", color=colour)
        depth = shares.shape[1].bit_length() - 1
        names = [" ".join("AB"[path >> left & 1] for left in reversed(range(depth))) for path in range(1 << depth)]
        axis.set_xticks(range(len(names)), names)
        axis.set_yticks(range(10))
        axis.set_title(title)
    axes[0].set_ylabel("digit")
    figure.supxlabel("pattern in each component, the more frequent one is A", fontsize=9)
    bar(figure, picture, list(axes), label="share of the digit's images, %")
    return figure
