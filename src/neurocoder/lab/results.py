"""Records: one JSON file a finished run, with all that is needed to repeat and to report it."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy
import torch

from ..version import __version__

FORMAT = 1


class Damaged(ValueError):
    """A file that is not a record."""


@dataclass
class Record:
    """A finished run."""

    experiment: str
    preset: str
    variant: str
    seed: int
    config: dict[str, Any]
    loop: str
    """How it was trained: `plain`, `graph` (one CUDA graph a step) or `stacked` (with other seeds, as one model)."""
    device: str
    precision: str
    processes: int
    """Over how many the batch was split."""
    parameters: dict[str, int]
    """By part, and `total`, as `nc.count_parameters` has it."""
    metrics: dict[str, float]
    """After the last step."""
    history: list[dict[str, float]]
    """At each evaluation: `step`, `loss` (mean of the training loss since the one before) and the metrics."""
    observations: dict[str, Any]
    """What figures need of the trained model."""
    seconds: float
    """Wall time of training and evaluation, over all parts of a resumed run."""
    environment: dict[str, str] = field(default_factory=dict)
    """Commit, versions, hardware."""
    format: int = FORMAT

    def write(self, target: Path) -> None:
        """Under a temporary name, then renamed."""
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = target.with_name(f".{target.name}.{os.getpid()}")
        try:
            temporary.write_text(json.dumps(asdict(self), indent=1, allow_nan=True) + "\n")
            os.replace(temporary, target)
        finally:
            temporary.unlink(missing_ok=True)

    @classmethod
    def read(cls, source: Path) -> Record:
        """Raises `Damaged` where the file is none of ours."""
        try:
            content = json.loads(source.read_text())
            if content["format"] != FORMAT:
                raise Damaged(f"{source} has format {content['format']!r}, this version reads {FORMAT}")
            return cls(**{entry.name: content[entry.name] for entry in fields(cls)})
        except (ValueError, KeyError, TypeError) as error:
            if isinstance(error, Damaged):
                raise
            raise Damaged(f"{source} is not a record: {type(error).__name__}: {error}") from None


def environment(device: torch.device, commit: str | None = None) -> dict[str, str]:
    """Where a run ran."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else processor()
    return {
        "commit": commit or os.environ.get("NEUROCODER_COMMIT") or current_commit(),
        "neurocoder": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "hardware": name,
        "threads": str(torch.get_num_threads()),
    }


def processor() -> str:
    """The name of the CPU."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def current_commit() -> str:
    """Of the checkout that this file belongs to, with `+` where it was changed; `unknown` outside one."""
    folder = Path(__file__).parent

    def git(*arguments: str) -> str:
        done = subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=10)
        return done.stdout.strip() if done.returncode == 0 else ""

    try:
        commit = git("rev-parse", "--short=12", "HEAD")
        return f"{commit}{'+' if git('status', '--porcelain', '--untracked-files=no') else ''}" if commit else "unknown"
    except (OSError, subprocess.TimeoutExpired):
        return "unknown"
