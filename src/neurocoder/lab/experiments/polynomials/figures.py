"""The figures of the polynomials experiment, after the paper's Figures 5 and 6."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter

from ...report import style
from ...report.figures import Curve, bar, curves, heat_map, legend, panel_figure

LOOKS = {
    "GRU": (style.PURPLE, "o"),
    "HyperNet": (style.VERMILION, "s"),
    "single-step (LSTM 2)": (style.SKY, "v"),
    "single-step (LSTM 3)": (style.BLUE, "^"),
    "multi-step": (style.GREEN, "D"),
}
"""Colour and marker of each model."""
CONTROL_LOOKS = {
    "GRU 16": (style.PURPLE, ":"),
    "GRU 8": (style.PURPLE, ":"),
    "single-step, one program": (style.BLUE, "--"),
    "multi-step, one program": (style.GREEN, "--"),
    "GRU, output times the scale of y": (style.BLACK, "--"),
    "GRU, learned output scale": (style.PURPLE, "--"),
    "GRU, output rate x100": ("0.45", "-."),
}
"""Colour and line of the models that the paper does not have."""
ORACLE = "best linear predictor, boundaries known"
SMALLEST = 1e-4
"""Distances of an AUC from 1 are drawn as at least this."""


@dataclass(frozen=True)
class Row:
    """One setting, with a panel for each model."""

    title: str
    curves: Mapping[str, Sequence[Curve]]
    """By model, one per seed."""
    oracle: Curve
    """What the best linear predictor reaches."""


class Speed(NamedTuple):
    """One setting, in a panel."""

    title: str
    curves: Mapping[str, Sequence[Curve]]
    """Iterations and R² by model, one per seed."""
    persistence: float
    floor: float


def middle(runs: Sequence[Curve]) -> Curve:
    """The median of the seeds at each x that all of them have."""
    shared = reduce(np.intersect1d, [run[:, 0] for run in runs])
    values = [run[np.isin(run[:, 0], shared), 1] for run in runs]
    return np.column_stack((shared, np.median(values, axis=0)))


@style.styled
def learning_curves(rows: Sequence[Row]) -> Figure:
    """A row of panels for each setting, a column for each model: its seeds and their median, and other models' medians
    in light grey. Axes are logarithmic; rows share theirs."""
    models = [model for model in LOOKS if any(model in row.curves for row in rows)]
    figure = style.new_figure(0.7 + 1.55 * len(rows))
    axes = figure.subplots(len(rows), len(models), sharex=True, sharey="row", squeeze=False)
    for row, line in zip(rows, axes, strict=True):
        medians = {model: middle(runs) for model, runs in row.curves.items()}
        values = np.concatenate([run[:, 1] for runs in row.curves.values() for run in runs])
        values = values[values > 0]  # an error above the floor may be negative by chance
        for model, axis in zip(models, line, strict=True):
            for other in medians.values():
                axis.plot(*other.T, color="0.8", linewidth=0.9, zorder=1)
            axis.plot(*row.oracle.T, color=style.BLACK, linestyle=":", linewidth=1.1, zorder=4)
            if model in medians:
                curves(axis, row.curves[model], medians[model], LOOKS[model][0], alpha=0.45)
            axis.set_yscale("log")
            axis.yaxis.set_minor_formatter(NullFormatter())
            axis.grid(axis="y")
            axis.set_xscale("log")
            axis.xaxis.set_major_formatter(lambda value, _: f"{value:,g}")
        low, high = values.min(initial=1.0) / 1.1, values.max(initial=1e-9) * 1.1
        line[0].set_ylim(low, high)
        if high < 30 * low:  # so few decades that powers of ten alone say little
            line[0].yaxis.set_major_locator(LogLocator(subs=(1, 1.5, 2, 3, 5, 7)))
            line[0].yaxis.set_major_formatter("{x:g}")
        line[0].set_ylabel(f"{row.title}, above the floor".replace(", ", "\n"))
    for model, axis in zip(models, axes[0], strict=True):
        axis.set_title(model.replace(" (", "\n("), color=LOOKS[model][0], fontweight="bold", fontsize=9)
    figure.supxlabel("iterations", fontsize=9)
    kinds = {"a seed": ("0.4", 0.6), "median": ("black", 1.6), "other models' medians": ("0.8", 0.9)}
    lines = [Line2D([], [], color=colour, linewidth=width) for colour, width in kinds.values()]
    lines.append(Line2D([], [], color=style.BLACK, linestyle=":", linewidth=1.1))
    figure.legend(lines, [*kinds, ORACLE], loc="outside upper left", ncols=4)
    return figure


@style.styled
def speed(panels: Sequence[Speed]) -> Figure:
    """R² against iterations, a panel for each setting: medians of the paper's models, and of the others, dashed."""
    figure, axes = panel_figure(len(panels), 3, 2.6, 1.3, sharey=True)
    looks = {model: (colour, "-") for model, (colour, _) in LOOKS.items()} | CONTROL_LOOKS
    for axis, shown in zip(axes, panels, strict=True):
        axis.axhspan(shown.floor, 1, color="0.85", linewidth=0)
        axis.axhline(shown.persistence, color=style.BLACK, linestyle=":", linewidth=1)
        for model, runs in shown.curves.items():
            colour, line = looks[model]
            axis.plot(*middle(runs).T, line, color=colour, linewidth=1.4 if model in LOOKS else 1, label=model)
        axis.set_xscale("log")
        axis.xaxis.set_major_formatter(lambda value, _: f"{value:,g}")
        axis.set_ylim(-0.02, 1)
        axis.grid(axis="y")
        axis.set_title(shown.title)
        axis.set_xlabel("iterations")
    axes[0].set_ylabel("$R^2$")
    legend(figure, axes, ncols=4)
    return figure


@style.styled
def attention_over_time(examples: Mapping[str, Mapping[str, Any]], points: int) -> Figure:
    """The attention over `M_U` of the first component, its change, prediction and target; lines separate the chunks.

    Args:
        examples: by model, a sequence as it sees it: `attention` (T, P), `y` (T,) and `prediction` (T,)
    """
    figure = style.new_figure(5.0)
    axes = figure.subplots(3, len(examples), squeeze=False, sharex="col", height_ratios=(1.2, 0.5, 1))
    for (upper, between, lower), (model, example) in zip(axes.T, examples.items(), strict=True):
        attention, y, prediction = (np.array(example[name]) for name in ("attention", "y", "prediction"))
        length, slots = attention.shape
        begins = np.arange(points, length, points)
        picture = heat_map(upper, attention.T, aspect="auto", extent=(-0.5, length - 0.5, slots + 0.5, 0.5))
        upper.vlines(begins - 0.5, 0.5, slots + 0.5, color="white", linestyle="--", linewidth=0.9)
        upper.yaxis.set_major_locator(MaxNLocator(5, integer=True))
        upper.set_title(model, color=LOOKS[model][0], fontweight="bold")
        bar(figure, picture, upper, aspect=18, label="attention $w^u$")
        change = np.linalg.norm(np.diff(attention, axis=0), axis=1)
        between.plot(np.arange(1, length), change / change.max(), color=style.BLACK, linewidth=1.2)
        for axis in (between, lower):
            for place in begins:
                axis.axvline(place - 0.5, color="0.6", linestyle="--", linewidth=0.9)
        for number, chunk in enumerate(np.split(np.arange(length), begins)):
            labels = ("", "") if number else ("target $y_t$", "prediction")
            lower.plot(chunk, y[chunk], color="0.7", linewidth=3.5, label=labels[0])
            lower.plot(chunk, prediction[chunk], color=style.BLACK, linewidth=1, label=labels[1])
        lower.set_xlabel("time $t$")
    for axis, label in zip(axes[:, 0], ("slot of $M_U$", "change", "$y$"), strict=True):
        axis.set_ylabel(label)
    figure.legend(*axes[2, 0].get_legend_handles_labels(), loc="outside lower left", ncols=2)
    return figure


SIGNALS = {
    "attention": "attention,\nfirst component",
    "attention_all": "attention,\nall components",
    "state": "state of the GRU",
    "surprise": "error of the\nlast prediction",
    "jump": "jump of $y$",
}
"""Signals whose change, or size, may mark a new chunk."""


@style.styled
def boundary_auc(panels: Mapping[str, Mapping[str, Mapping[str, Sequence[float]]]]) -> Figure:
    """How well each signal detects the beginnings of chunks: by setting, model and signal, one AUC per seed."""
    figure = style.new_figure(4.2)
    axes = figure.subplots(1, len(panels), sharex=True, sharey=True, squeeze=False)[0]
    models = [model for model in LOOKS if any(model in found for found in panels.values())]
    shifts = dict(zip(models, np.linspace(-0.3, 0.3, len(models)) if len(models) > 1 else [0.0], strict=True))
    signals = [signal for signal in SIGNALS if signal != "jump"]
    for axis, (title, found) in zip(axes, panels.items(), strict=True):
        for model, by_signal in found.items():
            colour, marker = LOOKS[model]
            for place, signal in enumerate(signals):
                if missed := [max(1 - value, SMALLEST) for value in by_signal.get(signal, ())]:
                    height = place + shifts[model]
                    axis.plot(missed, [height] * len(missed), ".", color=colour, ms=5, alpha=0.4)
                    axis.plot(np.median(missed), height, marker, color=colour, label=model)
        jump = 1 - next(iter(found.values()))["jump"][0]
        axis.axvline(jump, color=style.BLACK, linestyle=":", linewidth=1.1, label="jump of $y$ alone")
        axis.set_xscale("log")
        axis.set_yticks(range(len(signals)), [SIGNALS[signal] for signal in signals])
        axis.tick_params(axis="y", length=0)
        for edge in range(1, len(signals)):
            axis.axhline(edge - 0.5, color="0.85", linewidth=0.7)
        axis.grid(axis="x")
        axis.set_xlabel("1 - AUC")
        axis.set_title(title)
    axes[0].invert_yaxis()
    legend(figure, axes, [*models, "jump of $y$ alone"], ncols=len(models) + 1)
    return figure
