"""Runs: which are requested, which are finished, and how to do one, from its checkpoint to its record."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from ..experiments import EXPERIMENTS, load
from ..records import environment, store
from ..records import record as results
from ..records.checkpoint import Checkpoint
from ..records.files import obstacle, set_aside
from ..records.locks import locked
from ..records.record import Damaged, Record
from ..train.context import Context, Guard, TrainingError, final

Log = Callable[[str], None]


class Refused(ValueError):
    """A request that is refused; the message says what to do."""


@dataclass(frozen=True)
class Setup:
    """How to do the runs of a sweep."""

    output: Path
    device: str = "cpu"
    precision: str = "32-true"
    loop: str = "plain"
    """`plain` or `graph`."""
    threads: int = 1
    """CPU threads per process."""
    resume: bool = False
    again: bool = False
    interval: float = 60.0
    """Seconds between checkpoints."""
    dry: bool = False
    """Only say what would be run; nothing is changed."""
    begun: float = field(default_factory=time.time)
    """When the sweep began."""


@dataclass(frozen=True)
class Unit:
    """What is trained at once: a variant with a seed."""

    experiment: str
    """Name for `experiments.load`."""
    name: str
    preset: str
    config: Any
    variant: str
    seed: int

    def __str__(self) -> str:
        return f"{self.variant} seed {self.seed}"

    def folder(self, setup: Setup) -> Path:
        """Folder of its records and checkpoints."""
        return setup.output / self.name / self.preset / self.variant

    def record(self, setup: Setup) -> Path:
        """The file of a finished run."""
        return self.folder(setup) / f"seed{self.seed}.json"

    def checkpoint(self, setup: Setup) -> Path:
        """The file of an unfinished run."""
        return self.folder(setup) / f"seed{self.seed}.checkpoint.safetensors"

    @property
    def own(self) -> dict[str, str]:
        """Hash and commit of the file of an experiment outside the package."""
        if self.experiment in EXPERIMENTS:
            return {}
        return environment.origin(Path(inspect.getfile(type(load(self.experiment)))).resolve())

    @property
    def source(self) -> str:
        """Hash of the code that runs it: the package, and the experiment's file if that is outside."""
        return _source({"source": environment.running(), **self.own})

    def lock(self, setup: Setup) -> Path:
        """Held while it is trained."""
        return self.folder(setup) / f"seed{self.seed}.lock"

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
            **{f"config.{name}": value for name, value in results.plain(self.config).items()},
        }


def format_seeds(seeds: Iterable[int]) -> str:
    """`0-2,5` for 0, 1, 2, 5."""
    parts: list[list[int]] = []
    for seed in sorted(seeds):
        if parts and seed == parts[-1][-1] + 1:
            parts[-1].append(seed)
        else:
            parts.append([seed])
    return ",".join(f"{part[0]}-{part[-1]}" if len(part) > 1 else str(part[0]) for part in parts)


def differences(old: dict[str, Any], new: dict[str, Any]) -> str:
    """In words; empty if there are none."""
    old, new = _flat(old), _flat(new)
    names = [name for name in old | new if old.get(name) != new.get(name)]
    return ", ".join(f"{name} is {old.get(name)!r} there and {new.get(name)!r} here" for name in names)


def _flat(config: dict[str, Any]) -> dict[str, Any]:
    """With nested settings under their own names, as on the command line."""
    found: dict[str, Any] = {}
    for name, value in config.items():
        found |= _flat(value) if isinstance(value, dict) else {name: value}
    return found


def pending(units: Iterable[Unit], setup: Setup, log: Log) -> list[Unit]:
    """The units still to run. Conflicts are refused before any training."""
    wanted: list[Unit] = []
    others, idle = 0, set()
    for unit in units:
        if not wanted:
            for problem in store.read(setup.output / unit.name / f"{unit.preset}{store.SUFFIX}")[1]:
                log(f"damaged record: {problem}; its runs are repeated")
        if (record := _finished(unit, setup, log)) is None:
            wanted.append(unit)
        else:
            others += _source(record.environment) != unit.source
            idle.add(_idle(unit, record))
    if others:
        log(f"{others} finished run{'s' * (others > 1)} made with other source code; kept, --again replaces")
    for words in sorted(idle - {""}):
        log(f"finished runs are kept, although {words}; --again repeats them")
    if setup.dry:
        return wanted
    if wanted and (why := obstacle(setup.output)):
        raise Refused(f"--output must be a folder that can be written to, got {setup.output}: {why}")
    for unit in wanted:
        if unit.checkpoint(setup).exists():
            with locked(unit.lock(setup)) as free:
                if free:  # else it is of a run in another process
                    _checkpoint(unit, setup, log)
    return wanted


def _source(facts: Mapping[str, str]) -> str:
    """The code that made a record, from its environment."""
    return " ".join(filter(None, (facts.get("source"), facts.get("experiment_source"))))


def _idle(unit: Unit, record: Record) -> str:
    """How the settings without an effect differ, in words. A record may be older than a setting."""
    asked = results.plain(unit.config)
    both = record.config.keys() & asked.keys()
    return differences({name: record.config[name] for name in both}, {name: asked[name] for name in both})


def _finished(unit: Unit, setup: Setup, log: Log) -> Record | None:
    """The valid record to keep, if there is one: its own file, or a row of a packed one. A checkpoint beside it is of a
    later run, which was interrupted."""
    path = unit.record(setup)
    if setup.again or unit.checkpoint(setup).exists():
        return None
    asked = unit.effective(results.plain(unit.config)) | {"precision": setup.precision}

    def difference(found: Record) -> str:
        return differences(unit.effective(found.config) | {"precision": found.precision}, asked)

    if not path.exists():
        rows = store.find(setup.output, unit.name, unit.preset, unit.variant, unit.seed)
        return next((row for row in rows if not difference(row)), None)
    try:
        record = Record.read_in_place(path)
    except Damaged as problem:
        aside = "" if setup.dry else f" set aside as {set_aside(path).name},"
        log(f"damaged record: {problem};{aside} the run is repeated")
        return None
    if words := difference(record):
        raise Refused(
            f"{path} has a different configuration: {words}; choose another --output, or replace it with --again"
        )
    return record


def _counting(unit: Unit, identity: Mapping[str, Any]) -> dict[str, Any]:
    """An identity without the settings that have no effect."""
    config = {name.removeprefix("config."): value for name, value in identity.items() if name.startswith("config.")}
    others = {name: value for name, value in identity.items() if not name.startswith("config.")}
    return others | {f"config.{name}": value for name, value in unit.effective(config).items()}


def _checkpoint(unit: Unit, setup: Setup, log: Log) -> Checkpoint | None:
    """The checkpoint to resume from, or None to start over."""
    path = unit.checkpoint(setup)
    if setup.again:
        path.unlink(missing_ok=True)
    if not path.exists():
        return None
    if not setup.resume and path.stat().st_mtime < setup.begun:  # else another process left it since
        raise Refused(
            f"{path} is a checkpoint of an unfinished run: resume it with --resume, or start over with --again"
        )
    try:
        found = Checkpoint.read(path)
    except Damaged as problem:
        log(f"damaged checkpoint: {problem}; set aside as {set_aside(path).name}, the run starts over")
        return None
    if difference := differences(_counting(unit, found.identity), _counting(unit, unit.identity(setup))):
        raise Refused(
            f"{path} is of a different training: {difference}; run with the same options, or start over with --again"
        )
    return found


def perform(unit: Unit, setup: Setup, guard: Guard, start: Checkpoint | None = None) -> Record:
    """Train a unit, from its checkpoint if there is one."""
    torch.set_num_threads(setup.threads)
    experiment = load(unit.experiment)
    context = Context(
        unit.config,
        unit.variant,
        unit.seed,
        torch.device("cuda:0" if setup.device == "cuda" else setup.device),
        loop=setup.loop,
        precision=setup.precision,
        source=unit.source,
        identity=unit.identity(setup),
        start=start,
        guard=guard,
    )
    torch.manual_seed(unit.seed)
    experiment.run(context)
    history = context.history
    if not history or not final(history):
        raise TrainingError(f"the last log of a run must have its metrics, besides loss, got {history[-1:]}")
    return Record(
        experiment=unit.name,
        preset=unit.preset,
        variant=unit.variant,
        seed=unit.seed,
        config=results.plain(unit.config),
        model=context.model,
        loop=setup.loop,
        device=setup.device,
        precision=setup.precision,
        processes=1,
        parameters=context.parameters,
        metrics=final(history),
        history=history,
        observations=context.observations,
        seconds=context.seconds,
        environment=environment.describe(context.device, context.sources) | unit.own,
    )


def claim(unit: Unit, setup: Setup, guard: Guard) -> Record | None:
    """Train a unit, write its record and remove its checkpoint. None if another process has it, or just had."""
    with locked(unit.lock(setup)) as free:
        if not free or _finished_meanwhile(unit, setup):
            return None
        start = _checkpoint(unit, setup, lambda _: None)
        save = guard.save or (lambda checkpoint: checkpoint.write(unit.checkpoint(setup)))
        record = perform(unit, setup, replace(guard, save=save), start)
        keep(unit, setup, record)
        return record


def _finished_meanwhile(unit: Unit, setup: Setup) -> bool:
    """Whether another process has finished it since this sweep began."""
    path = unit.record(setup)
    return path.exists() and path.stat().st_mtime > setup.begun


def keep(unit: Unit, setup: Setup, record: Record) -> None:
    """Write the record and remove the checkpoint."""
    record.write(unit.record(setup))
    unit.checkpoint(setup).unlink(missing_ok=True)
