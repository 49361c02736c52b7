"""Tables of continual learning, next to the paper's and to those of Hsu et al. (2018)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..results import Record
from ..sections import Cell, Ours, Section, Table
from .split_variants import DATASETS, METHODS, MODELS, SCENARIOS, parse


def sections(records: Sequence[Record], paper: Mapping[str, Any]) -> list[Section]:
    """One section for each data set and scenario that was run."""
    found = []
    for dataset in DATASETS:
        for scenario in SCENARIOS:
            own = [r for r in records if parse(r.variant)[:2] == (dataset, scenario)]
            if own:
                found.append(Section(f"{dataset}, {scenario} scenario", tables=[accuracies(own)]))
    return found


def accuracies(records: Sequence[Record]) -> Table:
    """Final average accuracy by method and model."""
    by: dict[tuple[str, str], list[float]] = {}
    for record in records:
        variant = parse(record.variant)
        by.setdefault((variant.method, variant.model), []).append(record.metrics["average_accuracy"])
    models = [model for model in MODELS if any(key[1] == model for key in by)]
    rows: list[list[Cell]] = []
    for method in METHODS:
        cells = [Ours(by[method, model]) if (method, model) in by else None for model in models]
        if any(cell is not None for cell in cells):
            rows.append([method, *cells])
    return Table("Average accuracy over all tasks after the last one, in percent", ["method", *models], rows)
