"""A worker process of A3C: it plays with a copy of the shared parameters, and updates the shared ones."""

from __future__ import annotations

import json
import mmap
import os
import sys
import time
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .agent import make_agent
from .environments import make_for
from .flat import Flat, rmsprop, size
from .rollout import Rollout, compute_gradients
from .settings import Settings

REPORT_EVERY = 0.2
"""Seconds between a worker's reports."""


class Shared(NamedTuple):
    """What the processes share, without locks."""

    values: Tensor
    """The parameters (n,)."""
    squares: Tensor
    """RMSProp's statistics (n,)."""
    steps: Tensor
    """Taken by each worker (workers,): the learning rate depends on their sum."""

    @classmethod
    def map(cls, file: int, entries: int, workers: int, dtype: torch.dtype) -> Shared:
        """In the memory of an open file, which is made large enough; zeros if it is new."""
        width = dtype.itemsize * entries
        os.truncate(file, 2 * width + 8 * workers)
        memory = mmap.mmap(file, 2 * width + 8 * workers)

        def part(begin: int, count: int, kind: torch.dtype) -> Tensor:
            return torch.frombuffer(memory, dtype=kind, count=count, offset=begin)

        return cls(part(0, entries, dtype), part(width, entries, dtype), part(2 * width, workers, torch.int64))


def work(job: dict[str, Any], file: int) -> None:
    """Train until all workers together have taken their steps, or the parent is gone."""
    torch.set_num_threads(1)
    settings, place = Settings(**job["settings"]), job["place"]
    dtype = getattr(torch, job["dtype"])
    environments = make_for(settings, job["environment"], 1, threads=1, life_loss=settings.life_loss)
    agent = make_agent(environments.shape, environments.actions, job["head"], settings).to(dtype)
    shared = Shared.map(file, size(agent), settings.workers, dtype)
    flat, rollout = Flat(agent), Rollout(agent, environments, settings)
    torch.manual_seed(job["seed"])
    rollout.begin(job["seed"])
    episodes: list[list[float]] = []
    totals, updates, reported = torch.zeros(4, dtype=dtype), 0, time.monotonic()
    flat.values.copy_(shared.values)
    while os.getppid() == job["parent"]:
        last = int(shared.steps.sum()) >= settings.steps
        if updates and (last or time.monotonic() - reported > REPORT_EVERY):
            report = {"updates": updates, "totals": totals.tolist(), "episodes": episodes}
            print(json.dumps(report), flush=True)
            totals, updates, reported, episodes = torch.zeros(4, dtype=dtype), 0, time.monotonic(), []
        if last:
            break
        while not rollout.receive():
            rollout.act()
        terms = compute_gradients(rollout, flat.gradient)
        norm = flat.clip(settings.clip)
        rate = settings.rate_at(int(shared.steps.sum()), rollout.length)
        rmsprop(shared.values, shared.squares, flat.gradient, rate, settings.alpha, settings.epsilon)
        shared.steps[place] += rollout.length
        flat.values.copy_(shared.values)
        rollout.start_next()
        totals += torch.stack((*terms, norm))
        updates += 1
        episodes += [list(episode) for episode in environments.finished()]
    rollout.close()


if __name__ == "__main__":
    work(json.loads(sys.argv[1]), int(sys.argv[2]))
