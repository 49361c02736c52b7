"""What the polynomials experiment found: errors (Figure 6), then attention (Figure 5); from records only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean, median
from typing import Any

import numpy as np

from ..plots import polynomials as plots
from ..results import Record
from ..sections import Cell, Ours, Plot, Section, Table
from ..statistics import differences
from .polynomials_beginnings import beginnings
from .polynomials_runs import Runs, contrast, family_of, final, first_of, papers_of, programs_of, runs_of, title
from .polynomials_variants import MODELS, SETTINGS

UNIT = 1e4
"""Errors near the floor are given in ten-thousandths."""


def sections(records: Sequence[Record], paper: Mapping[str, Any]) -> list[Section]:
    """Figure 6, and Figure 5 if there is a Neurocoder."""
    settings = [runs for runs in (runs_of(records, setting) for setting in SETTINGS) if runs]
    if not settings:
        return []
    with_programs = [papers_of(runs) for runs in settings if programs_of(runs)]
    return [errors(settings, paper), *([beginnings(with_programs)] if with_programs else [])]


def errors(settings: Sequence[Runs], paper: Mapping[str, Any]) -> Section:
    """Figure 6."""
    drawn = [runs for runs in map(papers_of, settings) if runs]
    return Section(
        title="Learning curves (Figure 6)",
        text=[
            "Polynomials are evaluated at x / 5, which the networks are fed together with the last y. The first "
            "point of a chunk is unpredictable: the best prediction is 0, its mean. The error of that, plus the "
            "variance of the noise, is the floor that no predictor can beat. Errors are on held-out sequences; above "
            "the floor means above the error of that best prediction on the same sequences. Chunks begin at the same "
            "x in every sequence: a network can learn to predict 0 there.",
            *map(verdict, settings),
        ],
        tables=[error_table(runs, paper) for runs in settings],
        plots=[
            Plot(
                "learning",
                "Error above the floor against training iterations: mean of the seeds, their range shaded.",
                lambda: plots.learning_curves([learning_panel(runs) for runs in drawn]),
            ),
            Plot(
                "position",
                "Mean square error at each position in the chunk. The dotted line is the best linear predictor from "
                "the earlier points of the chunk, given where chunks begin.",
                lambda: plots.error_by_position([position_panel(runs) for runs in drawn]),
            ),
        ]
        if drawn
        else [],
    )


def verdict(runs: Runs) -> str:
    """Which models have lower errors, and where the errors are made."""
    means = {model: fmean(final(records)) for model, records in runs.items()}
    listed = "; ".join(
        f"{MODELS[model].title} {UNIT * mean:.2f}, {UNIT * median(final(runs[model])):.2f}"
        for model, mean in means.items()
    )
    words = [f"{title(runs)}, error above the floor in ten-thousandths, mean and median of the seeds: {listed}."]
    programs = programs_of(runs)
    rivals = [model for model in papers_of(runs) if model not in programs]
    if rivals and programs:
        best = min(rivals, key=means.__getitem__)
        below = [model for model in programs if means[model] < means[best]]
        names = " and ".join(MODELS[model].title for model in rivals)
        if len(below) == len(programs):
            words.append(f"Every Neurocoder is below {names}.")
        elif below:
            others = ", ".join(MODELS[model].title for model in programs if model not in below)
            words.append(f"Below {names}: {', '.join(MODELS[model].title for model in below)}; not below: {others}.")
        else:
            words.append(f"No Neurocoder is below {MODELS[best].title}.")
        closest = min(programs, key=means.__getitem__)
        errors = ({r.seed: UNIT * r.metrics["above_floor"] for r in runs[model]} for model in (closest, best))
        words += contrast(closest, best, differences(*errors), "errs", digits=2)
    shares = ", ".join(f"{MODELS[model].title} {first_share(records):.0%}" for model, records in runs.items())
    words.append(f"Share of this error at first points of chunks, where 0 was not predicted: {shares}.")
    return " ".join(words)


def first_share(records: Sequence[Record]) -> float:
    """Which share of the error above the floor is made at the first points of chunks."""
    sequences = family_of(records[0])
    rest = (fmean(final(records, "rest")) - sequences.noise**2) * (sequences.points - 1) / sequences.points
    return max(0.0, 1 - rest / fmean(final(records)))


def mean_curve(records: Sequence[Record]) -> list[tuple[float, float]]:
    """Step, and error above the floor as the mean of the seeds."""
    histories = [record.history for record in records]
    return [
        (entries[0]["step"], fmean(entry["above_floor"] for entry in entries))
        for entries in zip(*histories, strict=False)
    ]


def steps_to(records: Sequence[Record], error: float) -> int | None:
    """The first evaluation at which the seeds' mean error above the floor was no larger than `error`, or None."""
    return next((int(step) for step, value in mean_curve(records) if value <= error), None)


def error_table(runs: Runs, paper: Mapping[str, Any]) -> Table:
    """A row for each model, and one for the best linear predictor."""
    sequences, published = family_of(first_of(runs)), paper.get("parameters", {})
    target = fmean(final(runs["gru"])) if "gru" in runs else None
    rows: list[Sequence[Cell]] = []
    for model, records in runs.items():
        reached = None if target is None else steps_to(records, target) or "not reached"
        mse, first = Ours(final(records, "mse"), 5), Ours(final(records, "first_points"), 3)
        above, rest = (Ours([UNIT * e for e in final(records, metric)], 2) for metric in ("above_floor", "rest"))
        paper_size = published.get(MODELS[model].paper)
        rows.append((MODELS[model].title, records[0].parameters["total"], paper_size, mse, above, first, rest, reached))
    oracle, floor, begins = sequences.linear_oracle(), sequences.floor(), sequences.first_points()
    whole, first_error, rest_error = (part.mean().item() for part in (oracle, oracle[begins], oracle[~begins]))
    scaled = [f"{UNIT * error:.2f}" for error in (whole - floor, rest_error)]
    numbers = (f"{whole:.5f}", scaled[0], f"{first_error:.3f}", scaled[1])
    rows.append((f"{plots.ORACLE}, expected", None, None, *numbers, None))
    converged = paper.get("converged_multi_step")
    return Table(
        title=f"{title(runs)}, {first_of(runs).config['iterations']:,} iterations",
        headings=(
            "model",
            "parameters",
            "paper's",
            "mean square error",
            "above the floor, 1e-4",
            "at first points",
            "at other points, 1e-4",
            "iterations to GRU's final error",
        ),
        rows=rows,
        caption=f"{sequences.chunks} chunks of {sequences.points} points. The floor is "
        f"{first_of(runs).observations['floor']:.5f} on these sequences and {floor:.5f} expected, the mean square of y "
        f"without noise {sequences.deviation() ** 2:.3f} expected. The linear predictor is a reference, not a bound."
        + (f" In the paper the multi-step model converged after {converged:,} iterations." if converged else ""),
    )


def learning_panel(runs: Runs) -> plots.Panel:
    """Learning curves of a setting."""
    sequences = family_of(first_of(runs))
    curves = {
        MODELS[model].title: [np.array([(e["step"], e["above_floor"]) for e in record.history]) for record in records]
        for model, records in runs.items()
    }
    oracle = sequences.linear_oracle().mean().item() - sequences.floor()
    return plots.Panel(title(runs), curves, np.array(oracle))


def position_panel(runs: Runs) -> plots.Panel:
    """Errors by position in the chunk, counted from 1."""
    sequences = family_of(first_of(runs))
    places = np.arange(1, sequences.points + 1)
    curves = {
        MODELS[model].title: [np.column_stack((places, record.observations["by_position"])) for record in records]
        for model, records in runs.items()
    }
    oracle = sequences.linear_oracle().view(sequences.chunks, sequences.points).mean(0).numpy()
    return plots.Panel(title(runs), curves, np.column_stack((places, oracle)))
