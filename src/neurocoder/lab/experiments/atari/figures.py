"""The figure of the Atari experiment, after the paper's Figure 7."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from ...report import style
from ...report.figures import Curve, panel_figure

LOOKS = {
    "plain": ("plain", style.PURPLE),
    "hyper": ("HyperNet", style.VERMILION),
    "neurocoder": ("Neurocoder", style.BLUE),
    "constant": ("one program", style.SKY),
    "scaled": ("plain, scaled", style.BLACK),
}
"""Name and colour of each kind of heads."""


def band(runs: Sequence[Curve]) -> tuple[Curve, Curve, Curve]:
    """Steps of the first seed that all have reached, and mean and standard deviation of the scores there; A3C's seeds
    log at slightly different steps, so between entries the scores are interpolated."""
    first, last = max(run[0, 0] for run in runs), min(run[-1, 0] for run in runs)
    steps = runs[0][:, 0]
    steps = steps[(steps >= first) & (steps <= last)]
    scores = np.array([np.interp(steps, run[:, 0], run[:, 1]) for run in runs])
    return steps, scores.mean(0), scores.std(0, ddof=1) if len(runs) > 1 else np.zeros(len(steps))


def _short(value: float, _: object = None) -> str:
    return f"{value / 1e6:g}M" if value >= 1e6 else f"{value / 1e3:g}K" if value >= 1e3 else f"{value:g}"


@style.styled
def learning_curves(panels: Mapping[str, Mapping[str, Sequence[Curve]]], frames: Mapping[str, int]) -> Figure:
    """A panel for each game: mean and standard deviation over seeds for each kind of heads.

    Args:
        panels: by game and heads, one curve per seed
        frames: of a step in each game
    """
    figure, axes = panel_figure(len(panels), min(2 if len(panels) == 4 else 3, len(panels)), 2.7)
    for axis, (game, found) in zip(axes, panels.items(), strict=True):
        for head, all_runs in found.items():
            if not (runs := [run for run in all_runs if len(run)]):  # no episode ended
                continue
            steps, mean, spread = band(runs)
            name, colour = LOOKS[head]
            axis.fill_between(steps, mean - spread, mean + spread, color=colour, alpha=0.2, linewidth=0)
            axis.plot(steps, mean, color=colour, label=f"{name}, {len(runs)} seed{'s' * (len(runs) > 1)}")
        axis.xaxis.set_major_formatter(FuncFormatter(_short))
        axis.set_xlabel("agent steps" + (f" of {frames[game]} frames" if frames[game] > 1 else ""))
        axis.grid(axis="y")
        if axis.lines:
            axis.legend(loc="best")
        axis.set_title(game)
    axes[0].set_ylabel("score of whole games")
    return figure
