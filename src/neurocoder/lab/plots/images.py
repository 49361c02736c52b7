"""The figure of object recognition: learning curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from . import style

Histories = Sequence[Sequence[Mapping[str, float]]]
COLOURS = {"original": style.BLACK, "mixture of experts": style.PURPLE, "stored programs": style.VERMILION}
OURS = (style.BLUE, style.SKY, style.GREEN)
ACROSS = 3
"""Panels in a row."""


@style.styled
def learning_curves(panels: Mapping[str, Mapping[str, Histories]], measure: str) -> Figure:
    """A panel for each data set and network: a metric after each epoch, one line per model.

    Args:
        panels: by title, the histories of each model's runs.
        measure: which metric, in words.
    """
    rows, metric = -(-len(panels) // ACROSS), measure.replace(" ", "_")
    figure = style.new_figure(0.6 + 2.6 * rows)
    axes = figure.subplots(rows, min(ACROSS, len(panels)), squeeze=False)
    lines, others = {}, 0
    for axis, (title, models) in zip(axes.flat, panels.items(), strict=False):
        for model, histories in models.items():
            if model not in COLOURS and model not in lines:
                lines[model] = (OURS[others % 3], ("-", "--", ":", "-.")[others // 3 % 4])
                others += 1
            colour, dash = lines.setdefault(model, (COLOURS.get(model, style.BLACK), "-"))
            shortest = min(map(len, histories))
            curves = np.array([[entry[metric] for entry in history[:shortest]] for history in histories])
            axis.plot(np.arange(1, shortest + 1), curves.mean(0), dash, color=colour, marker=".", ms=3)
        axis.set_title(title)
        axis.set_xlabel("epoch")
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
        axis.grid(axis="y")
    for axis in axes.flat[len(panels) :]:
        axis.set_axis_off()
    for row in axes:
        row[0].set_ylabel(f"{measure}, %")
    handles = [axes.flat[0].plot([], [], dash, color=colour)[0] for colour, dash in lines.values()]
    figure.legend(handles, list(lines), loc="outside right upper")
    return figure
