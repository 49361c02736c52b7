"""The attention of the digits experiment (Figure 4b to d), from its records."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from statistics import fmean
from typing import Any

import torch
from matplotlib.figure import Figure

from ..data import mnist
from ..plots import digits as plots
from ..results import Record
from ..sections import Cell, Ours, Plot, Section, Table
from .digits_variants import PROGRAMS
from .patterns import COMPONENTS, DISTINCT, MOST, turns

SHOWN = {"single-30": "single-step", "multi-10": "multi-step"}
"""The variants of Figure 4(b). Figures show the first seed of each, text and tables all of them."""

GRID = "Attention over the slots of M_U, mean over the images of each digit: slots downwards, first components across."
PATTERNS = (
    "The patterns of each component, in the number with the largest silhouette (silh.). A column is the mean attention "
    "of the images that follow the pattern, with their share in percent below. Patterns are distinct if the "
    f"silhouette is at least {DISTINCT}. expl.: the share of the variance that they explain."
)
TREE = (
    "The binary decision tree of the single-step model. Each digit takes the path that most of its images take, "
    "through the two patterns of each component. An edge shows the share of its digits' images that take this turn, "
    "among those that reached it; below each digit is the share of its images on the whole path."
)


def section(records: Sequence[Record], paper: Mapping[str, Any]) -> Section | None:
    """From any subset of the records of one preset; None if no attention was observed."""
    seen: dict[str, list[Record]] = {}
    for record in sorted(records, key=lambda record: record.seed):
        if record.variant in SHOWN and record.observations:
            seen.setdefault(record.variant, []).append(record)
    if not seen:
        return None
    seen = {variant: seen[variant] for variant in SHOWN if variant in seen}
    first = {variant: runs[0] for variant, runs in seen.items()}
    seeds = ", ".join(f"{SHOWN[variant]}: seed {record.seed}" for variant, record in first.items())
    means = {SHOWN[variant]: record.observations["mean"] for variant, record in first.items()}
    found = {named(variant): record.observations["components"] for variant, record in first.items()}
    text = [findings(variant, runs, paper) for variant, runs in seen.items()]
    drawn = [
        Plot("attention", f"{GRID} ({seeds})", partial(draw_grid, means)),
        Plot("patterns", f"{PATTERNS} ({seeds})", partial(plots.pattern_columns, found)),
    ]
    if "single-30" in seen:
        single = first["single-30"]
        text.append(leaves(seen["single-30"]))
        drawn.append(Plot("tree", f"{TREE} (seed {single.seed})", partial(draw_tree, single.observations["paths"])))
    return Section("Attention patterns and the decision tree (Figure 4b to d)", text, [pattern_table(seen)], drawn)


def named(variant: str) -> str:
    """The name in titles."""
    return f"{SHOWN[variant]}, {PROGRAMS[variant].slots} slots"


def pattern_table(seen: Mapping[str, Sequence[Record]]) -> Table:
    """A row for each model and component."""
    rows: list[list[Cell]] = []
    for variant, runs in seen.items():
        for n, found in enumerate(zip(*(run.observations["components"] for run in runs), strict=True)):
            rows.append(
                [
                    named(variant),
                    n + 1,
                    Ours([len(component["best"]["share"]) for component in found], digits=1),
                    Ours([max(component["silhouettes"]) for component in found]),
                    Ours([component["count"] for component in found], digits=1),
                    Ours([100 * component["two"]["explain"] for component in found], digits=0),
                ]
            )
    return Table(
        title="Attention patterns over M_U",
        headings=["model", "component", "best number", "its silhouette", "distinct", "two explain, %"],
        rows=rows,
        caption=(
            f"Patterns are groups, by k-means, of one component's attention vectors. The best number, 2 to "
            f"{MOST}, has the largest mean silhouette. Groups are distinct if that is at least {DISTINCT}; else the "
            "attention varies continuously and counts as 1. Two explain: the share of the variance that lies between "
            "two groups."
        ),
    )


def findings(variant: str, runs: Sequence[Record], paper: Mapping[str, Any]) -> str:
    """What one model's attention does."""
    found = [component for run in runs for component in run.observations["components"]]
    two = sum(len(component["best"]["share"]) == 2 for component in found)
    clear = sum(component["count"] > 1 for component in found)
    explained = fmean(100 * component["two"]["explain"] for component in found)
    bits = fmean(run.observations["bits"] for run in runs)
    stated = paper.get("single_step_patterns") if variant == "single-30" else None
    return (
        f"{named(variant).capitalize()}: of {len(found)} cases (components and seeds) two is the best number of "
        f"patterns in {two}, and patterns are distinct in {clear}; two patterns explain {explained:.0f}% of the "
        f"variance on average.{f' The paper sees {stated} patterns here.' if stated else ''} Which of two patterns an "
        f"image follows in the first {len(found) // len(runs)} components tells {bits:.2f} of the {math.log2(10):.2f} "
        "bits of its digit."
    )


def leaves(runs: Sequence[Record]) -> str:
    """Which digits share a leaf of the tree, and how reliable it is."""
    ways = [[turns(paths) for paths in run.observations["paths"]] for run in runs]
    together: dict[tuple[int, ...], list[str]] = {}
    for digit, way in enumerate(ways[0]):
        together.setdefault(way.patterns, []).append(str(digit))
    groups = ", ".join(f"{{{' '.join(digits)}}}" for _, digits in sorted(together.items()))
    number = fmean(len({way.patterns for way in run}) for run in ways)
    whole = 100 * fmean(way.whole for run in ways for way in run)
    weakest = min(range(10), key=lambda digit: ways[0][digit].whole)
    return (
        f"The leaves of the tree with seed {runs[0].seed} are {groups}; the number of leaves is {number:.1f} on "
        f"average (n={len(runs)}), and {whole:.0f}% of a digit's images take its path. With seed {runs[0].seed} the "
        f"least certain digit is {weakest} ({100 * ways[0][weakest].whole:.0f}%). Digits in one leaf still differ in "
        "later components, in the attention over M_V and M_S and within the patterns."
    )


def examples() -> Any:
    """The first test image of each digit (10, 28, 28)."""
    digits = mnist.load(False)
    return torch.stack([digits.images[digits.labels == digit][0] for digit in range(10)]).numpy()


def draw_grid(models: Mapping[str, Sequence[Any]]) -> Figure:
    """Figure 4(b)."""
    return plots.attention_grid(examples(), models, COMPONENTS)


def draw_tree(paths: Sequence[Sequence[int]]) -> Figure:
    """Figure 4(d)."""
    return plots.decision_tree([turns(counts) for counts in paths], examples())
