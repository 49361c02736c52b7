"""A3C (Mnih et al., 2016): asynchronous workers that update shared parameters without locks."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import IO, Any

import torch

from ..train.context import TrainingError
from .a2c import Trainer, part_seed
from .agent import Agent
from .environments import Episode
from .settings import Settings
from .worker import Shared

PATIENCE = 0.2
"""Longest wait for reports before `after` is called, in seconds."""
STOP_TIMEOUT = 5.0
"""Seconds that workers have to exit when they are asked to."""


class A3C(Trainer):
    """Trains an agent on the CPU; the interface is that of `A2C`.

    Parameters, RMSProp's statistics and step counts lie in the memory of a file without a name, which the workers
    inherit. It is gone when the last process is. Workers end with their parent, however that ends.

    Args:
        name: id of the environment.
        head: the kind of heads that the agent has: workers build it again.

    Example:
        >>> trainer = rl.A3C(rl.make_agent((4,), 2, "plain", settings), "CartPole-v1", "plain", settings, seed=0)
        >>> trainer.steps
        0
        >>> trainer.close()
    """

    def __init__(self, agent: Agent, name: str, head: str, settings: Settings, seed: int) -> None:
        super().__init__(agent, name, settings, seed)
        self.head, self._totals = head, self._totals.double()
        self._file = tempfile.TemporaryFile(dir="/dev/shm" if os.path.isdir("/dev/shm") else None)  # noqa: SIM115  # as long as the trainer
        entries, dtype = len(self.flat.values), self.flat.values.dtype
        self._shared = Shared.map(self._file.fileno(), entries, settings.workers, dtype)
        self._shared.values.copy_(self.flat.values)
        self.squares = self._shared.squares

    @property
    def steps(self) -> int:
        """Taken so far by all workers."""
        return int(self._shared.steps.sum())

    @steps.setter
    def steps(self, taken: int) -> None:
        self._shared.steps.zero_()
        self._shared.steps[0] = taken

    def train(self, after: Callable[[A3C], None]) -> None:
        """Train to the end; `after` is called several times a second, and may raise to stop. No worker is left."""
        workers: list[tuple[subprocess.Popen[bytes], IO[bytes]]] = []
        with contextlib.ExitStack() as clean, selectors.DefaultSelector() as selector:
            clean.callback(self._end, workers)
            for place in range(self.settings.workers):
                errors: IO[bytes] = clean.enter_context(tempfile.TemporaryFile())
                workers.append((self._start(place, errors), errors))
                selector.register(workers[-1][0].stdout, selectors.EVENT_READ)  # type: ignore[arg-type]  # a pipe
            while selector.get_map():
                for key, _ in selector.select(PATIENCE):
                    if line := key.fileobj.readline():  # type: ignore[union-attr]  # a file, not its number
                        self._listen(json.loads(line))
                    else:
                        selector.unregister(key.fileobj)
                after(self)
            for process, errors in workers:
                if process.wait():
                    errors.seek(0)
                    said = errors.read().decode(errors="replace").strip().splitlines()
                    raise TrainingError(f"a worker ended with status {process.returncode}: {(said or ['?'])[-1]}")
        self.flat.values.copy_(self._shared.values)

    def _start(self, place: int, errors: IO[bytes]) -> subprocess.Popen[bytes]:
        job = {
            "settings": asdict(self.settings),
            "environment": self.name,
            "head": self.head,
            "dtype": str(self.flat.values.dtype).removeprefix("torch."),
            "seed": part_seed(self.seed, self.part, place),
            "place": place,
            "parent": os.getpid(),
        }
        file = self._file.fileno()
        return subprocess.Popen(
            [sys.executable, "-m", f"{__package__}.worker", json.dumps(job), str(file)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            pass_fds=[file],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "CUDA_VISIBLE_DEVICES": ""},
            start_new_session=True,  # only this process handles Ctrl-C
        )

    def _end(self, workers: list[tuple[subprocess.Popen[bytes], IO[bytes]]]) -> None:
        """Stop the workers that still run."""
        for process, _ in workers:
            process.terminate()
        for process, _ in workers:
            try:
                process.wait(STOP_TIMEOUT)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            assert process.stdout is not None
            process.stdout.close()

    def _listen(self, report: Mapping[str, Any]) -> None:
        self._updates += report["updates"]
        self._totals += torch.tensor(report["totals"], dtype=torch.float64)
        self._episodes += [Episode(*episode) for episode in report["episodes"]]

    def state_dict(self) -> dict[str, Any]:
        """What a resumed training starts from: the shared parameters and statistics as they were when they were read,
        while the workers went on."""
        self.flat.values.copy_(self._shared.values)
        return super().state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self._shared.values.copy_(self.flat.values)

    def close(self) -> None:
        """Free the shared memory."""
        self._file.close()
