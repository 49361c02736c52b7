"""What the polynomials experiment found: errors (Figure 6), then attention (Figure 5); from records only."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any

import numpy as np

from ...records.record import Record
from ...report.cells import brief
from ...report.sections import Plot, Section, Table
from ...report.tables import Row, estimate, paired, table
from . import figures as plots
from .data import Family
from .models import MODELS, SETTINGS, family, join, split

UNIT = 1e4
"""Errors near the floor are given in ten-thousandths."""
RIVALS = ("gru", "hyper")
Runs = dict[str, list[Record]]
"""Of one setting: by model, in the order of the tables, one record per seed."""
PROGRAMS = ("single-2", "single-3", "multi")
"""The Neurocoders among the models."""


def runs_of(records: Iterable[Record], setting: str) -> Runs:
    """The records of a setting."""
    found = {model: [r for r in records if r.variant == join(model, setting)] for model in MODELS}
    return {model: sorted(runs, key=lambda r: r.seed) for model, runs in found.items() if runs}


def papers_of(runs: Runs) -> Runs:
    """The runs of the paper's models."""
    return {model: records for model, records in runs.items() if MODELS[model].paper}


def first_of(runs: Runs) -> Record:
    """Any record of a setting."""
    return next(iter(runs.values()))[0]


def family_of(record: Record) -> Family:
    """The sequences of a record."""
    sizes = {name: record.config[name] for name in ("chunks", "points", "noise")}
    units = {name: record.config.get(name, 1.0) for name in ("scale", "reach")}  # older records have neither
    return family(split(record.variant)[1], **sizes, **units)


def title(runs: Runs) -> str:
    """A setting in words."""
    sequences = family_of(first_of(runs))
    return f"{sequences.chunks} polynomials" + (f", noise {sequences.noise:g}" if sequences.noise else "")


def median_run(records: Sequence[Record]) -> Record:
    """The run with the median error, as a typical one."""
    return sorted(records, key=lambda r: r.metrics["above_floor"])[(len(records) - 1) // 2]


def sections(records: Sequence[Record], paper: Mapping[str, Any]) -> list[Section]:
    """Figure 6, and Figure 5 if there is a Neurocoder."""
    settings = [runs for runs in (runs_of(records, setting) for setting in SETTINGS) if runs]
    if not settings:
        return []
    with_programs = [papers_of(runs) for runs in settings if any(model in runs for model in PROGRAMS)]
    return [errors(settings, paper), *([beginnings(with_programs)] if with_programs else [])]


def errors(settings: Sequence[Runs], paper: Mapping[str, Any]) -> Section:
    """Figure 6."""
    drawn = [learning_row(runs) for runs in map(papers_of, settings) if runs]
    converged = paper.get("converged_multi_step")
    learning = "Error above the floor against training iterations; the dotted line may lie below the panel." + (
        f" In the paper the multi-step model converged after {converged:,} iterations." if converged else ""
    )
    return Section(
        title="Learning curves (Figure 6)",
        text=[
            "Errors are on held-out sequences. The first point of a chunk is unpredictable: the best prediction is 0, "
            "its mean. The error of that, plus the variance of the noise, is the floor that no predictor can beat."
        ],
        tables=[error_table(runs, paper) for runs in settings],
        plots=[Plot("learning", learning, lambda: plots.learning_curves(drawn))] if drawn else [],
    )


def error_table(runs: Runs, paper: Mapping[str, Any]) -> Table:
    """A row for each model, and one for the best linear predictor."""
    sequences, published = family_of(first_of(runs)), paper.get("parameters", {})
    rivals = {f"minus {MODELS[rival].title}": rival for rival in RIVALS if rival in runs}
    rows: list[Row] = []
    for model, records in runs.items():
        above = estimate(records, "above_floor", scale=UNIT)
        against = {heading: runs[rival] if rival != model else () for heading, rival in rivals.items()}
        rows.append(
            {
                "model": MODELS[model].title,
                "parameters": records[0].parameters["total"],
                "paper's": published.get(MODELS[model].paper),
                "above the floor": above,
                "median": f"{median(above.values):.2f}" if above else None,
                **{heading: paired(records, theirs, "above_floor", scale=UNIT) for heading, theirs in against.items()},
                "at other than first points": estimate(records, "rest", scale=UNIT),
            }
        )
    oracle, begins = sequences.linear_oracle(), sequences.first_points()
    expected = {
        "model": plots.ORACLE,
        "above the floor": f"{UNIT * (oracle.mean().item() - sequences.floor()):.2f}",
        "at other than first points": f"{UNIT * oracle[~begins].mean().item():.2f}",
    }
    rows.append(dict.fromkeys(rows[0]) | expected)
    return table(
        f"{title(runs)}, {first_of(runs).config['iterations']:,} iterations: error above the floor, 1e-4",
        rows,
        f"{sequences.chunks} chunks of {sequences.points} points; the floor is "
        f"{first_of(runs).observations['floor']:.5f} on these sequences. The linear predictor is a reference, not a "
        "bound; its errors are expected values.",
    )


def learning_row(runs: Runs) -> plots.Row:
    """Learning curves of a setting."""
    sequences = family_of(first_of(runs))
    curves = {
        MODELS[model].title: [np.array([(e["step"], e["above_floor"]) for e in record.history]) for record in records]
        for model, records in runs.items()
    }
    oracle = sequences.linear_oracle().mean().item() - sequences.floor()
    steps = (first_of(runs).history[0]["step"], first_of(runs).history[-1]["step"])
    return plots.Row(title(runs), curves, np.array([(step, oracle) for step in steps]))


def beginnings(settings: Sequence[Runs]) -> Section:
    """Figure 5; each setting has a Neurocoder."""
    panels = {
        title(runs): {
            MODELS[model].title: {signal: auc_of(records, signal) for signal in plots.SIGNALS}
            for model, records in runs.items()
        }
        for runs in settings
    }
    return Section(
        title="Attention and the beginnings of chunks (Figure 5)",
        text=[
            "The AUC of a signal is the probability that it changes more at one of the first two points of a chunk "
            "(where x, then y, shows that it has begun) than at two neighbours in the rest of a chunk; 0.5 is chance. "
            "The jump of y, which the network is fed, is the baseline. Quiet: the half where y jumps least."
        ],
        tables=[auc_table(settings)],
        plots=[
            *attention(settings[0]),
            Plot(
                "auc",
                "How much each signal misses of the beginnings of chunks, on a logarithmic axis: left is better. "
                f"Medians, and a dot per seed; values below {plots.SMALLEST:g} are drawn there.",
                lambda: plots.boundary_auc(panels),
            ),
        ],
    )


def attention(shown: Runs) -> list[Plot]:
    """One sequence as a multi-step and a single-step model see it; searches keep no example, to save space."""
    models = [model for model in ("multi", "single-3" if "single-3" in shown else "single-2") if model in shown]
    runs = {model: median_run(shown[model]) for model in models}
    kept = {MODELS[model].title: run.observations.get("example") for model, run in runs.items()}
    examples = {name: example for name, example in kept.items() if example}
    caption = (
        "Above, the attention over M_U that forms the first component; in the middle, its change from one time to the "
        "next, relative to the largest; below, prediction and target. Chunks begin at the dashed lines. For each model "
        f"the seed with the median error; the first held-out sequence ({title(shown)})."
    )
    points = family_of(first_of(shown)).points
    return [Plot("attention", caption, lambda: plots.attention_over_time(examples, points))] if examples else []


def auc_of(records: Sequence[Record], signal: str, measure: str = "either") -> list[float]:
    """A measure of `evaluation.boundary_auc`, for each seed; empty if the models do not have the signal."""
    seeds = [record.observations["boundaries"] for record in records]
    return [signals[signal][measure] for signals in seeds if signal in signals]


def auc_table(settings: Sequence[Runs]) -> Table:
    """A row for each signal of each model, two columns for each setting."""
    columns = {
        f"{title(runs)}{words}": (runs, measure)
        for runs in settings
        for words, measure in (("", "either"), (", quiet", "quiet"))
    }
    rows: list[Row] = []
    for model in dict.fromkeys(model for runs in settings for model in runs):
        for signal, words in plots.SIGNALS.items():
            found = {name: auc_of(runs.get(model, ()), signal, measure) for name, (runs, measure) in columns.items()}
            if any(found.values()) and signal != "jump":
                cells = {name: brief(values, 3) for name, values in found.items()}
                rows.append({"model": MODELS[model].title, "signal": words.replace("\n", " "), **cells})
    jumps = {name: auc_of([first_of(runs)], "jump", measure)[0] for name, (runs, measure) in columns.items()}
    rows.append({"model": "none", "signal": "jump of y"} | {name: f"{value:.3f}" for name, value in jumps.items()})
    numbers = sorted({len(records) for runs in settings for records in runs.values()})
    return table(
        "AUC of beginnings of chunks",
        rows,
        f"Mean ± standard deviation, n={' or '.join(map(str, numbers))}. Of attention and state, the change is "
        "scored; of the last prediction, its error.",
    )
