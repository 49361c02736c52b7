"""What a family of tasks gives."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class Tasks(NamedTuple):
    """Samples of several tasks."""

    x: Tensor
    """(tasks, samples, inputs)"""
    y: Tensor
    """Classes (tasks, samples), or values (tasks, samples, outputs) of about unit variance."""


class Pools(NamedTuple):
    """Three disjoint sets of tasks: to train on, to choose the rates for new tasks, and new ones. What a row is, the
    family knows."""

    trained: Tensor
    chosen: Tensor
    new: Tensor
