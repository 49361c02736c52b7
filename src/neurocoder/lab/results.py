"""Records: one JSON file per finished run, with everything needed to reproduce and report it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from .files import replacing

FORMAT = 1
_KINDS = {"seed": int, "config": dict, "parameters": dict, "metrics": dict, "history": list, "observations": dict}


OWN = ("step", "loss")
"""What each entry of a history has besides the metrics."""


class Damaged(ValueError):
    """A file that is not what its name says."""


@dataclass
class Record:
    """A finished run."""

    experiment: str
    preset: str
    variant: str
    seed: int
    config: dict[str, Any]
    loop: str
    """How it was trained: `plain`, `graph` (a step is one CUDA graph) or `stacked` (with other seeds, as one model; on
    a GPU as a graph too)."""
    device: str
    precision: str
    processes: int
    """Number of processes that shared each batch."""
    parameters: dict[str, int]
    """By part, and `total`, as `nc.count_parameters` returns them."""
    metrics: dict[str, float]
    """After the last step."""
    history: list[dict[str, float]]
    """At each evaluation: `step`, `loss` (mean training loss since the previous one) and the metrics."""
    observations: dict[str, Any]
    """What the figures need from the trained model."""
    seconds: float
    """Wall time of training and evaluation, over all parts of a resumed run; of all seeds if stacked."""
    environment: dict[str, str] = field(default_factory=dict)
    """Commit, versions, hardware."""
    format: int = FORMAT

    def write(self, target: Path) -> None:
        """Atomic write; one line per field."""
        lines = []
        for name, value in asdict(self).items():
            try:
                lines.append(f"{json.dumps(name)}: {json.dumps(value)}")
            except TypeError as error:
                raise ValueError(f"{name} must be JSON-serializable: {error}") from None
        with replacing(target) as temporary:
            temporary.write_text("{\n" + ",\n".join(lines) + "\n}\n")

    @classmethod
    def read(cls, source: Path) -> Record:
        """Raises `Damaged` if the file is not a valid record."""
        try:
            content = json.loads(source.read_text())
            if content["format"] != FORMAT:
                raise Damaged(f"{source} has format {content['format']!r}, this version reads {FORMAT}")
            for name, kind in _KINDS.items():
                if not isinstance(content[name], kind):
                    raise TypeError(f"{name} is not a {kind.__name__}")
            numbers = {"seconds": content["seconds"]}, content["parameters"], content["metrics"], *content["history"]
            for name, value in (item for entry in numbers for item in entry.items()):
                if not isinstance(value, int | float):
                    raise TypeError(f"{name} is not a number")
            if {*OWN, *content["metrics"]} != set(content["history"][-1]):
                raise ValueError("metrics are not those of the last entry of history")
            return cls(**{entry.name: content[entry.name] for entry in fields(cls)})
        except Damaged:
            raise
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise Damaged(f"{source} is not a record: {type(error).__name__}: {error}") from None

    @classmethod
    def read_in_place(cls, source: Path) -> Record:
        """A record that matches its path, experiment/preset/variant/seed; raises `Damaged` otherwise."""
        record = cls.read(source)
        says = (record.experiment, record.preset, record.variant, f"seed{record.seed}")
        if says != (*source.parts[-4:-1], source.stem):
            raise Damaged(f"{source} says that it is {'/'.join(map(str, says))}")
        return record


def plain(config: Any) -> dict[str, Any]:
    """A config dataclass as its record stores it, after a round trip through JSON."""
    return json.loads(json.dumps(asdict(config)))
