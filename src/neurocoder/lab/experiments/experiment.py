"""What an experiment provides to the lab: configurations, variants, and for each run a task to train.

The lab does the rest: the training loop on each kind of device, checkpoints, records, sweeps and reports.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor, nn

from ..results import Record
from ..sections import Section

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
class Task:
    """One model, its data and how to train it. Everything is on the device."""

    model: nn.Module
    stream: Stream
    loss: Callable[[nn.Module, Batch], Tensor]
    """The loss to minimise, (): the mean over the examples, plus auxiliary losses. It depends only on the model's
    parameters and buffers and on the batch, so that several seeds can be trained as one stacked model."""
    optimiser: Callable[[Iterable[Tensor], float | Tensor], torch.optim.Optimizer]
    """Called with the parameters and the learning rate."""
    learning_rate: float
    schedule: Callable[[int], float]
    """The factor on the learning rate at each step, from 0."""
    steps: int
    evaluate_every: int
    """Steps between evaluations; the last step is always followed by one."""
    evaluate: Callable[[nn.Module], dict[str, float]]
    """Metrics by name; called in eval mode without gradients."""
    observe: Callable[[nn.Module], dict[str, Any]]
    """What the figures need from the trained model: numbers, strings and nested lists. Called like `evaluate`."""
    clip: float | None = None
    """Clip gradients to this norm, over all parameters of the model; None: no clipping."""


class Experiment(Protocol):
    """An experiment, from the paper or your own. A run is one variant with one seed."""

    name: ClassVar[str]
    """As in `neurocoder run NAME`."""
    title: ClassVar[str]
    Config: ClassVar[type]
    """A frozen dataclass that validates itself; the docstring of each field is its help on the command line. It says
    how to train and on what; a variant says which model."""
    presets: ClassVar[Mapping[str, Any]]
    """Configurations by name: `paper`, `best`, `smoke`."""
    seeds: ClassVar[Mapping[str, Sequence[int]]]
    """The default seeds of each preset."""

    def variants(self, config: Any) -> list[str]:
        """Names of all variants, in the order of the tables: letters, digits, `-` and `.`."""

    def build(self, config: Any, variant: str, seed: int, device: torch.device) -> Task:
        """The task of one run. The same arguments give the same task, whatever the state of torch's generators."""

    def sections(self, records: Sequence[Record], paper: Mapping[str, Any]) -> list[Section]:
        """Tables and figures from this experiment's records (one preset's, any subset of variants and seeds) beside the
        paper's numbers (this experiment's part of `paper.toml`)."""
