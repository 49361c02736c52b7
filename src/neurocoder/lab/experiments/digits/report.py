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
from ...report.sections import Estimate, Plot, Section, Table
from ...report.statistics import metric_by_seed
from ...report.tables import Row, estimate, paired, table
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
    "the chosen Neurocoder against one program for all images": (BEST, f"{BEST}-constant"),
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
Runs = Mapping[str, Sequence[Record]]
"""By variant, in the order of the tables; one per seed."""


def sections(records: Sequence[Record], paper: Mapping[str, Any]) -> list[Section]:
    """From any subset of the records of one preset: errors, and attention if any was observed."""
    ordered = sorted(records, key=lambda record: record.seed)
    runs = {variant: found for variant in VARIANTS if (found := [r for r in ordered if r.variant == variant])}
    seen = {variant: [run for run in runs.get(variant, ()) if run.observations] for variant in SHOWN}
    seen = {variant: found for variant, found in seen.items() if found}
    errors = [error_section(runs, paper)] if records else []
    return errors + ([attention_section(seen, paper)] if seen else [])


def error_section(runs: Runs, paper: Mapping[str, Any]) -> Section:
    """Figure 4a."""
    validation = any(run.config["validation"] for seeds in runs.values() for run in seeds)
    measure = "validation error" if validation else "test error"
    caption = (
        f"{measure.capitalize()} against the number of steps J: mean with its 95% interval, and a dot per seed. H=1 is "
        "the paper's configuration, others are smaller. In brackets: parameters at the largest J."
    )
    curves = curves_of(runs)
    draw = partial(plots.error_over_steps, curves, levels_of(runs), measure)
    differences = difference_table(runs, measure, paper)
    return Section(
        title="Error against the number of steps (Figure 4a)",
        tables=[*([differences] if differences.rows else []), error_table(runs, measure, paper)],
        plots=[Plot("error", caption, draw)] if curves else [],
    )


def errors_of(runs: Sequence[Record]) -> list[float]:
    """In percent, one per seed."""
    return [*metric_by_seed(runs, "error").values()]


def thousands(runs: Sequence[Record]) -> str:
    """Parameters, as counted in the run."""
    return f"{runs[0].parameters['total'] / 1000:.1f}K"


def difference_table(runs: Runs, measure: str, paper: Mapping[str, Any]) -> Table:
    """A row for each question."""
    rows: list[Row] = [
        {"question": question, "first": first, "second": second, "first minus second": difference}
        for question, (first, second) in PAIRS.items()
        if (difference := paired(runs.get(first, ()), runs.get(second, ()), "error"))
    ]
    stated = (
        f" The paper states up to {paper['gain_up_to']:g} over its linear classifier." if "gain_up_to" in paper else ""
    )
    return table(f"Differences in {measure}, in points", rows, f"Negative: the first errs less.{stated}")


def error_table(runs: Runs, measure: str, paper: Mapping[str, Any]) -> Table:
    """A row for each variant."""
    stated = paper.get("parameters", {})
    theirs = {"linear": stated.get("original"), "J5": stated.get("neurocoder")}
    rows: list[Row] = [
        {
            "model": f"{title(variant)}{' (chosen)' if variant == BEST else ''}",
            "variant": variant,
            "parameters": found[0].parameters["total"],
            "paper's parameters": theirs.get(variant),
            measure: estimate(found, "error", lowest=0),
            "training error": estimate(found, "train_error", lowest=0),
        }
        for variant, found in runs.items()
    ]
    caption = (
        "Programs with K=2, l_I=2, a=0.1, no residual. Chosen: lowest validation error with preset best among "
        f"those with J=5 and at most {LIMIT:,} parameters. The paper's errors are in a figure only."
    )
    return table(f"MNIST, {measure} in percent", rows, caption)


def curves_of(runs: Runs) -> dict[str, dict[int, list[float]]]:
    """Errors by label and J."""
    curves = {}
    for heads, variants in CURVES.items():
        if present := [variant for variant in variants if variant in runs]:
            label = f"Neurocoder, $H={heads}$ ({thousands(runs[present[-1]])})"
            curves[label] = {PROGRAMS[variant].steps: errors_of(runs[variant]) for variant in present}
    return curves


def levels_of(runs: Runs) -> dict[str, list[float]]:
    """Errors of the models without steps, by label."""
    labels = {"linear": "linear classifier", "mlp": "MLP 200-32-10"}
    return {f"{labels[v]} ({thousands(runs[v])})": errors_of(runs[v]) for v in labels if v in runs}


def attention_section(seen: Runs, paper: Mapping[str, Any]) -> Section:
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


def pattern_table(seen: Runs, paper: Mapping[str, Any]) -> Table:
    """A row for each model and component."""
    rows: list[Row] = [
        {
            "model": named(variant),
            "component": n,
            "number of patterns": Estimate([len(component["best"]["share"]) for component in seeds], 1),
            "silhouette": Estimate([max(component["silhouettes"]) for component in seeds]),
            "two explain, %": Estimate([100 * component["two"]["explain"] for component in seeds], 0),
            "distinct, seeds": f"{sum(component['count'] > 1 for component in seeds)} of {len(seeds)}",
        }
        for variant, runs in seen.items()
        for n, seeds in enumerate(zip(*(run.observations["components"] for run in runs), strict=True), 1)
    ]
    stated = paper.get("single_step_patterns")
    caption = (
        "Patterns are groups, by k-means, of one component's attention vectors. Their number, 2 to "
        f"{MOST}, is that with the largest mean silhouette. They are distinct if it is at least {DISTINCT}; else "
        "the attention varies continuously. Two explain: the share of the variance between two groups."
    )
    caption += f" The paper sees {stated} patterns in the single-step model." if stated else ""
    return table("Attention patterns over M_U", rows, caption)


def draw_grid(models: Mapping[str, Sequence[Any]]) -> Figure:
    """Figure 4(b), with the first test image of each digit (10, 28, 28)."""
    digits = mnist.load(False)
    examples = torch.stack([digits.images[digits.labels == digit][0] for digit in range(10)])
    return plots.attention_grid(examples.numpy(), models, COMPONENTS)
