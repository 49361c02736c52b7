"""What an experiment provides to the lab: configurations, variants, a run, and the sections of its report.

The lab does the rest: devices, checkpoints, records, sweeps and reports.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch

from ..records.record import Record
from ..report.compare import Rows
from ..report.sections import Plot, Section
from ..train.context import Context
from ..train.loop import train
from ..train.spec import Task


class Experiment(ABC):
    """An experiment, from the paper or your own. A run is one variant with one seed."""

    name: ClassVar[str]
    """As in `neurocoder run NAME`."""
    title: ClassVar[str]
    Config: ClassVar[type]
    """A frozen dataclass that validates itself; the docstring of each field is its help on the command line. It says
    how to train and on what; a variant says which model."""
    presets: ClassVar[Mapping[str, Any]]
    """Configurations by name; the first is the default and takes minutes."""
    seeds: ClassVar[Mapping[str, Sequence[int]]]
    """The default seeds of each preset."""
    metric: ClassVar[str | None] = None
    """The main metric, by which settings are compared; None: the first."""
    selections: ClassVar[Mapping[str, str]] = {}
    """The default `--variants` of presets that do not run all."""
    minutes: ClassVar[Mapping[str, tuple[float, float]]] = {}
    """What each preset takes: all its runs on two CPU cores, and on one GPU with `--jobs`."""
    loops: ClassVar[Sequence[str]] = ("plain",)
    """How it can train: `plain`, `graph` (as CUDA graphs)."""

    @abstractmethod
    def variants(self, config: Any) -> Sequence[str]:
        """Names of all variants, in the order of the tables: letters, digits, `-` and `.`."""

    def naming(self, config: Any) -> str:
        """The variants as the help shows them; override it if they are too many to list."""
        return ", ".join(self.variants(config))

    def effective(self, config: Mapping[str, Any], variant: str) -> Mapping[str, Any]:
        """The settings that have an effect on this variant. Runs that differ in no other are compared as equals, and
        one may resume the other."""
        return config

    def chosen(self, config: Any, variant: str) -> Mapping[str, Any]:
        """What settings that are left to a table in the code stand for now, under the names by which `run` observes
        it. A finished run that observed something else is another one."""
        return {}

    def prepare(self, config: Any, variants: Sequence[str]) -> None:  # noqa: B027  # most experiments need nothing
        """Called before a sweep of these variants: find what they read, or download it. Raise `FileNotFoundError` or
        `ValueError` that says what to do."""

    @abstractmethod
    def run(self, context: Context) -> None:
        """Train and evaluate `context.variant` with `context.seed`. The same settings give the same result."""

    @abstractmethod
    def sections(self, records: Sequence[Record], paper: Mapping[str, Any]) -> list[Section]:
        """Tables and figures from this experiment's records (one preset's, any subset of variants and seeds) beside the
        paper's numbers (this experiment's part of `paper.toml`)."""

    def compared(self, rows: Rows) -> list[Plot]:
        """Figures of several configurations of a preset, beside the table that compares them. A row has the settings
        that differ from the preset's, and the records."""
        return []


class TaskExperiment(Experiment):
    """An experiment whose runs each train one model on one stream of batches."""

    loops: ClassVar[Sequence[str]] = ("plain", "graph")

    @abstractmethod
    def build(self, config: Any, variant: str, seed: int, device: torch.device) -> Task:
        """The task of one run. The same arguments give the same task, whatever the state of torch's generators."""

    def run(self, context: Context) -> None:
        train(context, self.build(context.config, context.variant, context.seed, context.device))
