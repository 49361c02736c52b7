"""What a task trains on: the samples, the heads that answer them, and their cross-entropy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from .evaluation import device_of, outputs, width

IGNORED = -100
"""The label of a sample that another head answers."""


class Part(NamedTuple):
    """Samples that one head answers: x (N, ...) and y (N,)."""

    x: Tensor
    y: Tensor
    head: int | None
    width: int | None = None
    """How many outputs the head must have, if that is known."""


class Batch(NamedTuple):
    """The samples of one step."""

    x: Tensor
    """(B, ...)"""
    y: Tensor
    """(B,)"""
    rows: Tensor
    """Their places (B,) in the pool."""
    which: Tensor | None
    """The place (B,) of each one's head among the pool's heads; None if there is one head."""


def permutation(n: int, *key: int) -> Tensor:
    """An order (n,) of n samples that depends on the key only, here seed, task and epoch."""
    seed = int(np.random.SeedSequence(key).generate_state(1, np.uint64)[0])
    return torch.randperm(n, generator=torch.Generator().manual_seed(seed))


class Pool:
    """The samples of one task's training, on the model's device.

    Args:
        model: Tells the outputs of each head.
        parts: The samples.
        seen: The labels that the tasks so far brought to a head.
    """

    def __init__(self, model: nn.Module, parts: Sequence[Part], seen: Callable[[int | None], list[int]]) -> None:
        device = device_of(model)
        self.x = torch.cat([part.x.to(device) for part in parts])
        self.y = torch.cat([part.y.to(device) for part in parts])
        self.heads = list(dict.fromkeys(part.head for part in parts))
        self._which: Tensor | None = None
        if len(self.heads) > 1:
            places = [torch.full_like(part.y, self.heads.index(part.head), device=device) for part in parts]
            self._which = torch.cat(places)
        expected = {part.head: part.width for part in parts}
        self._hidden = []
        for head in self.heads:
            labels = seen(head)
            hidden = torch.ones(width(model, self.x, head, expected[head], max(labels) + 1), dtype=torch.bool)
            hidden[labels] = False
            self._hidden.append(hidden.to(device) if hidden.any() else None)

    def __len__(self) -> int:
        return len(self.y)

    def batch(self, rows: Tensor) -> Batch:
        """The samples at these places (B,)."""
        which = None if self._which is None else self._which.index_select(0, rows)
        return Batch(self.x.index_select(0, rows), self.y.index_select(0, rows), rows, which)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """The mean cross-entropy (), each sample by its own head, over the labels that this head has seen.

        Each head runs on the whole batch, so that shapes do not depend on the data; samples of others do not count.
        """
        terms = []
        for place, (head, hidden) in enumerate(zip(self.heads, self._hidden, strict=True)):
            logits, labels = outputs(model, batch.x, head), batch.y
            if hidden is not None:
                logits = logits.masked_fill(hidden, -torch.inf)
            if batch.which is not None:
                labels = labels.masked_fill(batch.which != place, IGNORED)
            terms.append(cross_entropy(logits, labels, ignore_index=IGNORED, reduction="sum"))
        return torch.stack(terms).sum() / len(batch.y)
