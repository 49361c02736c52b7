"""Running a model on a head, and its accuracy."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..networks import eval_mode
from .tasks import Data, Task

ROWS = 1024
"""Inputs per forward pass where no gradients are needed."""


def outputs(model: nn.Module, x: Tensor, head: int | None) -> Tensor:
    """x (N, ...) -> (N, outputs of the head)"""
    return model(x) if head is None else model(x, head)


def device_of(model: nn.Module) -> torch.device:
    """Where the model is."""
    return next((entry.device for entry in (*model.parameters(), *model.buffers())), torch.device("cpu"))


def all_outputs(model: nn.Module, x: Tensor, head: int | None) -> Tensor:
    """x (N, ...) -> (N, outputs), in eval mode, without gradients, a part at a time."""
    device = device_of(model)
    with eval_mode(model), torch.no_grad():
        return torch.cat([outputs(model, rows.to(device), head) for rows in x.split(ROWS)])


def width(model: nn.Module, x: Tensor, head: int | None, expected: int | None, labels: int) -> int:
    """How many outputs the head has: `expected`, or at least `labels`."""
    found = all_outputs(model, x[:1], head)
    name = "model(x)" if head is None else f"model(x, {head})"
    if found.dim() != 2 or len(found) != 1 or not found.is_floating_point():
        raise ValueError(f"{name} must return logits (N, outputs), got {found.dtype} {tuple(found.shape)} for N = 1")
    size = found.shape[1]
    if size < labels if expected is None else size != expected:
        wanted = f"at least {labels}" if expected is None else str(expected)
        raise ValueError(f"{name} must return {wanted} outputs, one for each class, got {size}")
    return size


def accuracy_on(model: nn.Module, data: Data, head: int | None) -> float:
    """In percent, over all outputs of the head."""
    x, y = data
    right = all_outputs(model, x, head).argmax(1) == y.to(device_of(model))
    return 100.0 * int(right.sum()) / len(y)


def accuracy(model: nn.Module, task: Task) -> float:
    """The model's accuracy on the task's test data, in percent; the class scenario's is over all classes.

    Example:
        >>> model = nn.Linear(4, 2)
        >>> 0 <= cl.accuracy(model, tasks[0]) <= 100
        True
    """
    return accuracy_on(model, task.test, task.head)
