"""The errors of the digits experiment (Figure 4a), from its records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from ...records.record import Record
from ...report.sections import Cell, Difference, Ours, Plot, Section, Table
from ...report.statistics import by_seed, differences
from . import figures as plots
from .models import BEST, LIMIT, PROGRAMS, VARIANTS, title

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


def section(records: Sequence[Record], paper: Mapping[str, Any]) -> Section | None:
    """From any subset of the records of one preset; None if there are none."""
    if not records:
        return None
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
            rows.append([question, first, second, Difference(found)])
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
            Ours(errors(records, variant)),
            Ours(list(by_seed(records, variant, "train_error").values())),
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
