"""A job, the unit of a sweep: one variant with one seed; and how to do it."""

from __future__ import annotations

import inspect
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from ..experiments import EXPERIMENTS, load
from ..records import environment
from ..records.record import plain
from ..report.compare import flattened
from ..validate import Count, NonNegative, validate


@dataclass(frozen=True)
class Setup:
    """How to do the jobs of a sweep."""

    output: Path
    device: Literal["cpu", "cuda"] = "cpu"
    precision: Literal["32-true", "bf16-mixed"] = "32-true"
    loop: Literal["plain", "graph"] = "plain"
    threads: Count = 1
    """CPU threads per process."""
    resume: bool = False
    overwrite: bool = False
    interval: NonNegative = 60.0
    """Seconds between checkpoints."""
    dry: bool = False
    """Only say what would be run; nothing is changed."""
    begun: float = field(default_factory=time.time)
    """When the sweep began."""

    def __post_init__(self) -> None:
        validate(self)


@dataclass(frozen=True)
class Job:
    """A variant to train with a seed."""

    experiment: str
    """Name for `experiments.load`."""
    name: str
    """Of the experiment, in records."""
    preset: str
    config: Any
    variant: str
    seed: int

    def __str__(self) -> str:
        return f"{self.variant} seed {self.seed}"

    def folder(self, setup: Setup) -> Path:
        """Folder of its record and checkpoint."""
        return setup.output / self.name / self.preset / self.variant

    def record(self, setup: Setup) -> Path:
        """The file of the finished run."""
        return self.folder(setup) / f"seed{self.seed}.json"

    def checkpoint(self, setup: Setup) -> Path:
        """The file of the unfinished run."""
        return self.folder(setup) / f"seed{self.seed}.checkpoint.safetensors"

    def lock(self, setup: Setup) -> Path:
        """Held while it is trained."""
        return self.folder(setup) / f"seed{self.seed}.lock"

    @property
    def origin(self) -> dict[str, str]:
        """Hash and commit of the file of an experiment outside the package."""
        if self.experiment in EXPERIMENTS:
            return {}
        return environment.origin(Path(inspect.getfile(type(load(self.experiment)))).resolve())

    @property
    def source(self) -> str:
        """Hash of the code that runs it: the package, and the experiment's file if that is outside."""
        return source_of({"source": environment.running(), **self.origin})

    def effective(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """The settings that have an effect on it. A run that differs in no other is the same run."""
        return dict(load(self.experiment).effective(config, self.variant))

    def identity(self, setup: Setup) -> dict[str, Any]:
        """What its checkpoint says about it. To be resumed, all must match but settings without an effect."""
        return {
            "variant": self.variant,
            "seed": self.seed,
            "device": setup.device,
            "precision": setup.precision,
            "loop": setup.loop,
            **{f"config.{name}": value for name, value in plain(self.config).items()},
        }


def source_of(facts: Mapping[str, str]) -> str:
    """The code that made a record, from its environment."""
    return " ".join(filter(None, (facts.get("source"), facts.get("experiment_source"))))


def diff_config(old: dict[str, Any], new: dict[str, Any]) -> str:
    """How two configs differ, in words; empty if they do not."""
    old, new = flattened(old), flattened(new)
    names = [name for name in old | new if old.get(name) != new.get(name)]
    return ", ".join(f"{name} is {old.get(name)!r} there and {new.get(name)!r} here" for name in names)
