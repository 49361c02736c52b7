"""Jobs on a Ray cluster. Records and checkpoints are sent back and written here."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

from ..records import checkpoint as checkpoints
from ..records import environment
from ..records.checkpoint import Checkpoint
from ..records.record import Record
from ..train.context import Interrupted, RunHooks
from .executors import Outcome, Progress, attempt, reason
from .job import Job, Setup
from .sweep import RequestError, locked_job, run_job, save_record

ANSWER_TIMEOUT = 20.0
"""Seconds in which a Ray cluster must answer."""
STOP_TIMEOUT = 60.0
"""Seconds that the workers have to save, after a stop signal."""


def connect(address: str) -> bool:
    """Join a Ray cluster (`auto`: a running one, or a new one on this machine); returns whether it has GPUs."""
    try:
        import ray
    except ModuleNotFoundError:
        raise RequestError("--cluster needs ray: pip install 'neurocoder[cluster]'") from None
    forwarded = ("NEUROCODER_DATA", "NEUROCODER_BACKBONE", "NEUROCODER_CACHE", "PYTHONPATH")
    variables = {name: os.environ[name] for name in forwarded if name in os.environ}
    variables["NEUROCODER_COMMIT"] = environment.commit()
    settings: Any = {"log_to_driver": False, "logging_level": logging.ERROR, "runtime_env": {"env_vars": variables}}
    failure: list[Exception] = [TimeoutError(f"no answer for {ANSWER_TIMEOUT:.0f} s")]
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
        thread.join(ANSWER_TIMEOUT)
    if failure:
        problem = str(failure[0]).partition("\n")[0]
        raise RequestError(f"--cluster must be auto, local, or HOST:PORT of a Ray cluster, got {address}: {problem}")
    return bool(ray.cluster_resources().get("GPU"))


class Cluster:
    """Jobs as tasks of the cluster that `connect` joined; two queues hold messages from them, and the word to stop."""

    places = 200
    """Given to the cluster at a time; each holds a lock file."""

    def __init__(self, setup: Setup) -> None:
        import ray
        from ray.util.queue import Queue

        gpus = 1 if setup.device == "cuda" else 0
        self._task = ray.remote(num_cpus=setup.threads, num_gpus=gpus, max_retries=0)(_run_remotely)
        self._mailbox, self._stopped = (Queue(actor_options={"num_cpus": 0}) for _ in range(2))
        self._setup = setup
        self._jobs: dict[str, Job] = {}
        self._running: dict[Any, str] = {}
        """Names of jobs by the references of their tasks."""
        self._locks: dict[str, contextlib.ExitStack] = {}
        self._retried: set[str] = set()
        self._deadline = float("inf")

    def start(self, job: Job) -> None:
        name, lock = str(job), contextlib.ExitStack()
        self._jobs[name], self._locks[name] = job, lock
        if lock.enter_context(locked_job(job, self._setup)):
            self._submit(name)

    def _submit(self, name: str) -> None:
        path = self._jobs[name].checkpoint(self._setup)
        start = path.read_bytes() if path.exists() else None
        task = self._task.remote(self._jobs[name], self._setup, name, self._mailbox, self._stopped, start)
        self._running[task] = name

    def events(self) -> Iterator[tuple[Job, Progress | Outcome]]:
        import ray

        for name in self._locks.keys() - self._running.values():  # of another process
            yield self._end(name), None
        ready = ray.wait(list(self._running), timeout=0.5)[0] if self._running else []
        for name, message in self._mailbox.get_nowait_batch(self._mailbox.size()):
            if isinstance(message, bytes):
                checkpoints.write(message, self._jobs[name].checkpoint(self._setup))
            elif name in self._running.values():
                yield self._jobs[name], message
        for task in ready:
            name = self._running.pop(task)
            try:
                outcome: Outcome = ray.get(task)
            except ray.exceptions.RayError as error:
                if name not in self._retried and self._deadline == float("inf"):
                    self._retried.add(name)
                    self._submit(name)
                    continue
                outcome = reason(error)
            if isinstance(outcome, Record):
                outcome = attempt(partial(save_record, self._jobs[name], self._setup, outcome))
            yield self._end(name), outcome
        if time.monotonic() > self._deadline:
            for name in list(self._locks):
                yield self._end(name), Interrupted(signal.SIGTERM)

    def _end(self, name: str) -> Job:
        """Free the lock of a job."""
        self._locks.pop(name).close()
        return self._jobs.pop(name)

    def stop(self) -> None:
        self._deadline = time.monotonic() + STOP_TIMEOUT
        self._stopped.put(True)

    def close(self) -> None:
        import ray

        for name in list(self._locks):
            self._end(name)
        ray.shutdown()


def _run_remotely(job: Job, setup: Setup, name: str, mailbox: Any, stopping: Any, start: bytes | None) -> Outcome:
    """A task of the cluster."""
    asked, stop = time.monotonic(), False

    def stopped() -> int:
        nonlocal asked, stop
        if time.monotonic() - asked > 0.5:
            asked, stop = time.monotonic(), not stopping.empty()
        return signal.SIGTERM if stop else 0

    hooks = RunHooks(
        stopped,
        save=lambda checkpoint: mailbox.put((name, checkpoint.to_bytes())),
        interval=setup.interval,
        report=lambda *progress: mailbox.put((name, progress)),
    )
    return attempt(partial(run_job, job, setup, hooks, Checkpoint.from_bytes(start) if start else None))
