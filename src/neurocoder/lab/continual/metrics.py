"""Metrics of a sequence of tasks, in percent, from the matrix of accuracies.

`a[i, j]` is the accuracy after task i on task j, for n tasks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

Matrix = Tensor | Sequence[Sequence[float]]


def _numbers(name: str, values: Any, shape: str) -> Tensor:
    """As float64."""
    try:
        return torch.as_tensor(values, dtype=torch.float64, device="cpu")
    except (TypeError, ValueError):
        raise ValueError(f"{name} must be numbers {shape}, got {values!r}") from None


def _square(matrix: Matrix) -> Tensor:
    """Require one row and one column for each task."""
    found = _numbers("matrix", matrix, "(tasks, tasks)")
    if found.dim() != 2 or found.shape[0] != found.shape[1] or len(found) == 0:
        raise ValueError(f"matrix must be (tasks, tasks), got {tuple(found.shape)}")
    return found


def _mean(differences: Tensor) -> float:
    """Their mean; 0 if there are none, as with one task."""
    return float(differences.mean()) if len(differences) else 0.0


def average_accuracy(matrix: Matrix) -> float:
    """`1/n sum_j a[n, j]`: the mean over all tasks after the last one.

    Example:
        >>> cl.average_accuracy([[90.0, 50.0], [70.0, 95.0]])
        82.5
    """
    return float(_square(matrix)[-1].mean())


def forgetting(matrix: Matrix) -> float:
    """`1/(n-1) sum_{j<n} max_{j<=i<n} a[i, j] - a[n, j]` (Chaudhry et al., 2018).

    How far earlier tasks fell from their best since they were learned.

    Example:
        >>> cl.forgetting([[90.0, 50.0], [70.0, 95.0]])
        20.0
    """
    found = _square(matrix)
    best = [found[j:-1, j].max() for j in range(len(found) - 1)]
    return _mean(torch.stack(best) - found[-1, :-1]) if best else 0.0


def backward_transfer(matrix: Matrix) -> float:
    """`1/(n-1) sum_{j<n} a[n, j] - a[j, j]` (Lopez-Paz and Ranzato, 2017): what later tasks did to earlier ones.

    Example:
        >>> cl.backward_transfer([[90.0, 50.0], [70.0, 95.0]])
        -20.0
    """
    found = _square(matrix)
    return _mean(found[-1, :-1] - found.diagonal()[:-1])


def forward_transfer(matrix: Matrix, untrained: Tensor | Sequence[float]) -> float:
    """`1/(n-1) sum_{j>1} a[j-1, j] - b[j]` (Lopez-Paz and Ranzato, 2017): what earlier tasks did for later ones.

    Args:
        matrix: a (n, n).
        untrained: b (n,), the accuracies on the tasks before any training.

    Example:
        >>> cl.forward_transfer([[90.0, 50.0], [70.0, 95.0]], untrained=[48.0, 45.0])
        5.0
    """
    found = _square(matrix)
    before = _numbers("untrained", untrained, "(tasks,)")
    if before.shape != (len(found),):
        raise ValueError(f"untrained must be ({len(found)},), one accuracy for each task, got {tuple(before.shape)}")
    return _mean(found.diagonal(1) - before[1:])
