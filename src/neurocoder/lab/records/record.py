"""Records: finished runs and what decided them. Each run writes its own file; `pack` gathers them as rows of one."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from .files import atomic_write

FORMAT = 2
OWN = ("step", "loss")
"""What an entry of a history may have besides the metrics; `step` it must have."""

_KINDS: dict[str, Any] = {"seed": int, "model": dict | None, "history": list, "environment": dict}
_KINDS |= dict.fromkeys(("config", "parameters", "metrics", "observations"), dict)
_BEYOND = re.compile(r'"(NaN|-?Infinity)"(?!:)')


class CorruptFileError(ValueError):
    """A file that is not what its name says."""


@dataclass
class Record:
    """A finished run.

    A file stores it as valid JSON: numbers that JSON lacks as the strings "NaN", "Infinity" and "-Infinity", which are
    read as numbers again; and with the digest of everything else, so that an edited number is noticed.
    """

    experiment: str
    preset: str
    variant: str
    seed: int
    config: dict[str, Any]
    model: dict[str, Any] | None
    """The configuration of each program layer, by its name; None: made before this was recorded."""
    loop: str
    """How it was trained: `plain` or `graph` (a step is one CUDA graph); `stacked` (with other seeds, as one model) by
    an older version."""
    device: str
    precision: str
    processes: int
    """Number of processes that shared each batch: 1, but in records of an older version."""
    parameters: dict[str, int]
    """By part, and `total`, as `nc.count_parameters` returns them."""
    metrics: dict[str, float]
    """After the last step: those of the last entry of history."""
    history: list[dict[str, float]]
    """At each evaluation: `step`, the metrics and, if there is one, `loss` (mean training loss since the previous)."""
    observations: dict[str, Any]
    """What the figures need from the trained model."""
    seconds: float
    """Wall time of training and evaluation, over all parts of a resumed run; of all seeds if stacked."""
    environment: dict[str, str] = field(default_factory=dict)
    """Commit, whether the source was changed on top, versions, hardware."""
    format: int = FORMAT

    def row(self) -> dict[str, Any]:
        """As a file stores it; raises `ValueError` for what could not be read back."""
        for name, value in vars(self).items():
            try:
                json.dumps(value)
            except TypeError as error:
                raise ValueError(f"{name} must be JSON-serializable: {error}") from None
        self.check()
        row = json.loads(json.dumps(vars(self)), parse_constant=str)
        return {**row, "digest": digest(row)}

    def check(self) -> None:
        """Raises `ValueError` for a wrong kind of value, and for metrics that are not the last ones."""
        for name, kind in _KINDS.items():
            if not isinstance(value := getattr(self, name), kind):
                raise ValueError(f"{name} must be a {getattr(kind, '__name__', kind)}, got {value!r}")
        parts: list[dict[str, Any]] = [{"seconds": self.seconds}, self.parameters, self.metrics, *self.history]
        for name, value in (item for part in parts for item in part.items()):
            if not isinstance(value, int | float):
                raise ValueError(f"{name} must be a number, got {value!r}")
        if not self.history or not all("step" in entry for entry in self.history):
            raise ValueError("history must have entries, each with its step")
        last = {name: value for name, value in self.history[-1].items() if name not in OWN}
        if json.dumps(last, sort_keys=True) != json.dumps(self.metrics, sort_keys=True):  # as text, NaN equals NaN
            raise ValueError(f"metrics must be those of the last entry of history, {last}, got {self.metrics}")

    def write(self, target: Path) -> None:
        """Atomic write; one line per field."""
        lines = [f"{json.dumps(name)}: {json.dumps(value)}" for name, value in self.row().items()]
        with atomic_write(target) as temporary:
            temporary.write_text("{\n" + ",\n".join(lines) + "\n}\n")

    @classmethod
    def parse(cls, text: bytes, source: object) -> Record:
        """The record in a JSON text; raises `CorruptFileError`, naming the source, if there is none."""
        try:
            row = json.loads(text, parse_constant=str)
            if row["format"] != FORMAT:
                raise CorruptFileError(f"{source} has format {row['format']!r}, this version reads {FORMAT}")
            if row.pop("digest") != digest(row):
                raise CorruptFileError(f"{source} does not match its digest: was it edited?")
            record = cls(**{entry.name: _natural(row[entry.name]) for entry in fields(cls)})
            record.check()
            return record
        except CorruptFileError:
            raise
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise CorruptFileError(f"{source} is not a record: {type(error).__name__}: {error}") from None

    @classmethod
    def read(cls, source: Path) -> Record:
        """Raises `CorruptFileError` if the file is not a valid record."""
        return cls.parse(source.read_bytes(), source)

    @classmethod
    def read_in_place(cls, source: Path) -> Record:
        """A record that matches its path, experiment/preset/variant/seed; raises `CorruptFileError` otherwise."""
        record = cls.read(source)
        place = (record.experiment, record.preset, record.variant, f"seed{record.seed}")
        if place != (*source.parts[-4:-1], source.stem):
            raise CorruptFileError(f"{source} says that it is {'/'.join(map(str, place))}")
        return record


def digest(row: dict[str, Any]) -> str:
    """SHA-256 of a row without its digest, as JSON with sorted keys."""
    return hashlib.sha256(json.dumps(row, sort_keys=True).encode()).hexdigest()


def plain(config: Any) -> dict[str, Any]:
    """A config dataclass as its record stores it, after a round trip through JSON."""
    return json.loads(json.dumps(asdict(config)))


def _natural(value: Any) -> Any:
    """With the numbers that JSON lacks."""
    return value if isinstance(value, str) else json.loads(_BEYOND.sub(r"\1", json.dumps(value)))
