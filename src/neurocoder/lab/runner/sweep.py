"""A sweep: which jobs are still to do, and how each is done, from its checkpoint to its record."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch

from ..experiments import load
from ..records import environment, store
from ..records.checkpoint import Checkpoint
from ..records.files import quarantine, require_writable
from ..records.locks import locked
from ..records.record import CorruptFileError, Record, plain
from ..train.context import Context, RunHooks, TrainingError, final
from .job import Job, Setup, diff_config, source_of

Log = Callable[[str], None]


class RequestError(ValueError):
    """A request that is refused; the message says what to do."""


def pending(jobs: Iterable[Job], setup: Setup, log: Log) -> list[Job]:
    """The jobs still to do. Records of another configuration are refused before any training."""
    wanted: list[Job] = []
    others, idle = 0, set()
    for job in jobs:
        if not wanted:
            for problem in store.read(setup.output / job.name / f"{job.preset}{store.SUFFIX}")[1]:
                log(f"damaged record: {problem}; its runs are repeated")
        if (record := _finished(job, setup, log)) is None:
            wanted.append(job)
        else:
            others += source_of(record.environment) != job.source
            idle.add(_idle(job, record))
    if others:
        log(f"{others} finished run{'s' * (others > 1)} made with other source code; kept, --overwrite replaces")
    for words in sorted(idle - {""}):
        log(f"finished runs are kept, although {words}; --overwrite repeats them")
    return wanted


def check_folder(wanted: Sequence[Job], setup: Setup, log: Log) -> None:
    """See that records can be written, and that no checkpoint is in the way of these jobs."""
    if wanted:
        require_writable("--output", setup.output)
    for job in wanted:
        if job.checkpoint(setup).exists():
            with locked(job.lock(setup)) as free:
                if free:  # else it is of a run in another process
                    _checkpoint(job, setup, log)


def _idle(job: Job, record: Record) -> str:
    """How the settings without an effect differ, in words. A record may be older than a setting."""
    asked = plain(job.config)
    both = record.config.keys() & asked.keys()
    return diff_config({name: record.config[name] for name in both}, {name: asked[name] for name in both})


def _finished(job: Job, setup: Setup, log: Log) -> Record | None:
    """The valid record to keep, if there is one: its own file, or a row of a packed one. A checkpoint beside it is of a
    later run, which was interrupted."""
    path = job.record(setup)
    if setup.overwrite or job.checkpoint(setup).exists():
        return None
    asked = job.effective(plain(job.config)) | {"precision": setup.precision}
    chosen = load(job.experiment).chosen(job.config, job.variant)

    def difference(record: Record) -> str:
        then = {name: record.observations[name] for name in chosen if name in record.observations}
        now = {name: chosen[name] for name in then}
        return diff_config(job.effective(record.config) | {"precision": record.precision} | then, asked | now)

    if not path.exists():
        rows = store.find(setup.output, job.name, job.preset, job.variant, job.seed)
        return next((row for row in rows if not difference(row)), None)
    try:
        record = Record.read_in_place(path)
    except CorruptFileError as problem:
        aside = "" if setup.dry else f" set aside as {quarantine(path).name},"
        log(f"damaged record: {problem};{aside} the run is repeated")
        return None
    if words := difference(record):
        raise RequestError(
            f"{path} has a different configuration: {words}; choose another --output, or replace it with --overwrite"
        )
    return record


def _checkpoint(job: Job, setup: Setup, log: Log) -> Checkpoint | None:
    """The checkpoint to resume from, or None to start over."""
    path = job.checkpoint(setup)
    if setup.overwrite:
        path.unlink(missing_ok=True)
    if not path.exists():
        return None
    if not setup.resume and path.stat().st_mtime < setup.begun:  # else another process left it since
        raise RequestError(
            f"{path} is a checkpoint of an unfinished run: resume it with --resume, or start over with --overwrite"
        )
    try:
        checkpoint = Checkpoint.read(path)
    except CorruptFileError as problem:
        log(f"damaged checkpoint: {problem}; set aside as {quarantine(path).name}, the run starts over")
        return None
    if words := diff_config(_effective(job, checkpoint.identity), _effective(job, job.identity(setup))):
        raise RequestError(
            f"{path} is of a different training: {words}; run with the same options, or start over with --overwrite"
        )
    return checkpoint


def _effective(job: Job, identity: Mapping[str, Any]) -> dict[str, Any]:
    """An identity without the settings that have no effect."""
    config = {name.removeprefix("config."): value for name, value in identity.items() if name.startswith("config.")}
    others = {name: value for name, value in identity.items() if not name.startswith("config.")}
    return others | {f"config.{name}": value for name, value in job.effective(config).items()}


@contextmanager
def locked_job(job: Job, setup: Setup) -> Iterator[bool]:
    """Hold a job's lock; yields whether the job is ours: no other process has it, or has finished it since the sweep
    began."""
    record = job.record(setup)
    with locked(job.lock(setup)) as free:
        yield free and not (record.exists() and record.stat().st_mtime > setup.begun)


def run_locked(job: Job, setup: Setup, hooks: RunHooks) -> Record | None:
    """Do a job, write its record and remove its checkpoint. None if another process has it, or just had."""
    with locked_job(job, setup) as ours:
        if not ours:
            return None
        start = _checkpoint(job, setup, lambda _: None)
        save = hooks.save or (lambda checkpoint: checkpoint.write(job.checkpoint(setup)))
        return save_record(job, setup, run_job(job, setup, replace(hooks, save=save), start))


def run_job(job: Job, setup: Setup, hooks: RunHooks, start: Checkpoint | None = None) -> Record:
    """Train, from the checkpoint if there is one."""
    torch.set_num_threads(setup.threads)
    experiment = load(job.experiment)
    context = Context(
        job.config,
        job.variant,
        job.seed,
        torch.device("cuda:0" if setup.device == "cuda" else "cpu"),
        loop=setup.loop,
        precision=setup.precision,
        source=job.source,
        identity=job.identity(setup),
        start=start,
        hooks=hooks,
    )
    torch.manual_seed(job.seed)
    experiment.run(context)
    history = context.history
    if not history or not final(history):
        raise TrainingError(f"the last log of a run must have its metrics, besides loss, got {history[-1:]}")
    return Record(
        experiment=job.name,
        preset=job.preset,
        variant=job.variant,
        seed=job.seed,
        config=plain(job.config),
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
        environment=environment.describe(context.device, context.sources) | job.origin,
    )


def save_record(job: Job, setup: Setup, record: Record) -> Record:
    """Write the record, and remove the checkpoint."""
    record.write(job.record(setup))
    job.checkpoint(setup).unlink(missing_ok=True)
    return record
