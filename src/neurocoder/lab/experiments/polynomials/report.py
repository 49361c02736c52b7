"""What the polynomials experiment found: speed and errors (Figure 6), then attention (Figure 5); from records only."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from statistics import median
from typing import Any

import numpy as np
import torch

from ...records.record import Record
from ...report.cells import brief
from ...report.sections import Estimate, PairedDifference, Plot, Section, Table
from ...report.statistics import differences
from ...report.tables import Row, estimate, paired, table
from . import figures as plots
from .data import Family
from .evaluation import HeldOut
from .models import ALL, SETTINGS, family, join, split

RIVALS = ("gru", "hyper")
MOMENTS = (300, 500, 1_000, 2_000)
"""Iterations after which the learning curves are compared, beside the last."""
QUESTIONS = {
    "multi-step against single-step": ("multi", "single-3"),
    "multi-step against HyperNet": ("multi", "hyper"),
    "single-step against HyperNet": ("single-3", "hyper"),
    "HyperNet against GRU": ("hyper", "gru"),
    "multi-step against one program for all inputs": ("multi", "multi-constant"),
    "single-step against one program for all inputs": ("single-3", "single-3-constant"),
    "multi-step against a GRU with a fixed output scale": ("multi", "gru-scaled"),
}
"""Pairs of models."""
RATES = {"none": "constant", "cosine": "with cosine decay"}
Runs = dict[str, list[Record]]
"""Of one setting: by model, in the order of the tables, one record per seed."""
PROGRAMS = ("single-2", "single-3", "multi")
"""The Neurocoders among the models."""


def runs_of(records: Iterable[Record], setting: str) -> Runs:
    """The records of a setting."""
    by_model = {model: [r for r in records if r.variant == join(model, setting)] for model in ALL}
    return {model: sorted(runs, key=lambda r: r.seed) for model, runs in by_model.items() if runs}


def papers_of(runs: Runs) -> Runs:
    """The runs of the paper's models."""
    return {model: records for model, records in runs.items() if ALL[model].paper}


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


def unit(runs: Runs) -> float:
    """The factor on errors: they are given in ten-thousandths of the square of the scale of y."""
    return 1e4 / family_of(first_of(runs)).scale ** 2


def held_out(record: Record) -> HeldOut:
    """The sequences that the record was evaluated on."""
    return _held_out(family_of(record), record.config["held_out"], record.config["validation"])


@lru_cache(maxsize=8)
def _held_out(family: Family, count: int, validation: bool) -> HeldOut:
    return HeldOut(family, count, validation, torch.device("cpu"))


def explained(record: Record, mean_square: float) -> plots.Curve:
    """Iterations and `R^2 = 1 - mse / mean(y^2)` of an evaluation each."""
    return np.array([(entry["step"], 1 - entry["mse"] / mean_square) for entry in record.history])


def after(record: Record, mean_square: float, step: int) -> float | None:
    """R^2 after so many iterations; None if the record has no evaluation there."""
    return next((r2 for at, r2 in explained(record, mean_square) if at == step), None)


def median_run(records: Sequence[Record]) -> Record:
    """The run with the median error, as a typical one."""
    return sorted(records, key=lambda r: r.metrics["above_floor"])[(len(records) - 1) // 2]


def sections(records: Sequence[Record], paper: Mapping[str, Any]) -> list[Section]:
    """Figure 6, and Figure 5 if there is a Neurocoder."""
    settings = [runs for runs in (runs_of(records, setting) for setting in SETTINGS) if runs]
    if not settings:
        return []
    with_programs = [papers_of(runs) for runs in settings if any(model in runs for model in PROGRAMS)]
    parts = [speed(settings, paper), errors(settings, paper)]
    return [*parts, *([beginnings(with_programs)] if with_programs else [])]


def speed(settings: Sequence[Runs], paper: Mapping[str, Any]) -> Section:
    """How soon the models learn: Figure 6 in numbers that do not depend on the unit of y."""
    sequences, converged = family_of(first_of(settings[0])), paper.get("converged_multi_step")
    at = {1.0: "x / 5", 5.0: "x"}.get(sequences.reach, f"{sequences.reach:g} x / 5")
    words = [
        f"y is the polynomial at {at}" + (f", times {sequences.scale:,g}." if sequences.scale != 1 else "."),
        "R² is 1 - mse / mean(y²) on held-out sequences. Persistence predicts `y_t = y_{t-1}`. The floor is that of a "
        "predictor that knows everything but the first point of each chunk, which nothing predicts.",
    ]
    if converged:
        words.append(f"In the paper the multi-step model converges within {converged:,} iterations, the GRU never.")
    rows = [speed_row(runs) for runs in settings]
    caption = "R² against iterations: the median over seeds. Dashed: controls; dotted: persistence; grey: the floor."
    return Section(
        title="How soon (Figure 6)",
        text=[" ".join(words)],
        tables=[made for runs in settings for made in (speed_table(runs), order_table(runs)) if made.rows],
        plots=[Plot("speed", caption, lambda: plots.speed(rows))],
    )


def speed_row(runs: Runs) -> plots.Speed:
    """Learning curves of a setting, with the controls."""
    data = held_out(first_of(runs))
    mean_square = data.mean_square.item()
    curves = {
        ALL[model].title: [explained(record, mean_square) for record in records] for model, records in runs.items()
    }
    return plots.Speed(title(runs), curves, data.persistence(), 1 - data.floor / mean_square)


def moments(runs: Runs) -> list[int]:
    """Iterations to compare at: those at which the runs were evaluated."""
    steps = {int(entry["step"]) for entry in first_of(runs).history}
    return [step for step in dict.fromkeys((*MOMENTS, max(steps))) if step in steps]


def speed_table(runs: Runs) -> Table:
    """R² of each model after some iterations, then that of persistence and of the floor."""
    data = held_out(first_of(runs))
    mean_square = data.mean_square.item()
    rows: list[Row] = []
    for model, records in runs.items():
        explained = {step: [after(record, mean_square, step) for record in records] for step in moments(runs)}
        cells = {
            f"{step:,}": Estimate([r2 for r2 in values if r2 is not None], 3) for step, values in explained.items()
        }
        rows.append({"model": ALL[model].title, "parameters": records[0].parameters["total"], **cells})
    for name, level in (("persistence", data.persistence()), ("floor", 1 - data.floor / mean_square)):
        rows.append({"model": name, "parameters": None} | {f"{step:,}": f"{level:.3f}" for step in moments(runs)})
    rates, decay = sorted(set(first_of(runs).config["rates"].values())), first_of(runs).config["decay"]
    caption = f"Adam at {' and '.join(f'{rate:g}' for rate in rates)}, {RATES[decay]}."
    return table(f"{title(runs)}: R² after so many iterations", rows, caption)


def order_table(runs: Runs) -> Table:
    """Paired differences of R² between models."""
    mean_square = held_out(first_of(runs)).mean_square.item()
    rows: list[Row] = []
    for question, (one, other) in QUESTIONS.items():
        if not (one in runs and other in runs):
            continue
        cells = {}
        for step in moments(runs):
            values = [
                {record.seed: r2 for record in runs[model] if (r2 := after(record, mean_square, step)) is not None}
                for model in (one, other)
            ]
            cells[f"{step:,}"] = PairedDifference(differences(*values), 3)
        rows.append({"question": question, **cells})
    return table(f"{title(runs)}: R² of the first minus that of the second", rows)


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
    rivals = {f"minus {ALL[rival].title}": rival for rival in RIVALS if rival in runs}
    rows: list[Row] = []
    factor, squares = unit(runs), f" times {sequences.scale:,g}²" if sequences.scale != 1 else ""
    for model, records in runs.items():
        above = estimate(records, "above_floor", scale=factor, lowest=0)
        against = {heading: runs[rival] if rival != model else () for heading, rival in rivals.items()}
        rows.append(
            {
                "model": ALL[model].title,
                "parameters": records[0].parameters["total"],
                "paper's": published.get(ALL[model].paper or ""),
                "above the floor": above,
                "median": f"{median(above.values):.2f}" if above else None,
                **{
                    heading: paired(records, theirs, "above_floor", scale=factor) for heading, theirs in against.items()
                },
                "at other than first points": estimate(records, "rest", scale=factor, lowest=0),
            }
        )
    oracle, begins = sequences.linear_oracle(), sequences.first_points()
    expected = {
        "model": plots.ORACLE,
        "above the floor": f"{factor * (oracle.mean().item() - sequences.floor()):.2f}",
        "at other than first points": f"{factor * oracle[~begins].mean().item():.2f}",
    }
    rows.append(dict.fromkeys(rows[0]) | expected)
    return table(
        f"{title(runs)}, {first_of(runs).config['iterations']:,} iterations: error above the floor, 1e-4{squares}",
        rows,
        f"{sequences.chunks} chunks of {sequences.points} points; the floor is "
        f"{first_of(runs).observations['floor'] / sequences.scale**2:.5f}{squares} on these sequences. The linear "
        "predictor is a reference, not a bound; its errors are expected values.",
    )


def learning_row(runs: Runs) -> plots.Row:
    """Learning curves of a setting."""
    sequences = family_of(first_of(runs))
    square = sequences.scale**2
    curves = {
        ALL[model].title: [
            np.array([(entry["step"], entry["above_floor"] / square) for entry in record.history]) for record in records
        ]
        for model, records in runs.items()
    }
    oracle = (sequences.linear_oracle().mean().item() - sequences.floor()) / square
    steps = (first_of(runs).history[0]["step"], first_of(runs).history[-1]["step"])
    return plots.Row(title(runs), curves, np.array([(step, oracle) for step in steps]))


def beginnings(settings: Sequence[Runs]) -> Section:
    """Figure 5; each setting has a Neurocoder."""
    panels = {
        title(runs): {
            ALL[model].title: {signal: auc_of(records, signal) for signal in plots.SIGNALS}
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
    kept = {ALL[model].title: run.observations.get("example") for model, run in runs.items()}
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
            scores = {name: auc_of(runs.get(model, ()), signal, measure) for name, (runs, measure) in columns.items()}
            if any(scores.values()) and signal != "jump":
                cells = {name: brief(values, 3) for name, values in scores.items()}
                rows.append({"model": ALL[model].title, "signal": words.replace("\n", " "), **cells})
    jumps = {name: auc_of([first_of(runs)], "jump", measure)[0] for name, (runs, measure) in columns.items()}
    rows.append({"model": "none", "signal": "jump of y"} | {name: f"{value:.3f}" for name, value in jumps.items()})
    numbers = sorted({len(records) for runs in settings for records in runs.values()})
    return table(
        "AUC of beginnings of chunks",
        rows,
        f"Mean ± standard deviation, n={' or '.join(map(str, numbers))}. Of attention and state, the change is "
        "scored; of the last prediction, its error.",
    )
