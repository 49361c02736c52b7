"""Errors of each contender, on trained and on new tasks, against the number of tasks and of examples."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial

from matplotlib.figure import Figure

from ...records.record import Record
from ...report import style
from ...report.figures import legend, means, panel_figure
from ...report.sections import Cell, Plot, Section
from ...report.tables import estimate, paired, table
from .families import FAMILIES
from .models import ALONE, CONTENDERS, ONCE

OURS = "core"
"""The contender that the others are compared with."""
AXES = {"tasks": "the number of tasks", "examples": "the examples of each task"}
WAYS = {"error": "trained tasks", "new": "new tasks, z alone", "tuned": "new tasks, all parameters"}
COLOURS = {
    "core": style.BLUE,
    "core-shift": style.SKY,
    "film": style.VERMILION,
    "shift": style.PURPLE,
    "hyper": style.BLACK,
    "low-rank": "0.45",
    "mixture": style.GREEN,
    "unsteered": "0.75",
    "own": "0.6",
    "heads": "#8b6914",
    "kernel": "#b0306a",
}

Runs = Mapping[tuple[str, int, int], Sequence[Record]]
"""Of one family: contender, tasks and examples -> a record a seed."""


def sections(records: Sequence[Record]) -> list[Section]:
    """A section a family."""
    found: dict[str, dict[tuple[str, int, int], list[Record]]] = {}
    for record in records:
        family, _, rest = record.variant.partition("-")
        contender, tasks, examples = rest.rsplit("-", 2)
        found.setdefault(family, {}).setdefault((contender, int(tasks), int(examples)), []).append(record)
    return [section(name, found[name]) for name in FAMILIES if name in found]


def points(runs: Runs) -> list[tuple[int, int]]:
    """Numbers of tasks and examples that there are."""
    return sorted({(tasks, examples) for contender, tasks, examples in runs if contender not in ALONE})


def section(name: str, runs: Runs) -> Section:
    """One family's tables and figures."""
    family = FAMILIES[name]
    usual = "wrong classes" if family.classes else "squared error over the variance of the targets"
    measure = family.measure or f"{usual}, in percent"
    text = [
        f"Test error: {measure}. About {family.parameters:,} parameters and a latent of {family.latent} for "
        "each task; a network a task has as many parameters for each. Every run has its own best rates, on "
        "20 further samples of each of its tasks; for new tasks, on 50 others that are new too."
        + (f" An example is {family.each} samples, as many as a task has classes." if family.each > 1 else "")
    ]
    tables = [
        table(f"{tasks:,} tasks, {examples} examples of each", rows(runs, tasks, examples))
        for tasks, examples in points(runs)
    ]
    plots = [
        Plot(
            f"{name}-{axis}",
            f"{family.title}: error against {title}; bars are 95% intervals.",
            partial(draw, name, runs, axis),
        )
        for place, (axis, title) in enumerate(
            (("tasks", "the number of tasks"), ("examples", "the examples of each task"))
        )
        if len({point[place] for point in points(runs)}) > 1
    ]
    return Section(family.title, text, tables, plots)


def rows(runs: Runs, tasks: int, examples: int) -> Iterator[dict[str, Cell]]:
    """A row a contender."""
    base = runs.get((OURS, tasks, examples), [])
    for contender, (title, _) in CONTENDERS.items():
        own = runs.get((contender, 1 if contender in ALONE else tasks, examples), [])
        if not own:
            continue
        size = None if contender == "kernel" else own[0].parameters["network"]
        row: dict[str, Cell] = {"contender": title, "parameters": size}
        row |= {heading: estimate(own, way, lowest=0) for way, heading in WAYS.items()}
        for way in ("error", "new"):
            is_compared = contender != OURS and way in own[0].metrics
            row[f"{WAYS[way]}, minus core"] = paired(own, base, way) if is_compared else None
        yield row


def draw(family: str, runs: Runs, axis: str) -> Figure:
    """Errors over one number, where the other is the usual one, of contenders with several such numbers."""
    drawn, panels = panel_figure(3, 3, 3.2, sharey=True)
    place = 1 if axis == "tasks" else 2
    other = {key[3 - place] for key in runs if key[0] not in ALONE}
    counted = {
        value: len({key[place] for key in runs if key[3 - place] == value and key[0] not in ALONE}) for value in other
    }
    usual = max(counted, key=lambda value: counted[value])
    for panel, (way, title) in zip(panels, WAYS.items(), strict=True):
        drawn_ones = [(key, title) for key, (title, _) in CONTENDERS.items() if key not in ONCE]
        for index, (contender, name) in enumerate(drawn_ones):
            fixed = 1 if contender in ALONE and place == 2 else usual
            own = {key[place]: runs[key] for key in runs if key[0] == contender and key[3 - place] == fixed}
            values = {x: [record.metrics[way] for record in own[x] if way in record.metrics] for x in sorted(own)}
            values = {x: each for x, each in values.items() if each}
            look = {"color": COLOURS[contender], "label": name, "capsize": 2, "markersize": 4}
            if contender in ALONE and place == 1 and values:
                panel.axhline(sum(values[1]) / len(values[1]), color=COLOURS[contender], linestyle=":", label=name)
            elif len(values) > 1:
                means(
                    panel,
                    [*map(float, values)],
                    values.values(),
                    0,
                    fmt=f"{'osD^vP*Xh<>'[index]}-",
                    linewidth=1,
                    **look,
                )
        panel.set(xscale="log", yscale="log", title=title, xlabel=axis)
        ticks = sorted({key[place] for key in runs if key[0] not in ALONE and key[3 - place] == usual})
        panel.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
        panel.minorticks_off()
    panels[0].set_ylabel(FAMILIES[family].measure or "error, %")
    legend(drawn, panels, ncols=4)
    return drawn
