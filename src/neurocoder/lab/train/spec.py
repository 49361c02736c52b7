"""What to train: one model, its data and how to train it. `loop.train` does the rest."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

Batch = tuple[Tensor, ...]


class Stream(Protocol):
    """Training data on the device, in blocks of batches.

    A block is shuffled or generated as a whole, from only the seed and its number: a run can resume in any block. Its
    tensors are filled in place, so that a CUDA graph that reads them stays valid.
    """

    steps: int
    """Batches per block, for example an epoch."""

    def fill(self, block: int) -> None:
        """Make block number `block` the one that `batch` reads."""

    def batch(self, step: Tensor) -> Batch:
        """Batch number `step` of the block; `step` is an integer () on the device. All batches have one shape, with
        examples in the first dimension. Do not wait for the device: use `tensor.index_select(0, step.view(1))`,
        since `tensor[step]` reads `step` on the host."""


@dataclass
class TrainSpec:
    """One model, its data and how to train it. Everything is on the device."""

    model: nn.Module
    stream: Stream
    loss: Callable[[nn.Module, Batch], Tensor]
    """The loss to minimise, (): the mean over the examples, plus auxiliary losses."""
    optimiser: Callable[[Iterable[tuple[str, Tensor]], float], torch.optim.Optimizer]
    """Called with the named parameters, as torch's optimisers take them, and the learning rate. Parameter groups keep
    their own rates: the schedule multiplies each."""
    learning_rate: float
    schedule: Callable[[int], float]
    """The factor on the learning rates at each step, from 0."""
    steps: int
    evaluate_every: int
    """Steps between evaluations; the last step is always followed by one."""
    evaluate: Callable[[nn.Module], dict[str, float]]
    """Metrics by name; called in eval mode without gradients."""
    observe: Callable[[nn.Module], dict[str, Any]]
    """What the figures need from the trained model: numbers, strings and nested lists. Called like `evaluate`."""
    clip: float | None = None
    """Clip gradients to this norm, over all parameters of the model; None: no clipping."""


Task = TrainSpec
"""Its earlier name."""
