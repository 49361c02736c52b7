"""Many runs: in sequence, in several processes, or on a Ray cluster. A failed run does not stop the others."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
import traceback
from collections import deque
from collections.abc import Sequence
from functools import partial
from multiprocessing import connection
from multiprocessing.connection import Connection
from types import FrameType, TracebackType
from typing import Any, cast

import torch
from lightning_fabric import Fabric

from . import environment, runs
from .progress import Display
from .runs import Outcome, Refused, Setup, Unit
from .training import Interrupted, TrainingError


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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
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


def here(units: Sequence[Unit], setup: Setup, fabric: Fabric, display: Display) -> int:
    """In sequence, in this process; returns the signal that stopped it, or 0."""
    with Signals() as signals:
        for unit in units:
            report = partial(display.running, unit) if display.live and fabric.is_global_zero else None
            try:
                outcome = runs.perform(unit, setup, fabric, lambda: signals.received, report)
                if fabric.is_global_zero:
                    runs.keep(unit, setup, outcome)
            except Interrupted as interrupt:
                return interrupt.signal
            except Exception as error:
                if fabric.world_size > 1 and not isinstance(error, TrainingError):
                    raise  # the other processes wait for this one and cannot continue without it
                display.failed(unit, reason(error))
                if signals.received:  # and could not be saved
                    return signals.received
            else:
                display.done(unit, outcome)
    return 0


def _work(pipe: Connection, setup: Setup, gpu: str | None, live: bool) -> None:
    """A worker process: runs the units from the pipe until it is closed."""
    if gpu is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = gpu
    fabric, parent = setup.fabric(), os.getppid()
    with Signals(signal.SIGTERM) as signals:

        def stopped() -> int:
            """The stop signal, or 0; the end of the main process counts as SIGTERM."""
            return signals.received or (0 if os.getppid() == parent else signal.SIGTERM)

        while True:
            try:
                unit: Unit = pipe.recv()
            except EOFError:
                return
            report = (lambda *progress: pipe.send(progress)) if live else None
            try:
                outcome = runs.perform(unit, setup, fabric, stopped, report)
                runs.keep(unit, setup, outcome)
                pipe.send(outcome)
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

    def __init__(self, setup: Setup, gpu: str | None, live: bool) -> None:
        context = multiprocessing.get_context("spawn")
        self.gpu, self.unit = gpu, cast(Unit | None, None)
        self.pipe, theirs = context.Pipe()
        self._process = context.Process(target=_work, args=(theirs, setup, gpu, live), daemon=True)
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
                workers.append(_Worker(setup, free.pop(0), display.live))
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
    if isinstance(message, Outcome):
        display.done(worker.unit, message)
    else:
        display.failed(worker.unit, message)
    worker.unit = None
    return True


def connect(address: str) -> bool:
    """Join a Ray cluster (`auto`: a running one, or a new one on this machine); returns whether it has GPUs."""
    try:
        import ray
    except ModuleNotFoundError:
        raise Refused("--cluster needs ray: pip install 'neurocoder[cluster]'") from None
    variables = {name: os.environ[name] for name in ("NEUROCODER_DATA", "PYTHONPATH") if name in os.environ}
    variables["NEUROCODER_COMMIT"] = environment.marked()
    try:
        ray.init(
            None if address == "auto" else address,
            runtime_env={"env_vars": variables},
            log_to_driver=False,
            logging_level="warning",
        )
    except (ConnectionError, ValueError) as error:
        raise Refused(f"--cluster {address}: {error}") from None
    return bool(ray.cluster_resources().get("GPU"))


def _remote(unit: Unit, setup: Setup) -> Outcome | str:
    """A Ray task: the outcome of the unit, or why it failed."""
    try:
        return runs.perform(unit, setup, setup.fabric(), checkpoints=False)
    except Exception as error:
        return reason(error)


def cluster(units: Sequence[Unit], setup: Setup, display: Display) -> int:
    """On the Ray cluster that `connect` joined. The records are sent back and written here."""
    import ray

    kind = ray.remote(num_cpus=setup.threads, num_gpus=1 if setup.device == "cuda" else 0, max_retries=1)
    task = kind(_remote)
    running = {task.remote(unit, setup): unit for unit in units}
    with Signals() as signals:
        while running and not signals.received:
            for reference in ray.wait(list(running), timeout=0.5)[0]:
                unit = running.pop(reference)
                try:
                    outcome = ray.get(reference)
                except ray.exceptions.RayError as error:
                    outcome = reason(error)
                if isinstance(outcome, Outcome):
                    runs.keep(unit, setup, outcome)
                    display.done(unit, outcome)
                else:
                    display.failed(unit, outcome)
        for reference in running:
            ray.cancel(reference, force=True)
    ray.shutdown()
    return signals.received
