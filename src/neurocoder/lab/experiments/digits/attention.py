"""The attention of the digits experiment (Figure 4b to d), from its records."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from matplotlib.figure import Figure

from ...data import mnist
from ...records.record import Record
from ...report.sections import Cell, Ours, Plot, Section, Table
from . import figures as plots
from .models import PROGRAMS
from .patterns import COMPONENTS, DISTINCT, MOST

SHOWN = {"single-30": "single-step", "multi-10": "multi-step"}
"""The variants of Figure 4(b). Figures show the first seed of each, tables all of them."""

GRID = "Attention over the slots of M_U, mean over the images of each digit: slots downwards, first components across."
PATHS = (
    "Which share of a digit's images follows which of two patterns in each of the first components: the paper's "
    "decision tree, with all images counted. Bits: what this path tells of the digit."
)


def section(records: Sequence[Record], paper: Mapping[str, Any]) -> Section | None:
    """From any subset of the records of one preset; None if no attention was observed."""
    seen: dict[str, list[Record]] = {}
    for variant in SHOWN:
        if runs := [record for record in records if record.variant == variant and record.observations]:
            seen[variant] = sorted(runs, key=lambda record: record.seed)
    if not seen:
        return None
    first = {variant: runs[0] for variant, runs in seen.items()}
    seeds = ", ".join(f"{SHOWN[variant]}: seed {record.seed}" for variant, record in first.items())
    means = {SHOWN[variant]: record.observations["mean"] for variant, record in first.items()}
    paths = {
        f"{named(variant)}: {record.observations['bits']:.2f} of {math.log2(10):.2f} bits": record.observations["paths"]
        for variant, record in first.items()
    }
    return Section(
        title="Attention patterns and decisions (Figure 4b to d)",
        tables=[pattern_table(seen, paper)],
        plots=[
            Plot("attention", f"{GRID} ({seeds})", partial(draw_grid, means)),
            Plot("paths", f"{PATHS} ({seeds})", partial(plots.path_shares, paths)),
        ],
    )


def named(variant: str) -> str:
    """The name in titles."""
    return f"{SHOWN[variant]}, {PROGRAMS[variant].slots} slots"


def pattern_table(seen: Mapping[str, Sequence[Record]], paper: Mapping[str, Any]) -> Table:
    """A row for each model and component."""
    rows: list[list[Cell]] = []
    for variant, runs in seen.items():
        for n, found in enumerate(zip(*(run.observations["components"] for run in runs), strict=True)):
            cells = (
                Ours([len(component["best"]["share"]) for component in found], digits=1),
                Ours([max(component["silhouettes"]) for component in found]),
                Ours([100 * component["two"]["explain"] for component in found], digits=0),
            )
            distinct = sum(component["count"] > 1 for component in found)
            rows.append([named(variant), n + 1, *cells, f"{distinct} of {len(found)}"])
    stated = paper.get("single_step_patterns")
    return Table(
        title="Attention patterns over M_U",
        headings=["model", "component", "number of patterns", "silhouette", "two explain, %", "distinct, seeds"],
        rows=rows,
        caption=(
            "Patterns are groups, by k-means, of one component's attention vectors. Their number, 2 to "
            f"{MOST}, is that with the largest mean silhouette. They are distinct if it is at least {DISTINCT}; else "
            "the attention varies continuously. Two explain: the share of the variance between two groups."
            + (f" The paper sees {stated} patterns in the single-step model." if stated else "")
        ),
    )


def examples() -> Any:
    """The first test image of each digit (10, 28, 28)."""
    digits = mnist.load(False)
    return torch.stack([digits.images[digits.labels == digit][0] for digit in range(10)]).numpy()


def draw_grid(models: Mapping[str, Sequence[Any]]) -> Figure:
    """Figure 4(b)."""
    return plots.attention_grid(examples(), models, COMPONENTS)
