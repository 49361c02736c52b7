"""Many jobs: in sequence, in several processes, or on a Ray cluster. One that fails does not stop the others."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from multiprocessing import connection
from multiprocessing.connection import Connection
from typing import Protocol

import torch

from ..records.record import Record
from ..train.context import Interrupted, RunHooks, TrainingError
from .job import Job, Setup
from .progress import Display
from .signals import StopSignals
from .sweep import run_locked

Outcome = Record | str | Interrupted | None
"""How a job ended: its record, why it failed, that it was stopped, or None if another process has it."""
Progress = tuple[int, int, str]
"""Step, steps, and numbers to show."""


class Executor(Protocol):
    """Where jobs run."""

    places: int
    """Jobs at a time."""

    def start(self, job: Job) -> None:
        """Begin a job."""

    def events(self) -> Iterable[tuple[Job, Progress | Outcome]]:
        """What the jobs have come to, if anything; waits for a moment."""

    def stop(self) -> None:
        """Ask all jobs to save and end."""

    def close(self) -> None:
        """Free everything, also after an error."""


def run_jobs(jobs: Sequence[Job], setup: Setup, display: Display, *, processes: int = 1, cluster: bool = False) -> int:
    """Do the jobs, and show what they come to; returns the signal that stopped them, or 0."""
    waiting, running, stopping = deque(jobs), 0, False
    with StopSignals() as signals, contextlib.ExitStack() as clean:
        executor: Executor
        if cluster:
            from .cluster import Cluster

            executor = Cluster(setup)
        else:
            executor = Pool(setup, processes) if processes > 1 else Here(setup, signals, display)
        clean.callback(executor.close)
        while True:
            if signals.received and not stopping:
                stopping = True
                waiting.clear()
                executor.stop()
            while waiting and running < executor.places:
                executor.start(waiting.popleft())
                running += 1
            if not running:
                return signals.received
            for job, news in executor.events():
                if isinstance(news, tuple):
                    display.running(job, *news)
                    continue
                running -= 1
                if isinstance(news, Record):
                    display.done(job, news)
                elif isinstance(news, str):
                    display.failed(job, news)
                elif news is None:
                    display.elsewhere(job)


def attempt(work: Callable[[], Record | None]) -> Outcome:
    """How the work ended."""
    try:
        return work()
    except Interrupted as interrupt:
        return interrupt
    except Exception as error:
        return reason(error)


def reason(error: BaseException) -> str:
    """An error in one line; an unexpected one with its location."""
    if isinstance(error, TrainingError):
        return str(error)
    place = traceback.extract_tb(error.__traceback__)[-1:]
    where = "".join(f" ({os.path.basename(frame.filename)}:{frame.lineno})" for frame in place)
    return f"{type(error).__name__}: {error}".strip().replace("\n", " ") + where


class Here:
    """In this process, one after the other."""

    places = 1

    def __init__(self, setup: Setup, signals: StopSignals, display: Display) -> None:
        self._setup, self._signals, self._display = setup, signals, display

    def start(self, job: Job) -> None:
        self._job = job

    def events(self) -> Iterator[tuple[Job, Outcome]]:
        """Does the job."""
        report = partial(self._display.running, self._job)
        hooks = RunHooks(lambda: self._signals.received, interval=self._setup.interval, report=report)
        yield self._job, attempt(partial(run_locked, self._job, self._setup, hooks))

    def stop(self) -> None:
        """The job has seen the signal."""

    def close(self) -> None:
        """Nothing to free."""


class Pool:
    """In worker processes, each doing one job at a time."""

    def __init__(self, setup: Setup, processes: int) -> None:
        self.places = processes
        self._setup, self._gpus = setup, visible_gpus(processes, setup.device)
        self._workers: list[_Worker] = []
        self._stopping = False

    def start(self, job: Job) -> None:
        worker = next((worker for worker in self._workers if worker.job is None), None)
        if worker is None:
            worker = _Worker(self._setup, self._gpus.pop(0))
            self._workers.append(worker)
        worker.give(job)

    def events(self) -> Iterator[tuple[Job, Progress | Outcome]]:
        busy = [(worker, worker.job) for worker in self._workers if worker.job is not None]
        ready = connection.wait([worker.pipe for worker, _ in busy], timeout=0.2)
        for worker, job in busy:
            if worker.pipe not in ready:
                continue
            try:
                news = worker.pipe.recv()
            except (EOFError, ConnectionResetError):
                self._workers.remove(worker)
                self._gpus.append(worker.gpu)
                how = worker.end()
                news = Interrupted(signal.SIGTERM) if self._stopping else f"its process ended with {how}"
            if not isinstance(news, tuple):
                worker.job = None
            yield job, news

    def stop(self) -> None:
        self._stopping = True
        for worker in self._workers:
            worker.terminate()

    def close(self) -> None:
        self.stop()
        for worker in self._workers:
            worker.end()


class _Worker:
    """A worker process and its current job."""

    def __init__(self, setup: Setup, gpu: str | None) -> None:
        context = multiprocessing.get_context("spawn")
        self.gpu = gpu
        self.job: Job | None = None
        self.pipe, theirs = context.Pipe()
        self._process = context.Process(target=_work, args=(theirs, setup, gpu), daemon=True)
        # Inherited by the worker: only the main process handles Ctrl-C.
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        self._process.start()
        signal.signal(signal.SIGINT, before)
        theirs.close()

    def give(self, job: Job) -> None:
        """Send it a job to do."""
        self.job = job
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it died; `events` will notice
            self.pipe.send(job)

    def terminate(self) -> None:
        """Ask it to save and exit."""
        self._process.terminate()

    def end(self) -> str:
        """Wait for it to exit; returns how it did."""
        self.pipe.close()
        self._process.join()
        status = self._process.exitcode or 0
        return f"signal {signal.Signals(-status).name}" if status < 0 else f"status {status}"


def _work(pipe: Connection, setup: Setup, gpu: str | None) -> None:
    """A worker process: does the jobs from the pipe until it is closed."""
    if gpu is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = gpu
    parent = os.getppid()
    with StopSignals(signal.SIGTERM, signal.SIGHUP) as signals, contextlib.suppress(EOFError, BrokenPipeError):

        def stopped() -> int:
            """The stop signal, or 0; the end of the main process counts as SIGTERM."""
            return signals.received or (0 if os.getppid() == parent else signal.SIGTERM)

        def report(*progress: object) -> None:
            """Tell the main process; if it has ended, `stopped` will say so."""
            with contextlib.suppress(BrokenPipeError):
                pipe.send(progress)

        hooks = RunHooks(stopped, interval=setup.interval, report=report)
        while True:
            job: Job = pipe.recv()
            outcome = attempt(partial(run_locked, job, setup, hooks))
            if isinstance(outcome, Interrupted):
                return
            pipe.send(outcome)


def visible_gpus(jobs: int, device: str) -> list[str | None]:
    """One GPU per worker, in turn; None on a CPU."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    gpus = visible.split(",") if visible else [str(index) for index in range(torch.cuda.device_count())]
    return [gpus[index % len(gpus)] if device == "cuda" and gpus else None for index in range(jobs)]
