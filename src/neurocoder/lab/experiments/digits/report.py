"""What the digits experiment found: errors (Figure 4a), then attention (Figure 4b to d); from records only."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from matplotlib.figure import Figure

from ...data import mnist
from ...records.record import Record
from ...report.sections import Cell, Estimate, PairedDifference, Plot, Section, Table
from ...report.statistics import by_seed, differences
from . import figures as plots
from .models import BEST, LIMIT, PROGRAMS, VARIANTS, title
from .patterns import COMPONENTS, DISTINCT, MOST

CURVES = {
    1: [f"J{steps}" for steps in range(1, 9)],
    3: ["P6-H3-J1", "P6-H3-J5"],
    4: ["P10-H4-J1", "P10-H4-J5"],
}
"""Variants that differ only in J, by H."""
PAIRS = {
    "the chosen Neurocoder against the linear classifier": (BEST, "linear"),
    "an MLP against the chosen Neurocoder": ("mlp", BEST),
    "five steps against one, H=1": ("J5", "J1"),
    "five steps against one, H=3": ("P6-H3-J5", "P6-H3-J1"),
    "five steps against one, H=4": ("P10-H4-J5", "P10-H4-J1"),
    "three heads against five steps": ("P6-H3-J1", "J5"),
}
"""Questions that two variants answer."""
SHOWN = {"single-30": "single-step", "multi-10": "multi-step"}
"""The variants of Figure 4(b). Figures show the first seed of each, tables all of them."""

GRID = "Attention over the slots of M_U, mean over the images of each digit: slots downwards, first components across."
PATHS = (
    "Which share of a digit's images follows which of two patterns in each of the first components: the paper's "
    "decision tree, with all images counted. Bits: what this path tells of the digit."
)


def sections(records: Sequence[Record], paper: Mapping[str, Any]) -> list[Section]:
    """From any subset of the records of one preset: errors, and attention if any was observed."""
    if not records:
        return []
    seen = {variant: runs_of(records, variant) for variant in SHOWN}
    seen = {variant: runs for variant, runs in seen.items() if runs}
    return [error_section(records, paper), *([attention_section(seen, paper)] if seen else [])]


def error_section(records: Sequence[Record], paper: Mapping[str, Any]) -> Section:
    """Figure 4a."""
    measure = "validation error" if any(record.config["validation"] for record in records) else "test error"
    caption = (
        f"{measure.capitalize()} against the number of steps J: mean with its 95% interval, and a dot per seed. H=1 is "
        "the paper's configuration, others are smaller. In brackets: parameters at the largest J."
    )
    curves = curves_of(records)
    draw = partial(plots.error_over_steps, curves, levels_of(records), measure)
    paired = difference_table(records, measure, paper)
    return Section(
        title="Error against the number of steps (Figure 4a)",
        tables=[*([paired] if paired.rows else []), error_table(records, measure, paper)],
        plots=[Plot("error", caption, draw)] if curves else [],
    )


def errors(records: Sequence[Record], variant: str) -> list[float]:
    """In percent, one per seed."""
    return list(by_seed(records, variant, "error").values())


def parameters(records: Sequence[Record], variant: str) -> int:
    """In total, as counted in the run."""
    return next(record.parameters["total"] for record in records if record.variant == variant)


def difference_table(records: Sequence[Record], measure: str, paper: Mapping[str, Any]) -> Table:
    """A row for each question."""
    rows: list[list[Cell]] = []
    for question, (first, second) in PAIRS.items():
        found = differences(by_seed(records, first, "error"), by_seed(records, second, "error"))
        if found:
            rows.append([question, first, second, PairedDifference(found)])
    stated = (
        f" The paper states up to {paper['gain_up_to']:g} over its linear classifier." if "gain_up_to" in paper else ""
    )
    return Table(
        title=f"Differences in {measure}, in points",
        headings=["question", "first", "second", "first minus second"],
        rows=rows,
        caption=f"Negative: the first errs less.{stated}",
    )


def error_table(records: Sequence[Record], measure: str, paper: Mapping[str, Any]) -> Table:
    """A row for each variant."""
    stated = paper.get("parameters", {})
    theirs = {"linear": stated.get("original"), "J5": stated.get("neurocoder")}
    rows: list[list[Cell]] = [
        [
            f"{title(variant)}{' (chosen)' if variant == BEST else ''}",
            variant,
            parameters(records, variant),
            theirs.get(variant),
            Estimate(errors(records, variant)),
            Estimate(list(by_seed(records, variant, "train_error").values())),
        ]
        for variant in VARIANTS
        if errors(records, variant)
    ]
    return Table(
        title=f"MNIST, {measure} in percent",
        headings=["model", "variant", "parameters", "paper's parameters", measure, "training error"],
        rows=rows,
        caption=(
            "Programs with K=2, l_I=2, a=0.1, no residual. Chosen: lowest validation error with preset best among "
            f"those with J=5 and at most {LIMIT:,} parameters. The paper's errors are in a figure only."
        ),
    )


def curves_of(records: Sequence[Record]) -> dict[str, dict[int, list[float]]]:
    """Errors by label and J."""
    found = {}
    for heads, variants in CURVES.items():
        if present := [variant for variant in variants if errors(records, variant)]:
            label = f"Neurocoder, $H={heads}$ ({parameters(records, present[-1]) / 1000:.1f}K)"
            found[label] = {PROGRAMS[variant].steps: errors(records, variant) for variant in present}
    return found


def levels_of(records: Sequence[Record]) -> dict[str, list[float]]:
    """Errors of the models without steps, by label."""
    return {
        f"{label} ({parameters(records, variant) / 1000:.1f}K)": errors(records, variant)
        for variant, label in (("linear", "linear classifier"), ("mlp", "MLP 200-32-10"))
        if errors(records, variant)
    }


def runs_of(records: Sequence[Record], variant: str) -> list[Record]:
    """The runs whose attention was observed, by seed."""
    runs = [record for record in records if record.variant == variant and record.observations]
    return sorted(runs, key=lambda record: record.seed)


def attention_section(seen: Mapping[str, Sequence[Record]], paper: Mapping[str, Any]) -> Section:
    """Figure 4b to d."""
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
                Estimate([len(component["best"]["share"]) for component in found], digits=1),
                Estimate([max(component["silhouettes"]) for component in found]),
                Estimate([100 * component["two"]["explain"] for component in found], digits=0),
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
