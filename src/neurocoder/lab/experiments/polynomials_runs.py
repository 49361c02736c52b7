"""Records of the polynomials experiment, by setting and model."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..data.polynomials import Family
from ..results import Record
from ..statistics import summary
from .polynomials_variants import MODELS, family, join, split

Runs = dict[str, list[Record]]
"""Of one setting: by model, in the order of the tables, one record per seed."""
PROGRAMS = ("single-2", "single-3", "multi")
"""The Neurocoders among the models."""


def runs_of(records: Iterable[Record], setting: str) -> Runs:
    """The records of a setting."""
    found = {model: [r for r in records if r.variant == join(model, setting)] for model in MODELS}
    return {model: sorted(runs, key=lambda r: r.seed) for model, runs in found.items() if runs}


def programs_of(runs: Runs) -> list[str]:
    """The Neurocoders that were run."""
    return [model for model in runs if model in PROGRAMS]


def papers_of(runs: Runs) -> Runs:
    """The runs of the paper's models."""
    return {model: records for model, records in runs.items() if MODELS[model].paper}


def first_of(runs: Runs) -> Record:
    """Any record of a setting."""
    return next(iter(runs.values()))[0]


def family_of(record: Record) -> Family:
    """The sequences of a record."""
    sizes = {name: record.config[name] for name in ("chunks", "points", "noise")}
    return family(split(record.variant)[1], **sizes)


def title(runs: Runs) -> str:
    """A setting in words."""
    sequences = family_of(first_of(runs))
    return f"{sequences.chunks} polynomials" + (f", noise {sequences.noise:g}" if sequences.noise else "")


def final(records: Sequence[Record], metric: str = "above_floor") -> list[float]:
    """A metric after the last step, one per seed."""
    return [record.metrics[metric] for record in records]


def median_run(records: Sequence[Record]) -> Record:
    """The run with the median error, as a typical one."""
    return sorted(records, key=lambda r: r.metrics["above_floor"])[(len(records) - 1) // 2]


def contrast(model: str, rival: str, found: Sequence[float], verb: str, digits: int) -> list[str]:
    """The differences between two models, one per seed, as text; empty if there are fewer than two."""
    if len(found) < 2:
        return []
    more, name = summary(found), MODELS[model].title
    assert more.interval is not None  # with at least two values
    mean, low, high = (f"{value:+.{digits}f}" for value in (more.mean, *more.interval))
    told = "not statistically significant" if more.sign is None else f"{name} {verb} {'more' if more.sign else 'less'}"
    words = f"{name[0].upper()}{name[1:]} minus {MODELS[rival].title}: {mean}"
    return [f"{words} (95% interval {low} to {high}, {more.n} seeds): {told}."]
