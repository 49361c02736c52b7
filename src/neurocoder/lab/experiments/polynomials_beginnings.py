"""How attention reacts to the beginnings of chunks (Figure 5): tables, figures and text, from records only."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import Any

import numpy as np

from ..plots import polynomials as plots
from ..results import Record
from ..sections import Cell, Ours, Plot, Section, Table
from ..statistics import differences
from .polynomials_runs import Runs, contrast, family_of, first_of, median_run, programs_of, title
from .polynomials_variants import MODELS


def beginnings(settings: Sequence[Runs]) -> Section:
    """Figure 5; each setting has a Neurocoder."""
    shown = settings[0]
    return Section(
        title="Attention and the beginnings of chunks (Figure 5)",
        text=[
            "Does attention follow the polynomials? A signal that changes more at the beginning of a chunk than "
            "elsewhere shows where chunks begin. Its AUC is the probability that it changes more at one of the first "
            "two points of a chunk (where x, then y, shows that it has begun) than at two neighbours in the rest of a "
            "chunk; 0.5 is chance. The jump of y itself, which the network is fed, is the baseline to beat; quiet "
            "beginnings are the half at which y jumps least.",
            *map(told, settings),
        ],
        tables=[auc_table(runs) for runs in settings],
        plots=[
            *attention(shown),
            Plot(
                "auc",
                "How well a signal detects the beginnings of chunks: means, and a dot per seed. The dotted line is the "
                "jump of y, the same for all models.",
                lambda: plots.boundary_auc({title(runs): auc_panel(runs) for runs in settings}),
            ),
            Plot(
                "reaction",
                f"Change at each position in the chunk, relative to its mean from the third on ({title(shown)}).",
                lambda: plots.reactions(reaction_panels(shown)),
            ),
        ],
    )


def attention(shown: Runs) -> list[Plot]:
    """One sequence as a multi-step and a single-step model see it; searches keep no example, to save space."""
    models = [model for model in ("multi", "single-3" if "single-3" in shown else "single-2") if model in shown]
    runs = {model: median_run(shown[model]) for model in models}
    examples = [example(model, run) for model, run in runs.items() if "example" in run.observations]
    if not examples:
        return []
    caption = (
        "Above, the attention over M_U that forms the first component; in the middle, its change from one time to the "
        "next, relative to the largest; below, prediction and target. Chunks begin at the dashed lines. For each model "
        f"the seed with the median error; the first held-out sequence ({title(shown)})."
    )
    points = family_of(first_of(shown)).points
    return [Plot("attention", caption, lambda: plots.attention_over_time(examples, points))]


def judged(records: Sequence[Record], signal: str, measure: str = "either") -> list[float]:
    """A measure of `boundaries.judge`, for each seed."""
    return [record.observations["boundaries"][signal][measure] for record in records]


def told(runs: Runs) -> str:
    """How well the attention of each Neurocoder detects beginnings, next to the jump of y."""
    listed = "; ".join(
        f"{MODELS[model].title} {fmean(judged(records, 'attention')):.3f} "
        f"(quiet beginnings {fmean(judged(records, 'attention', 'quiet')):.3f}, "
        f"state of its GRU {fmean(judged(records, 'state')):.3f})"
        for model, records in ((model, runs[model]) for model in programs_of(runs))
    )
    alone = first_of(runs).observations["boundaries"]["jump"]
    jump = f"The jump of y alone: {alone['either']:.3f} ({alone['quiet']:.3f})."
    said = (f"{title(runs)}, AUC of the first component's attention: {listed}.", jump, *compared(runs))
    return " ".join(said)


def compared(runs: Runs) -> list[str]:
    """Multi-step attention against each single-step one, seed by seed."""
    if "multi" not in runs:
        return []
    multi, singles = aucs(runs["multi"]), [model for model in programs_of(runs) if model != "multi"]
    pairs = ((model, differences(multi, aucs(runs[model]))) for model in singles)
    return [words for model, found in pairs for words in contrast("multi", model, found, "detects", digits=3)]


def aucs(records: Sequence[Record]) -> dict[int, float]:
    """Of the first component's attention, by seed."""
    return {record.seed: record.observations["boundaries"]["attention"]["either"] for record in records}


def auc_table(runs: Runs) -> Table:
    """A row for each signal of each model."""
    measures = ("either", "quiet", "first", "second", "jump_correlation")
    rows: list[Sequence[Cell]] = []
    for model, records in runs.items():
        for signal, words in plots.SIGNALS.items():
            if signal in records[0].observations["boundaries"] and signal != "jump":
                cells = (Ours(judged(records, signal, measure), 3) for measure in measures)
                rows.append((MODELS[model].title, words.replace("\n", " "), *cells))
    jump = first_of(runs).observations["boundaries"]["jump"]
    rows.append(("none", "jump of y", *(f"{jump[measure]:.3f}" for measure in measures)))
    return Table(
        title=f"AUC of beginnings of chunks, {title(runs)}",
        headings=("model", "signal", "AUC", "quiet", "at t0", "at t0 + 1", "rank correlation with the jump"),
        rows=rows,
        caption="A chunk begins at t0, and its first y is fed at t0 + 1. Of attention and state, the change is scored.",
    )


def auc_panel(runs: Runs) -> dict[str, dict[str, list[float]]]:
    """By model and signal, one AUC per seed."""
    return {
        MODELS[model].title: {signal: judged(records, signal) for signal in records[0].observations["boundaries"]}
        for model, records in runs.items()
    }


def reaction_panels(runs: Runs) -> dict[str, dict[str, list[Any]]]:
    """The change of attention and state by position, for models that have them."""
    panels: dict[str, dict[str, list[Any]]] = {}
    for signal, words in (("attention", "attention, first component"), ("state", "state of the GRU")):
        panels[words] = {
            MODELS[model].title: [np.array(record.observations["reaction"][signal]) for record in records]
            for model, records in runs.items()
            if signal in records[0].observations["reaction"]
        }
    return panels


def example(model: str, record: Record) -> plots.Example:
    """The first held-out sequence as this run sees it."""
    kept = record.observations["example"]
    y, prediction, attention = (np.array(kept[name]) for name in ("y", "prediction", "attention"))
    return plots.Example(MODELS[model].title, attention, y, prediction)
