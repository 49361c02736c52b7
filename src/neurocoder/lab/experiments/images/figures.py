"""The figures of object recognition: learning curves, differences to the original network, images by program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from ...report import style
from ...report.figures import curves, heat_map, panel_figure
from ...report.statistics import summary

COLOURS = {
    "original": style.BLACK,
    "original, wider": "0.6",
    "mixture of experts": style.PURPLE,
    "stored programs": style.VERMILION,
}
OURS = (style.BLUE, style.SKY, style.GREEN)
DASHES = ("-", "--", ":", "-.")
LETTERS = 140
"""Letters that fit the width of a figure's legend; a line and the space around it take eight."""
CELL = 34
"""Pixels from one image to the next."""
FAR = 4.0
"""Points below the original from which a difference is a number at the edge, so that the others can be told apart."""


class Curve(NamedTuple):
    """A model's metric after each epoch, a row for each seed, and its test accuracy in the end if there is one."""

    seeds: Sequence[Sequence[float]]
    end: float | None = None


def columns_for(panels: int) -> int:
    """How many stand side by side: four are two rows of two."""
    return min(panels, 2 if panels in (2, 4) else 3)


@style.styled
def learning_curves(panels: Mapping[str, Mapping[str, Curve]], measure: str) -> Figure:
    """A panel for each data set and network: the mean over seeds as a line for each model, the seeds as thin ones.

    Args:
        panels: by title, the curve of each model.
        measure: what is shown, in words.
    """
    columns, lines = columns_for(len(panels)), max(title.count("\n") for title in panels)
    figure, axes = panel_figure(len(panels), columns, 2.7 + 0.15 * lines)
    looks = {name: (COLOURS[name], "-") for found in panels.values() for name in found if name in COLOURS}
    others = dict.fromkeys(name for found in panels.values() for name in found if name not in COLOURS)
    looks |= {name: (OURS[i % 3], DASHES[i // 3 % 4]) for i, name in enumerate(others)}
    for axis, (title, models) in zip(axes, panels.items(), strict=True):
        shown = []
        for place, (name, curve) in enumerate(models.items(), 1):
            colour, dash = looks[name]
            shortest = min(map(len, curve.seeds))
            seeds = np.array([seed[:shortest] for seed in curve.seeds])
            *runs, mean = (np.column_stack((np.arange(1, shortest + 1), y)) for y in (*seeds, seeds.mean(0)))
            curves(axis, runs if len(runs) > 1 else (), mean, colour, dash, alpha=0.3)
            if curve.end is not None:
                beside = shortest * (1 + 0.025 * place)  # so that equal ones do not hide each other
                axis.plot(beside, curve.end, "D", color=colour, ms=5, mec="white")
            shown += [seeds[:, shortest // 6 :].min(), seeds.max(), *([] if curve.end is None else [curve.end])]
        low, high = min(shown), max(shown)  # without the first epochs, which would flatten all the rest
        axis.set_ylim(low - 0.05 * (high - low) - 0.1, high + 0.05 * (high - low) + 0.1)
        axis.set_title(title)
        axis.set_xlabel("epoch")
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
        axis.grid(axis="y")
    for axis in axes[::columns]:
        axis.set_ylabel(f"{measure}, %")
    handles = [axes[0].plot([], [], dash, color=colour)[0] for colour, dash in looks.values()]
    figure.legend(handles, list(looks), loc="outside upper left", ncols=max(1, LETTERS // (8 + max(map(len, looks)))))
    return figure


@style.styled
def differences(panels: Mapping[str, Mapping[str, Sequence[float]]]) -> Figure:
    """Differences to the original network in pairs: each seed, their mean, and from three seeds on its 95% interval.

    Args:
        panels: by title, one difference per seed for each model; settings may follow a model's name.
    """
    rows = [len(models) for models in panels.values()]
    figure = style.new_figure(0.4 + sum(0.4 + 0.24 * count for count in rows))
    axes = figure.subplots(len(panels), 1, sharex=True, squeeze=False, height_ratios=rows)[:, 0]
    near = [0.5, -0.5]
    for axis, (title, models) in zip(axes, panels.items(), strict=True):
        for place, (name, values) in enumerate(models.items()):
            model = max((known for known in COLOURS if name.startswith(known)), key=len, default="")
            colour, found = COLOURS.get(model, style.BLUE), summary(values)
            if found.mean < -FAR:
                where = axis.get_yaxis_transform()  # across in parts of the axis
                axis.text(0.01, place, f"◂ {found.mean:+.1f}", color=colour, va="center", fontsize=8, transform=where)
                continue
            ends = found.interval if found.interval and found.n > 2 else ()
            axis.plot(ends, [place] * len(ends), color=colour, lw=1)
            axis.plot(values, [place] * len(values), "o", color=colour, ms=4, mfc="none", mew=0.8, alpha=0.7)
            axis.plot(found.mean, place, "D", color=colour, ms=5, mec="white")
            near += [*values, *ends]
        axis.axvline(0, color=style.BLACK, lw=0.8)
        axis.set_yticks(range(len(models)), list(models))
        axis.set_ylim(len(models) - 0.5, -0.5)
        axis.set_title(title)
        axis.grid(axis="x")
    low, high = max(min(near), -FAR), max(near)
    axes[0].set_xlim(low - 0.08 * (high - low), high + 0.04 * (high - low))
    axes[-1].set_xlabel("points above the original")
    return figure


@style.styled
def shared_programs(panels: Mapping[str, Sequence[tuple[str, NDArray[np.uint8]]]]) -> Figure:
    """A panel for each layer, with a row of images (n, 32, 32, 3) for each of its programs.

    Args:
        panels: by title, the label and the images of each program.
    """
    figure, axes = panel_figure(len(panels), columns_for(len(panels)), 1.4, beside=0)
    for axis, (title, programs) in zip(axes, panels.items(), strict=True):
        most = max(len(images) for _, images in programs)
        sheet = np.full((CELL * len(programs), CELL * most, 3), 255, np.uint8)
        for row, (_, images) in enumerate(programs):
            for column, image in enumerate(images):
                top, left, size = CELL * row, CELL * column, len(image)
                sheet[top : top + size, left : left + size] = image
        heat_map(axis, sheet, interpolation="none")
        axis.set_title(title)
        axis.set_xticks([])
        axis.set_yticks([CELL * (row + 0.5) for row in range(len(programs))], [label for label, _ in programs])
    return figure
