"""How often a kind of layer is worse than the plain one, and by how much."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean, stdev

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from ...records.record import Record
from ...report import style
from ...report.figures import legend, panel_figure
from ...report.sections import Plot, Section
from ...report.tables import table
from .edges import RATES, TOLERANCE, edge
from .models import CONTENDERS, MATCHED
from .stacked import OPTIMISERS
from .tasks import TASKS

MARGIN, ERRORS = 1.05, 2.0
"""Worse: the mean is larger by more than 5%, and by more than two standard errors of the paired difference."""
TWICE, SHARE = 2, 0.03
"""Core layers are asked to be worse in at most so many times the cells of chance, or in this share of all."""
FAR = 1.5
"""Far worse: the mean is larger by half."""
LEAST = 1e-3
"""Errors below count as this."""
WORST = 8
"""Cells to look into."""

Errors = Mapping[str, Mapping[str, Sequence[float]]]
"""By task and contender: cell -> test errors, one a seed."""


@dataclass(frozen=True)
class Comparison:
    """One cell of a contender against the plain network's."""

    task: str
    cell: str
    ours: Sequence[float]
    plain: Sequence[float]

    @property
    def ratio(self) -> float:
        """Of the means."""
        return fmean(self.ours) / fmean(self.plain)

    @property
    def clear(self) -> bool:
        """Whether the mean difference is more than two standard errors; a seed has the same start and batches."""
        differences = [own - plain for own, plain in zip(self.ours, self.plain, strict=True)]
        spread = stdev(differences) / math.sqrt(len(differences)) if len(differences) > 1 else 0.0
        return abs(fmean(differences)) > ERRORS * spread

    @property
    def worse(self) -> bool:
        """By more than the margin and two standard errors of the difference."""
        return self.clear and self.ratio > MARGIN

    @property
    def better(self) -> bool:
        """The reverse."""
        return self.clear and self.ratio < 1 / MARGIN


def cells(records: Sequence[Record]) -> dict[str, dict[str, dict[str, list[float]]]]:
    """Test errors by contender, task and cell, in the order of the seeds."""
    found: dict[str, dict[str, dict[str, list[float]]]] = {}
    for record in sorted(records, key=lambda record: record.seed):
        task, _, contender = record.variant.rpartition("-")
        own = found.setdefault(contender, {}).setdefault(task, {})
        for cell, value in record.metrics.items():
            own.setdefault(cell, []).append(max(value, LEAST))
    return found


def comparisons(found: Mapping[str, Errors], contender: str, against: str = "plain") -> Iterator[Comparison]:
    """A contender's cells beside those of another one."""
    for task, own in found.get(contender, {}).items():
        other = found.get(against, {}).get(task, {})
        for cell in own.keys() & other.keys():
            yield Comparison(task, cell, own[cell], other[cell])


def geometric(ratios: Sequence[float]) -> float | None:
    """The geometric mean; None of nothing."""
    return math.exp(fmean(map(math.log, ratios))) if ratios else None


def sections(records: Sequence[Record]) -> list[Section]:
    """Counts by kind of layer, by optimiser and task, and the worst cells; or the edges, where rates were sought."""
    if any(record.config["grid"] for record in records):
        return [edges(records)]
    found = cells(records)
    against = {name: sorted(comparisons(found, name), key=lambda c: -c.ratio) for name in CONTENDERS if name != "plain"}
    against = {name: compared for name, compared in against.items() if compared}
    if not against:
        return []
    tables = [
        table("Cells", (totals(name, compared, found) for name, compared in against.items())),
        table("Worse cells of each optimiser", (by_optimiser(name, compared) for name, compared in against.items())),
        table("Geometric mean of the error over the plain network's", by_task(against)),
        table("The largest ratios", worst(against)),
    ]
    text = [
        "A cell is a task, an optimiser and a rate; 200 steps of 32 samples, five seeds. Worse: the mean test error "
        "is larger than the plain network's by more than 5% and two standard errors of the difference, paired by seed; "
        "better: the reverse. Cells of a task share its data, so they are not independent, and at low rates some cells "
        "learn little, which makes them alike. The edge is the largest rate at which the plain "
        f"network's validation error is at most {TOLERANCE:.0%} of the way, in logarithms, from its best to that of no "
        "training."
    ]
    if {"core", "noise"} <= against.keys():
        text.append(asked(against["core"], against["noise"]))
    draw = Plot(
        "ratios", "Test error over the plain network's, in every cell; a line a kind.", partial(figure, against)
    )
    return [Section("Beside the plain network", text, tables, [draw])]


def asked(core: Sequence[Comparison], noise: Sequence[Comparison]) -> str:
    """Whether core layers are worse as seldom as chance allows."""
    found, chance = (sum(comparison.worse for comparison in compared) for compared in (core, noise))
    allowed = max(TWICE * chance, math.floor(SHARE * len(core)))
    return (
        f"The bar for core layers: worse in at most {TWICE} times as many cells as the plain network with other seeds "
        f"({chance}), or in {SHARE:.0%} of all, so {allowed} of {len(core)}. They are in {found}: "
        f"{'met' if found <= allowed else 'missed'}."
    )


def totals(
    name: str, compared: Sequence[Comparison], found: Mapping[str, Errors]
) -> dict[str, str | int | float | None]:
    """The row of one kind of layer."""
    rival = {"paper": "wider", "normalised": "wider"}.get(name, "wide")
    wide = [] if name in MATCHED else [comparison.ratio for comparison in comparisons(found, name, rival)]
    return {
        "layers": CONTENDERS[name],
        "cells": len(compared),
        "worse": sum(comparison.worse for comparison in compared),
        "tasks with such cells": len({comparison.task for comparison in compared if comparison.worse}),
        "mean above 1.5x": sum(comparison.ratio > FAR for comparison in compared),
        "better": sum(comparison.better for comparison in compared),
        "error / plain": rounded(geometric([comparison.ratio for comparison in compared])),
        "error / plain, wider": rounded(geometric(wide)),
    }


def rounded(value: float | None) -> str | None:
    """With three decimals."""
    return None if value is None else f"{value:.3f}"


def by_optimiser(name: str, compared: Sequence[Comparison]) -> dict[str, str]:
    """Worse cells of each optimiser, and of each rate."""
    kinds = {optimiser: [c for c in compared if c.cell.split()[0] == optimiser] for optimiser in OPTIMISERS}
    places = {place: [c for c in compared if c.cell.split()[1] == place] for place in RATES}
    return {"layers": CONTENDERS[name]} | {
        key: f"{sum(c.worse for c in own)} of {len(own)}" for key, own in (kinds | places).items()
    }


def by_task(against: Mapping[str, Sequence[Comparison]]) -> Iterator[dict[str, str]]:
    """A row a task."""
    for task, described in TASKS.items():
        ratios = {name: [c.ratio for c in compared if c.task == task] for name, compared in against.items()}
        if any(ratios.values()):
            yield {"task": described.title} | {
                CONTENDERS[name]: rounded(geometric(own)) or "" for name, own in ratios.items()
            }


def worst(against: Mapping[str, Sequence[Comparison]]) -> Iterator[dict[str, str]]:
    """The cells with the largest ratios of each kind that steers itself, and of chance."""
    for name in ("core", "paper", "normalised", "gate", "noise"):
        for c in against.get(name, [])[:WORST]:
            yield {
                "layers": CONTENDERS[name],
                "task": TASKS[c.task].title,
                "optimiser and rate": c.cell,
                "error": f"{fmean(c.ours):.4f}",
                "plain": f"{fmean(c.plain):.4f}",
                "ratio": f"{c.ratio:.2f}",
                "worse": "yes" if c.worse else "within two errors",
            }


def figure(against: Mapping[str, Sequence[Comparison]]) -> Figure:
    """The ratios of each kind, sorted."""
    drawn, (axis, near) = panel_figure(2, 2, 3.4)
    colours = {
        "core": style.BLUE,
        "paper": style.GREEN,
        "normalised": style.PURPLE,
        "gate": style.SKY,
        "wide": style.VERMILION,
        "wider": "0.6",
        "noise": style.BLACK,
    }
    for name, compared in against.items():
        ratios = sorted(comparison.ratio for comparison in compared)
        share = 100 * (np.arange(len(ratios)) + 0.5) / len(ratios)
        for panel in (axis, near):
            panel.plot(share, ratios, color=colours.get(name, style.PURPLE), label=CONTENDERS[name])
    for panel in (axis, near):
        panel.axhline(1, color="0.7", linewidth=0.8, zorder=0)
        panel.set(yscale="log", xlabel="cells, sorted, %", ylabel="error / plain")
    axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.yaxis.set_major_formatter("{x:g}")
    axis.yaxis.set_minor_formatter(NullFormatter())
    near.set_ylim(0.7, 1.5)
    ticks = [0.7, 0.8, 0.9, 1, 1.1, 1.25, 1.5]
    near.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    near.minorticks_off()
    legend(drawn, [axis], ncols=3)
    return drawn


def edges(records: Sequence[Record]) -> Section:
    """The edge of each task and optimiser, in half decades."""
    found = cells(records).get("plain", {})
    rows = (
        {"task": TASKS[task].title}
        | {
            optimiser: f"{edge({float(c.split()[1]): v for c, v in own.items() if c.split()[0] == optimiser}):g}"
            for optimiser in OPTIMISERS
        }
        for task, own in found.items()
    )
    caption = (
        "log10 of the largest rate at which the plain network's mean validation error is at most "
        f"{TOLERANCE:.0%} of the way, in logarithms, from its best to that of no training."
    )
    return Section("Edges", tables=[table("Edges", rows, caption)])
