"""All records as one table, for pandas and the like."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .files import replacing
from .results import Record

COLUMNS = (
    "experiment",
    "preset",
    "variant",
    "seed",
    "folder",
    "parameters",
    "seconds",
    "loop",
    "device",
    "precision",
    "processes",
    "commit",
    "source",
    "torch",
    "hardware",
    "config",
)
"""Columns of every run, in order; one for each metric follows, named after it."""


@dataclass(frozen=True)
class Options:
    """Write one row per run, over all experiments, to a CSV file."""

    output: Path = Path("results")
    """Folder of the records, searched with all its subfolders."""


def row(record: Record, folder: Path) -> dict[str, Any]:
    """One run. `folder` tells sweeps of the same name apart; `config` is JSON."""
    facts = {name: record.environment.get(name, "") for name in ("commit", "source", "torch", "hardware")}
    own = {name: getattr(record, name) for name in COLUMNS if name not in (*facts, "folder", "parameters", "config")}
    total, config = record.parameters["total"], json.dumps(record.config, sort_keys=True)
    return {**own, **facts, "folder": folder.as_posix(), "parameters": total, "config": config, **record.metrics}


def rows(output: Path) -> list[dict[str, Any]]:
    """All runs under a folder, sorted by path; a damaged record is an error."""
    paths = sorted(output.rglob("seed*.json"), key=lambda path: (path.parts[:-1], len(path.stem), path.stem))
    return [row(Record.read_in_place(path), path.parents[3].relative_to(output)) for path in paths]


def write(found: Iterable[dict[str, Any]], target: Path) -> None:
    """Atomic write; a metric that a run does not have is an empty cell."""
    found = list(found)
    metrics = sorted({name for entry in found for name in entry} - set(COLUMNS))
    with replacing(target) as temporary, temporary.open("w", newline="") as file:
        table = csv.DictWriter(file, [*COLUMNS, *metrics])
        table.writeheader()
        table.writerows(found)


def main(target: Path, options: Options) -> int:
    """`neurocoder export`; returns the exit status."""
    if not options.output.is_dir():
        raise ValueError(f"--output must be a folder with records, got {options.output}")
    found = rows(options.output)
    if not found:
        raise ValueError(f"no records under {options.output}: make some with `neurocoder run`")
    write(found, target)
    print(f"Wrote {target}: {len(found)} runs of {len({entry['experiment'] for entry in found})} experiments.")
    return 0
