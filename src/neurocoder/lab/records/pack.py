"""`neurocoder pack`: the loose records of a sweep become one compressed file, with a line per run."""

from __future__ import annotations

import gzip
import json
import os
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import tyro

from . import store
from .files import atomic_write
from .locks import locked
from .record import Record

ENTRIES, DIGITS = 100, 6
"""What figures draw: entries of a history, and significant digits."""


@dataclass(frozen=True)
class Options:
    """Gather the records of finished runs into one compressed file per experiment and preset."""

    records: Path = Path("runs")
    """Folder of the records, searched with all its subfolders."""
    destination: Annotated[Path | None, tyro.conf.arg(metavar="PATH")] = None
    """Folder for the packed files; by default the same one."""


def thinned(record: Record) -> Record:
    """With evenly spaced entries of history, and rounded numbers there and in the observations. Metrics, and with them
    the last entry, stay exact."""
    end, history = len(record.history) - 1, record.history
    if end >= ENTRIES:
        history = [history[round(place * end / (ENTRIES - 1))] for place in range(ENTRIES)]
    history = [*_rounded(history[:-1]), history[-1]]
    return replace(record, history=history, observations=_rounded(record.observations))


def _rounded(value: Any) -> Any:
    return json.loads(json.dumps(value), parse_float=lambda text: float(f"{float(text):.{DIGITS}g}"))


def write(target: Path, rows: Iterable[Record]) -> None:
    """Atomic write, read back before it replaces the earlier file; equal rows give equal bytes."""
    content = "".join(f"{json.dumps(row.row())}\n" for row in sorted(rows, key=store.key)).encode()
    with atomic_write(target) as temporary:
        with temporary.open("wb") as file:
            file.write(gzip.compress(content, mtime=0))
            file.flush()
            os.fsync(file.fileno())
        if gzip.decompress(temporary.read_bytes()) != content:
            raise OSError("it is not read back as it was written")


def pack(paths: Iterable[Path], target: Path, warn: Callable[[str], None]) -> str:
    """Move loose records into a packed file; returns what was done. Corrupt ones stay, and `warn` is told of them.

    A run is in one of the two at every moment, so the next call completes what a killed one left.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    with locked(target.with_name(f".{target.name}.lock"), wait=True):
        for left in target.parent.glob(f".{target.name}.*.tmp"):
            left.unlink()
        earlier, problems = store.read(target)
        if problems:
            warn(f"{problems[0]}; restore that file, or move it away")
            return f"{target}: nothing packed"
        rows, moved, again = {store.key(row): row for row in earlier}, {}, []
        for path in paths:
            found, problems = store.read(path)
            for problem in problems:
                warn(f"{problem}; left where it is")
            for record in found:
                moved[path], new, name = record.row(), thinned(record), store.key(record)
                unknown = store.key(replace(record, model=None))  # of a run from before models were recorded
                rows[name] = rows.pop(unknown, new) if name not in rows else rows[name]
                if rows[name].row() != new.row():
                    again.append(f"{record.variant} seed {record.seed}")
                rows[name] = new
        if moved:
            write(target, rows.values())
        for path, row in moved.items():
            if [record.row() for record in store.read(path)[0]] == [row]:  # else the run was repeated meanwhile
                path.unlink()
            with suppress(OSError):  # not empty
                path.parent.rmdir()
                path.parents[1].rmdir()
    replaced = f"; replaced earlier runs of the same configuration: {', '.join(again)}" if again else ""
    return f"{target}: {len(moved)} packed, {len(rows)} runs in all{replaced}"


def main(options: Options) -> int:
    """`neurocoder pack`; returns the exit status."""
    if not options.records.is_dir():
        raise ValueError(f"--records must be a folder with records, got {options.records}")
    warnings: list[str] = []
    groups: dict[Path, list[Path]] = defaultdict(list)
    for folder in store.experiments(options.records):
        place = (options.destination or options.records) / folder.relative_to(options.records)
        for path in store.loose(folder):
            groups[place / f"{path.parts[-3]}{store.SUFFIX}"].append(path)
    for target, paths in groups.items():
        print(pack(paths, target, warnings.append))
    print(*(f"warning: {line}\n" for line in warnings), sep="", end="", file=sys.stderr)
    if not groups:
        print(f"No loose records under {options.records}: nothing to pack.")
    return 1 if warnings else 0
