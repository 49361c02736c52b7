"""What experiments with labelled data share: starting values, the order of the data, the loss and its learning rate."""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import neurocoder as nc

from ..train.spec import Batch

Decay = Literal["cosine", "none"]


@contextmanager
def starting_values(seed: int) -> Iterator[None]:
    """Within it, modules are made on the CPU, from its generator with this seed; afterwards that is as before."""
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        torch.default_generator.manual_seed(seed)
        yield


def schedule(decay: Decay, steps: int) -> Callable[[int], float]:
    """The factor on the learning rate at each step: half a cosine from one to zero, or one."""
    return lambda step: (1 + math.cos(math.pi * step / steps)) / 2 if decay == "cosine" else 1.0


def adam(
    parameters: Iterable[tuple[str, Tensor]],
    rate: float,
    faster: Container[str] = (),
    factor: float = 1.0,
    **options: Any,
) -> torch.optim.Adam:
    """Adam over named parameters; those named in `faster` have `factor` times the rate."""
    named = list(parameters)
    groups: list[dict[str, Any]] = [
        {"params": [entry for entry in named if (entry[0] in faster) == fast], "lr": rate * scale}
        for fast, scale in ((False, 1.0), (True, factor))
    ]
    return torch.optim.Adam([group for group in groups if group["params"]], lr=rate, fused=True, **options)


def loss(model: nn.Module, batch: Batch) -> Tensor:
    """Cross entropy plus the auxiliary losses of the coded layers, ()."""
    x, y = batch
    return cross_entropy(model(x), y) + nc.auxiliary_loss(model)


class Shuffled:
    """The rows of a data set in batches; a block is an epoch in its own order. An incomplete last batch is dropped."""

    def __init__(self, count: int, batch: int, seed: int, device: torch.device) -> None:
        self.count, self.seed, self.steps = count, seed, count // batch
        self.order = torch.zeros(self.steps, batch, dtype=torch.int64, device=device)

    def shuffle(self, block: int) -> torch.Generator:
        """Order the rows, from only the seed and the block number; returns the generator, to draw more."""
        state = np.random.SeedSequence((self.seed, block)).generate_state(1, np.uint64)
        generator = torch.Generator(self.order.device).manual_seed(int(state[0]))
        rows = torch.randperm(self.count, generator=generator, device=self.order.device)
        self.order.copy_(rows[: self.order.numel()].view_as(self.order))
        return generator

    def fill(self, block: int) -> None:
        """Make block number `block` the one that `rows` reads."""
        self.shuffle(block)

    def rows(self, step: Tensor) -> Tensor:
        """Those of a batch (batch,)."""
        return self.order.index_select(0, step.view(1)).view(-1)
