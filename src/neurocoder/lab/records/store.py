"""Where records are: loose, `EXPERIMENT/PRESET/VARIANT/seedN.json`, or packed, `EXPERIMENT/PRESET.jsonl.gz`."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any

from .record import CorruptFileError, Record

SUFFIX = ".jsonl.gz"


def key(record: Record) -> tuple[Any, ...]:
    """What tells the runs of an experiment apart, and their order."""
    config, model = (json.dumps(part, sort_keys=True) for part in (record.config, record.model))
    return record.preset, record.variant, record.seed, config, model, record.precision, record.device, record.loop


def loose(folder: Path) -> list[Path]:
    """The loose records of an experiment's folder."""
    return sorted(path for path in folder.glob("*/*/seed*.json") if path.stem[4:].isdecimal())


def read(path: Path) -> tuple[list[Record], list[str]]:
    """The valid records of a loose or packed file, none if it is not there; and what is wrong with the others."""
    try:
        if not path.name.endswith(SUFFIX):
            return [Record.read_in_place(path)], []
        facts = path.stat()
        return _rows(path, facts.st_ino, facts.st_mtime_ns, facts.st_size)
    except (FileNotFoundError, NotADirectoryError):
        return [], []
    except (CorruptFileError, OSError) as problem:
        return [], [str(problem)]


@lru_cache(maxsize=16)
def _rows(path: Path, *state: int) -> tuple[list[Record], list[str]]:
    """A packed file, parsed once in each state: a sweep asks for each of its runs."""
    found: list[Record] = []
    problems: list[str] = []
    place, number = (path.parent.name, path.name.removesuffix(SUFFIX)), 0
    try:
        with gzip.open(path) as file:
            for number, line in enumerate(file, 1):
                try:
                    record = Record.parse(line, f"{path} line {number}")
                    if (record.experiment, record.preset) != place:
                        raise CorruptFileError(
                            f"{path} line {number} says that it is {record.experiment}/{record.preset}"
                        )
                    found.append(record)
                except CorruptFileError as problem:
                    problems.append(str(problem))
        if not number:
            raise EOFError("it is empty")
    except (OSError, EOFError, zlib.error) as error:
        problems.append(f"{path} is damaged after line {number}: {error}")
    return found, problems


def records(output: Path, experiment: str, warn: Callable[[str], None]) -> list[Record]:
    """All runs of an experiment, sorted; `warn` is told of damaged ones, which are left out. A run that is both loose
    and packed counts once, as the loose one."""
    found: dict[tuple[Any, ...], Record] = {}
    folder = output / experiment
    for path in chain(loose(folder), folder.glob(f"*{SUFFIX}")):  # in this order, as `pack` may be moving some
        rows, problems = read(path)
        found = {key(row): row for row in rows} | found
        for line in problems:
            warn(line)
    return [found[name] for name in sorted(found)]


def find(output: Path, experiment: str, preset: str, variant: str, seed: int) -> list[Record]:
    """The finished runs of a variant and seed, the loose one first; packed ones may differ in configuration. Raises
    `CorruptFileError` if the loose one is; damaged rows of a packed file do not count (`read` names them)."""
    found: list[Record] = []
    with suppress(FileNotFoundError, NotADirectoryError):
        found.append(Record.read_in_place(output / experiment / preset / variant / f"seed{seed}.json"))
    known = {key(record) for record in found}
    rows, _ = read(output / experiment / f"{preset}{SUFFIX}")
    return found + [row for row in rows if (row.variant, row.seed) == (variant, seed) and key(row) not in known]


def experiments(output: Path) -> list[Path]:
    """The folders of all experiments with records under a folder, at any depth."""
    found = {path.parents[2] for path in output.rglob("seed*.json")}
    found |= {path.parent for path in output.rglob(f"*{SUFFIX}")}
    return sorted(folder for folder in found if output in folder.parents)


def everything(output: Path, warn: Callable[[str], None]) -> list[tuple[Path, Record]]:
    """All runs of all experiments, each with the folder of its sweep relative to `output`."""
    found = [(folder.parent, records(folder.parent, folder.name, warn)) for folder in experiments(output)]
    return [(folder.relative_to(output), record) for folder, runs in found for record in runs]
