"""Many runs: in sequence, in several processes, or on a Ray cluster. A failed run does not stop the others."""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import signal
import socket
import threading
import time
import traceback
from collections import deque
from collections.abc import Sequence
from functools import partial
from multiprocessing import connection
from multiprocessing.connection import Connection
from types import FrameType
from typing import Any, cast

import torch

from ..records import checkpoint as checkpoints
from ..records import environment
from ..records.checkpoint import Checkpoint
from ..records.locks import locked
from ..records.record import Record
from ..train.context import Guard, Interrupted, TrainingError
from . import runs
from .progress import Display
from .runs import Refused, Setup, Unit


class Signals:
    """Notes a stop signal, so that training can save a checkpoint first. A second Ctrl-C stops at once."""

    def __init__(self, *kinds: int) -> None:
        self._kinds = kinds or (signal.SIGINT, signal.SIGTERM)
        self._before: dict[int, Any] = {}
        self.received = 0

    def __enter__(self) -> Signals:
        if threading.current_thread() is threading.main_thread():
            self._before = {kind: signal.signal(kind, self._note) for kind in self._kinds}
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT == self.received:
            raise KeyboardInterrupt
        self.received = number


def reason(error: BaseException) -> str:
    """An error in one line; an unexpected one with its location."""
    if isinstance(error, TrainingError):
        return str(error)
    place = traceback.extract_tb(error.__traceback__)[-1:]
    where = "".join(f" ({os.path.basename(frame.filename)}:{frame.lineno})" for frame in place)
    return f"{type(error).__name__}: {error}".strip().replace("\n", " ") + where


def here(units: Sequence[Unit], setup: Setup, display: Display) -> int:
    """In sequence, in this process; returns the signal that stopped it, or 0."""
    with Signals() as signals:
        for unit in units:
            guard = Guard(lambda: signals.received, interval=setup.interval, report=partial(display.running, unit))
            try:
                record = runs.claim(unit, setup, guard)
            except Interrupted as interrupt:
                return interrupt.signal
            except Exception as error:
                display.failed(unit, reason(error))
                if signals.received:  # and could not be saved
                    return signals.received
            else:
                _ended(unit, record, display)
            if signals.received:  # in a run that did not save, or after its last step
                return signals.received
    return 0


def _ended(unit: Unit, record: Record | None, display: Display) -> None:
    if record is None:
        display.elsewhere(unit)
    else:
        display.done(unit, record)


def _work(pipe: Connection, setup: Setup, gpu: str | None) -> None:
    """A worker process: runs the units from the pipe until it is closed."""
    if gpu is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = gpu
    parent = os.getppid()
    with Signals(signal.SIGTERM) as signals:

        def stopped() -> int:
            """The stop signal, or 0; the end of the main process counts as SIGTERM."""
            return signals.received or (0 if os.getppid() == parent else signal.SIGTERM)

        def report(*progress: object) -> None:
            """Tell the main process; if it has ended, `stopped` will say so."""
            with contextlib.suppress(BrokenPipeError):
                pipe.send(progress)

        while True:
            try:
                unit: Unit = pipe.recv()
            except EOFError:
                return
            try:
                pipe.send(runs.claim(unit, setup, Guard(stopped, interval=setup.interval, report=report)))
            except (Interrupted, BrokenPipeError):
                return
            except Exception as error:
                pipe.send(reason(error))


def places(jobs: int, device: str) -> list[str | None]:
    """One GPU per worker, in turn; None on a CPU."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    gpus = visible.split(",") if visible else [str(index) for index in range(torch.cuda.device_count())]
    return [gpus[index % len(gpus)] if device == "cuda" and gpus else None for index in range(jobs)]


class _Worker:
    """A worker process and its current unit."""

    def __init__(self, setup: Setup, gpu: str | None) -> None:
        context = multiprocessing.get_context("spawn")
        self.gpu, self.unit = gpu, cast(Unit | None, None)
        self.pipe, theirs = context.Pipe()
        self._process = context.Process(target=_work, args=(theirs, setup, gpu), daemon=True)
        # Inherited by the worker: only the main process handles Ctrl-C.
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        self._process.start()
        signal.signal(signal.SIGINT, before)
        theirs.close()

    def give(self, unit: Unit) -> None:
        """Send it a unit to run."""
        self.unit = unit
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it died; `_listen` will notice
            self.pipe.send(unit)

    def stop(self) -> None:
        """Ask it to save and exit."""
        self._process.terminate()

    def end(self) -> str:
        """Wait for it to exit; returns how it did."""
        self.pipe.close()
        self._process.join()
        status = self._process.exitcode or 0
        return f"signal {signal.Signals(-status).name}" if status < 0 else f"status {status}"


def processes(units: Sequence[Unit], setup: Setup, jobs: int, display: Display) -> int:
    """In worker processes, each running one unit at a time; returns the signal that stopped it, or 0."""
    waiting, workers, free = deque(units), list[_Worker](), places(jobs, setup.device)
    told = False
    with Signals() as signals, contextlib.ExitStack() as clean:
        clean.callback(_end, workers)
        while waiting or workers:
            if signals.received and not told:
                told = True
                waiting.clear()
                for worker in workers:
                    worker.stop()
            while waiting and free:
                workers.append(_Worker(setup, free.pop(0)))
                workers[-1].give(waiting.popleft())
            for pipe in connection.wait([worker.pipe for worker in workers], timeout=0.2):
                worker = next(worker for worker in workers if worker.pipe is pipe)
                alive = _listen(worker, display)
                if alive and worker.unit is None and waiting:
                    worker.give(waiting.popleft())
                elif not alive or worker.unit is None:
                    workers.remove(worker)
                    free.append(worker.gpu)
                    how = worker.end()
                    if worker.unit is not None and not told:
                        display.failed(worker.unit, f"its process ended with {how}")
    return signals.received


def _end(workers: Sequence[_Worker]) -> None:
    """Stop the workers that are left after an error in the main process."""
    for worker in workers:
        worker.stop()
    for worker in workers:
        worker.end()


def _listen(worker: _Worker, display: Display) -> bool:
    """Handle a message from a worker; returns whether it is still alive."""
    assert worker.unit is not None
    try:
        message = worker.pipe.recv()
    except (EOFError, ConnectionResetError):
        return False
    if isinstance(message, tuple):
        display.running(worker.unit, *message)
        return True
    if isinstance(message, str):
        display.failed(worker.unit, message)
    else:
        _ended(worker.unit, message, display)
    worker.unit = None
    return True


RAY_TIMEOUT = 20.0
"""Seconds in which a Ray cluster must answer."""
IN_FLIGHT = 200
"""Units given to a Ray cluster at a time; each holds lock files."""
STOP_TIMEOUT = 60.0
"""Seconds that the workers of a Ray cluster have to save, after a stop signal."""


def connect(address: str) -> bool:
    """Join a Ray cluster (`auto`: a running one, or a new one on this machine); returns whether it has GPUs."""
    try:
        import ray
    except ModuleNotFoundError:
        raise Refused("--cluster needs ray: pip install 'neurocoder[cluster]'") from None
    forwarded = ("NEUROCODER_DATA", "NEUROCODER_BACKBONE", "NEUROCODER_CACHE", "PYTHONPATH")
    variables = {name: os.environ[name] for name in forwarded if name in os.environ}
    variables["NEUROCODER_COMMIT"] = environment.commit()
    settings: Any = {"log_to_driver": False, "logging_level": logging.ERROR, "runtime_env": {"env_vars": variables}}
    failure: list[Exception] = [TimeoutError(f"no answer for {RAY_TIMEOUT:.0f} s")]
    here = address in ("auto", "local")

    def join() -> None:
        try:
            if not here:
                host, _, port = address.removeprefix("ray://").rpartition(":")
                socket.create_connection((host, int(port)), 10).close()
            ray.init(None if address == "auto" else address, **settings)
            failure.clear()
        except Exception as error:
            failure[0] = error

    if here:
        join()  # in this thread: what it starts ends with the thread
    else:
        thread = threading.Thread(target=join, daemon=True)  # ray itself would retry for minutes
        thread.start()
        thread.join(RAY_TIMEOUT)
    if failure:
        problem = str(failure[0]).partition("\n")[0]
        raise Refused(f"--cluster must be auto, local, or HOST:PORT of a Ray cluster, got {address}: {problem}")
    return bool(ray.cluster_resources().get("GPU"))


class _Post:
    """An actor between workers and the driver: checkpoints and progress one way, the stop signal the other."""

    def __init__(self) -> None:
        self._mail: list[tuple[int, Any]] = []
        self._signal = 0

    def send(self, message: tuple[int, Any]) -> None:
        """From a worker: its number, and progress or a checkpoint's bytes."""
        self._mail.append(message)

    def collect(self) -> list[tuple[int, Any]]:
        """All messages since the last time."""
        mail, self._mail = self._mail, []
        return mail

    def stop(self, signal: int) -> None:
        """Tell the workers to stop."""
        self._signal = signal

    def stopped(self) -> int:
        """The stop signal, or 0."""
        return self._signal


def _remote(unit: Unit, setup: Setup, number: int, post: Any, start: bytes | None) -> Record | str | None:
    """A Ray task: the record of the unit, why it failed, or None if it was stopped."""
    import ray

    asked, signal = time.monotonic(), 0

    def stopped() -> int:
        nonlocal asked, signal
        if time.monotonic() - asked > 0.5:
            asked, signal = time.monotonic(), ray.get(post.stopped.remote())
        return signal

    guard = Guard(
        stopped,
        save=lambda checkpoint: ray.get(post.send.remote((number, checkpoint.to_bytes()))),
        interval=setup.interval,
        report=lambda *progress: post.send.remote((number, progress)),
    )
    try:
        return runs.perform(unit, setup, guard, Checkpoint.from_bytes(start) if start else None)
    except Interrupted:
        return None
    except Exception as error:
        return reason(error)


def cluster(units: Sequence[Unit], setup: Setup, display: Display) -> int:
    """On the Ray cluster that `connect` joined. Records and checkpoints are sent back and written here."""
    import ray

    task = ray.remote(num_cpus=setup.threads, num_gpus=1 if setup.device == "cuda" else 0, max_retries=0)(_remote)
    post: Any = ray.remote(num_cpus=0)(_Post).remote()
    waiting, running, retried = deque(enumerate(units)), dict[Any, int](), set[int]()
    held: dict[int, contextlib.ExitStack] = {}

    def submit(number: int) -> None:
        path = units[number].checkpoint(setup)
        start = path.read_bytes() if path.exists() else None
        running[task.remote(units[number], setup, number, post, start)] = number

    def deliver() -> None:
        for number, message in ray.get(post.collect.remote()):
            if isinstance(message, bytes):
                checkpoints.write(message, units[number].checkpoint(setup))
            elif number in running.values():
                display.running(units[number], *message)

    with Signals() as signals, contextlib.ExitStack() as clean:
        clean.callback(ray.shutdown)
        everything = clean.enter_context(contextlib.ExitStack())
        deadline = None
        while (running or waiting) and (deadline is None or time.monotonic() < deadline):
            if signals.received and deadline is None:
                deadline = time.monotonic() + STOP_TIMEOUT
                waiting.clear()
                ray.get(post.stop.remote(signals.received))
            while waiting and len(running) < IN_FLIGHT:
                number, unit = waiting.popleft()
                held[number] = everything.enter_context(contextlib.ExitStack())
                if held[number].enter_context(locked(unit.lock(setup))):
                    submit(number)
                else:
                    display.elsewhere(unit)
            finished = ray.wait(list(running), timeout=0.5)[0] if running else []
            deliver()
            for reference in finished:
                number = running.pop(reference)
                try:
                    outcome = ray.get(reference)
                except ray.exceptions.RayError as error:
                    if number not in retried and not signals.received:
                        retried.add(number)
                        submit(number)
                        continue
                    outcome = reason(error)
                if isinstance(outcome, Record):
                    runs.keep(units[number], setup, outcome)
                    display.done(units[number], outcome)
                elif outcome is not None:
                    display.failed(units[number], outcome)
                held[number].close()
    return signals.received
