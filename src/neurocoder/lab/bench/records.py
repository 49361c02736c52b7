"""Records: a file for each device, with a case on each line as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from ..records.files import atomic_write
from .cases import Case
from .tables import Record


def write(path: Path, found: Mapping[str, Record]) -> None:
    """Atomic write."""
    with atomic_write(path) as temporary:
        temporary.write_text("".join(json.dumps(record, allow_nan=False) + "\n" for record in found.values()))


def read(path: Path) -> dict[str, Record]:
    """The records by case."""
    found = {}
    for number, line in enumerate(path.read_text().splitlines() if path.exists() else (), 1):
        try:
            record = json.loads(line)
            found[record["case"]["name"]] = record
        except (ValueError, LookupError, TypeError):
            raise ValueError(
                f"{path}, line {number}: not a record; restore it, or delete it to measure again"
            ) from None
    return found


def all_passed(record: Record) -> bool:
    """Whether nothing in it was refused or failed."""
    return all(entry["status"] in ("measured", "skipped") for entry in record["measurements"])


def is_complete(record: Record, case: Case) -> bool:
    """Whether a record holds all that a case asks for, without a wrong result."""
    defaults, new = json.loads(json.dumps([asdict(type(case.program).from_dict({})), case.config()]))
    old = {**record["case"], "program": defaults | record["case"]["program"]}  # the program may have newer settings
    groups = old.pop("groups")
    return all(group in groups for group in new.pop("groups")) and old == new and all_passed(record)
