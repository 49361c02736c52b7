"""The figures of the polynomials experiment, after the paper's Figures 5 and 6."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullFormatter
from numpy.typing import NDArray

from . import style

LOOKS = {
    "GRU": (style.GREEN, "o", "-"),
    "HyperNet": (style.VERMILION, "s", "-"),
    "single-step (LSTM 2)": (style.ORANGE, "v", "--"),
    "single-step (LSTM 3)": (style.ORANGE, "^", "-"),
    "multi-step": (style.BLUE, "D", "-"),
}
"""Colour, marker and line of each model, in the paper's colours where possible."""
ORACLE = "best linear predictor, boundaries known"

Curves = Mapping[str, Sequence[NDArray[Any]]]
"""By model, one curve per seed: rows of (x, y)."""


@dataclass(frozen=True)
class Panel:
    """One setting."""

    title: str
    curves: Curves
    oracle: NDArray[Any]
    """What the best linear predictor reaches: rows of (x, y), or one number."""


@style.styled
def learning_curves(panels: Sequence[Panel]) -> Figure:
    """Error above the floor against training iterations, a panel for each setting."""
    figure = style.new_figure(2.5)
    axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    bottom = lowest(panels) / 2
    for letter, axis, panel in zip("abc", axes, panels, strict=False):
        for model, runs in panel.curves.items():
            band(axis, model, runs)
        if panel.oracle > bottom:  # else it is far below, and showing it would squeeze the curves
            axis.axhline(float(panel.oracle), color=style.BLACK, linestyle=":", linewidth=1, label=ORACLE)
        axis.set_xscale("log")
        axis.set_yscale("log")
        axis.set_ylim(bottom=bottom)
        axis.xaxis.set_major_formatter(lambda value, _: f"{value:,g}")
        axis.xaxis.set_minor_formatter(NullFormatter())
        axis.set_xlabel("iterations")
        axis.grid(axis="y")
        style.panel_title(axis, letter, panel.title)
    axes[0].set_ylabel("error above the floor")
    legend(figure, axes)
    return figure


@style.styled
def error_by_position(panels: Sequence[Panel]) -> Figure:
    """Mean square error at each position in the chunk, a panel for each setting."""
    figure = style.new_figure(2.5)
    axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for letter, axis, panel in zip("abc", axes, panels, strict=False):
        axis.plot(*panel.oracle.T, color=style.BLACK, linestyle=":", linewidth=1, label=ORACLE)
        for model, runs in panel.curves.items():
            band(axis, model, runs, markers=True)
        axis.set_yscale("log")
        axis.set_ylim(bottom=lowest(panels) / 3)
        positions(axis, len(panel.oracle))
        axis.grid(axis="y")
        style.panel_title(axis, letter, panel.title)
    axes[0].set_ylabel("mean square error")
    legend(figure, axes)
    return figure


def lowest(panels: Sequence[Panel]) -> float:
    """The smallest positive value of all models; errors above the floor can be negative by chance."""
    values = np.concatenate([run[:, 1] for panel in panels for runs in panel.curves.values() for run in runs])
    return float(values[values > 0].min(initial=1.0))


def positions(axis: Axes, points: int) -> None:
    """The axis of positions in the chunk, counted from 1."""
    axis.set_xticks([1, *range(5, points + 1, 5)])
    axis.set_xlabel("position in the chunk")


def band(axis: Axes, model: str, runs: Sequence[NDArray[Any]], markers: bool = False) -> None:
    """The mean of the seeds' curves, and their range shaded. Curves are cut to their common length."""
    colour, marker, line = LOOKS[model]
    length = min(map(len, runs))
    values = np.stack([run[:length, 1] for run in runs])
    x = runs[0][:length, 0]
    axis.fill_between(x, values.min(0), values.max(0), color=colour, alpha=0.18, linewidth=0)
    axis.plot(x, values.mean(0), color=colour, linestyle=line, marker=marker if markers else "", ms=2.5, label=model)


def legend(figure: Figure, axes: Sequence[Axes]) -> None:
    """One legend for all panels, above them."""
    known: dict[str, Any] = {}
    for axis in axes:
        known |= dict(zip(*reversed(axis.get_legend_handles_labels()), strict=True))
    order = [name for name in (*LOOKS, ORACLE) if name in known]
    figure.legend([known[name] for name in order], order, loc="outside upper left", ncols=min(len(order), 3))


@dataclass(frozen=True)
class Example:
    """A sequence as one model sees it."""

    title: str
    attention: NDArray[Any]
    """w^u of the first component (T, P)."""
    y: NDArray[Any]
    prediction: NDArray[Any]


@style.styled
def attention_over_time(examples: Sequence[Example], points: int) -> Figure:
    """The attention over `M_U` of the first component, its change, prediction and target; lines separate the chunks."""
    figure = style.new_figure(4.2)
    axes = figure.subplots(3, len(examples), squeeze=False, sharex="col", height_ratios=(1.2, 0.5, 1))
    for letter, column, example in zip("abcdef", axes.T, examples, strict=False):
        upper, middle, lower = column
        length, slots = example.attention.shape
        begins = np.arange(points, length, points)
        edges = (-0.5, length - 0.5, slots + 0.5, 0.5)
        picture = upper.imshow(example.attention.T, cmap=style.MAP, aspect="auto", extent=edges)
        upper.vlines(begins - 0.5, 0.5, slots + 0.5, color="white", linestyle="--", linewidth=0.9)
        upper.yaxis.set_major_locator(MaxNLocator(5, integer=True))
        upper.spines[:].set_visible(False)
        upper.tick_params(length=0)
        bar = figure.colorbar(picture, ax=upper, pad=0.01, aspect=18)
        bar.outline.set_visible(False)
        bar.set_label("attention $w^u$")
        change = np.linalg.norm(np.diff(example.attention, axis=0), axis=1)
        middle.plot(np.arange(1, length), change / change.max(), color=style.PURPLE, linewidth=1)
        for axis in (middle, lower):
            for place in begins:
                axis.axvline(place - 0.5, color=style.GREEN, linestyle="--", linewidth=0.9)
        for chunk in np.split(np.arange(length), begins):
            lower.plot(chunk, example.y[chunk], color=style.BLUE, linewidth=2, label="$y_t$")
            lower.plot(chunk, example.prediction[chunk], color=style.ORANGE, linewidth=1.1, label="prediction")
        lower.set_xlabel("time $t$")
        style.panel_title(upper, letter, example.title)
    for axis, label in zip(axes[:, 0], ("slot of $M_U$", "its change", "$y$"), strict=True):
        axis.set_ylabel(label)
    handles, labels = axes[2, 0].get_legend_handles_labels()
    axes[2, 0].legend(handles[:2], labels[:2], loc="lower left")
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
    figure = style.new_figure(3.2)
    axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    least = min(v for models in panels.values() for signals in models.values() for s in signals.values() for v in s)
    for letter, axis, (title, models) in zip("abc", axes, panels.items(), strict=False):
        shifts = np.linspace(-0.32, 0.32, len(models)) if len(models) > 1 else np.zeros(1)
        for shift, (model, signals) in zip(shifts, models.items(), strict=True):
            colour, marker, line = LOOKS[model]
            face = "white" if line == "--" else colour
            for place, signal in enumerate(SIGNALS):
                values = signals.get(signal, ())
                if values and signal != "jump":
                    axis.plot(values, [place + shift] * len(values), ".", color=colour, ms=3, alpha=0.45)
                    mean = float(np.mean(values))
                    axis.plot(mean, place + shift, marker, color=colour, mfc=face, ms=4.5, label=model)
        jump = next(iter(models.values()))["jump"][0]
        axis.plot(jump, len(SIGNALS) - 1, "*", color=style.BLACK, ms=7)
        axis.axvline(jump, color=style.BLACK, linestyle=":", linewidth=0.8)
        axis.set_yticks(range(len(SIGNALS)), list(SIGNALS.values()))
        axis.set_xlim(min(0.5, least - 0.03), 1.01)
        axis.grid(axis="x")
        axis.set_xlabel("AUC")
        style.panel_title(axis, letter, title)
    axes[0].invert_yaxis()
    legend(figure, axes)
    return figure


@style.styled
def reactions(panels: Mapping[str, Mapping[str, Sequence[NDArray[Any]]]]) -> Figure:
    """How much a signal changes at each position in the chunk, relative to its mean from the third position on.

    Args:
        panels: by title, by model, the change at each position for each seed
    """
    figure = style.new_figure(2.3)
    axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for letter, axis, (title, models) in zip("abc", axes, panels.items(), strict=False):
        for model, runs in models.items():
            relative = [np.column_stack((np.arange(1, len(run) + 1), run / run[2:].mean())) for run in runs]
            band(axis, model, relative, markers=True)
        axis.axhline(1, color="0.6", linewidth=0.7)
        positions(axis, len(next(iter(models.values()))[0]))
        axis.grid(axis="y")
        style.panel_title(axis, letter, title)
    axes[0].set_yscale("log")
    axes[0].set_ylabel("change, relative")
    legend(figure, axes)
    return figure
