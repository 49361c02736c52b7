"""Records: one JSON file for each device and case, written atomically."""

from __future__ import annotations

import json
import math
import os
import statistics
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import torch

from .. import environment
from ..files import replacing, set_aside

Record = dict[str, Any]
SCHEMA = 1
_FIELDS = {
    "device": str,
    "case": str,
    "config": dict,
    "settings": dict,
    "seed": int,
    "versions": dict,
    "hardware": dict,
    "commit": str,
    "started": str,
    "wall_seconds": float,
    "measurements": list,
}
_ENTRY = {"contender": str, "dtype": str, "mode": str, "direction": str, "status": str}


class Spread(NamedTuple):
    """A median between its quartiles."""

    low: float
    median: float
    high: float


def median(values: Sequence[float]) -> float:
    """The middle value."""
    return statistics.median(values)


def spread(values: Sequence[float]) -> Spread:
    """25th, 50th and 75th percentile."""
    if len(values) == 1:
        return Spread(values[0], values[0], values[0])
    return Spread(*statistics.quantiles(values, n=4, method="inclusive"))


def describe(device: str, commit: str | None) -> Record:
    """What ran where: versions, hardware, and the commit (with whether the code differs from it)."""
    cpu = environment.processor()
    hardware: Record = {"cpu": cpu, "cores": os.cpu_count(), "threads": torch.get_num_threads()}
    hardware["load"] = round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None
    if device == "cuda":
        properties = torch.cuda.get_device_properties(0)
        hardware = {
            "gpu": properties.name,
            "gpu_bytes": properties.total_memory,
            "cuda": torch.version.cuda,
            **hardware,
        }
    return {
        "versions": environment.versions(),
        "hardware": {"name": hardware.get("gpu", cpu), **hardware},
        "commit": environment.commit(commit),
        "dirty": environment.changed(commit),
    }


def now() -> str:
    """The current time, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def write(path: Path, record: Record) -> None:
    """Atomic write."""
    with replacing(path) as temporary:
        temporary.write_text(json.dumps(record, indent=1, allow_nan=False) + "\n")


def _repetitions(seconds: Any) -> bool:
    """Whether these are valid times."""
    listed = isinstance(seconds, list) and len(seconds) > 0
    return listed and all(isinstance(value, float) and math.isfinite(value) and value > 0 for value in seconds)


def _problem(record: Any) -> str | None:
    """What is wrong with a record, or None."""
    if not isinstance(record, dict):
        return "not an object"
    if record.get("schema") != SCHEMA:
        return f"schema is {record.get('schema')!r}, not {SCHEMA}"
    for name, kind in _FIELDS.items():
        if not isinstance(record.get(name), kind):
            return f"{name} is missing or not a {kind.__name__}"
    for index, entry in enumerate(record["measurements"]):
        if not isinstance(entry, dict) or any(not isinstance(entry.get(name), kind) for name, kind in _ENTRY.items()):
            return f"measurement {index} is incomplete"
        if entry["status"] == "measured" and not _repetitions(entry.get("seconds")):
            return f"measurement {index} has no valid repetitions"
    return None


def read(path: Path, log: Callable[[str], None]) -> Record | None:
    """A record, or None if there is none; a damaged one is reported and set aside."""
    try:
        record: Any = json.loads(path.read_text())
        problem = _problem(record)
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        problem = str(error)
    if problem is None:
        return record
    log(f"damaged record {path} ({problem}), set aside as {set_aside(path).name}")
    return None


def read_all(output: Path, log: Callable[[str], None]) -> Iterator[Record]:
    """Every valid record, device by device."""
    for path in sorted(output.glob("*/*.json")):
        record = read(path, log)
        if record is not None:
            yield record


def sound(record: Record) -> bool:
    """Whether nothing in it was refused or failed."""
    return all(entry["status"] in ("measured", "skipped") for entry in record["measurements"])


def covers(record: Record, config: Record) -> bool:
    """Whether a record holds all that this configuration asks for, without a wrong result."""
    old, new = dict(record["config"]), json.loads(json.dumps(config))
    old_groups, new_groups = old.pop("groups", []), new.pop("groups")
    return old == new and all(group in old_groups for group in new_groups) and sound(record)
