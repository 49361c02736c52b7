"""All records as one table, for pandas and the like."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from . import store
from .files import atomic_write
from .provenance import changed_source
from .record import CorruptFileError, Record

COLUMNS = (
    *("experiment", "preset", "variant", "seed", "folder", "parameters", "seconds", "loop", "device", "precision"),
    *("processes", "commit", "changed", "source", "experiment_commit", "experiment_source", "torch", "hardware"),
    *("config", "model"),
)
"""Columns of every run, in order; one for each metric follows, named after it (`metric.NAME` for a name above)."""


@dataclass(frozen=True)
class Options:
    """Write one row per run, over all experiments, to a CSV file: neurocoder export runs.csv"""

    file: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="FILE")]
    """The CSV file to write."""
    records: Path = Path("results")
    """Folder of the records, searched with all its subfolders."""


def row(record: Record, folder: Path) -> dict[str, Any]:
    """One run. `folder` tells sweeps of the same name apart; `config` and `model` are JSON."""
    facts: dict[str, Any] = {"folder": folder.as_posix(), "parameters": record.parameters.get("total", "")}
    names = ("commit", "source", "experiment_commit", "experiment_source", "torch", "hardware")
    facts |= {name: record.environment.get(name, "") for name in names} | {"changed": changed_source(record)}
    facts |= {name: json.dumps(getattr(record, name), sort_keys=True) for name in ("config", "model")}
    own = {name: getattr(record, name) for name in COLUMNS if name not in facts}
    return own | facts | {f"metric.{name}" if name in COLUMNS else name: it for name, it in record.metrics.items()}


def rows(folder: Path) -> list[dict[str, Any]]:
    """All runs under a folder; a damaged record is an error."""

    def refuse(problem: str) -> None:
        raise CorruptFileError(problem)

    return [row(record, place) for place, record in store.everything(folder, refuse)]


def write(found: Iterable[dict[str, Any]], target: Path) -> None:
    """Atomic write; a metric that a run does not have is an empty cell."""
    found = list(found)
    metrics = sorted({name for entry in found for name in entry} - set(COLUMNS))
    with atomic_write(target) as temporary, temporary.open("w", newline="") as file:
        table = csv.DictWriter(file, [*COLUMNS, *metrics])
        table.writeheader()
        table.writerows(found)


def main(options: Options) -> int:
    """`neurocoder export`; returns the exit status."""
    if not options.records.is_dir():
        raise ValueError(f"--records must be a folder with records, got {options.records}")
    found = rows(options.records)
    if not found:
        raise ValueError(f"no records under {options.records}: make some with `neurocoder run`")
    write(found, options.file)
    print(f"Wrote {options.file}: {len(found)} runs of {len({entry['experiment'] for entry in found})} experiments.")
    if unknown := sum(entry["changed"] == "unknown" for entry in found):
        print(
            f"`changed` is unknown for {unknown} of them: whether their source differed from their commit cannot be "
            "told, because they are older than the hash of the source, or git does not know the commit."
        )
    return 0
