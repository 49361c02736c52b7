"""Learners that see each sample once, and one evaluation for all of them.

A learner has `observe(x, y)`, answers scores for each class, `learner(x)`, and counts what it stores, `numbers()`.
`nc.ExactLinear` is one. What a seed draws again is not stored; numbers are counted, not bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from .metrics import average_accuracy
from .tasks import Task


class Learner(Protocol):
    """What `stream` takes.

    Example:
        >>> learner: cl.Learner = nc.ExactLinear(4, 4, exact=nc.ExactConfig(features="none"))
    """

    def observe(self, x: Tensor, y: Tensor) -> None:
        """Learn from inputs (N, d) with labels (N,), once."""

    def __call__(self, x: Tensor) -> Tensor:
        """Scores (N, classes) of inputs (N, d)."""

    def numbers(self) -> dict[str, int]:
        """How many numbers must be stored to `answer`, and to go on to `learn`."""


class Streamed(NamedTuple):
    """What `stream` returns, in percent.

    Example:
        >>> found = cl.stream(cl.NearestMean(4, classes=4), [cl.Task((x, y), (x, y))])
        >>> found.final == found.incremental == float(found.matrix[0, 0])
        True
    """

    matrix: Tensor
    """Accuracy after task i (row) on task j (column), over the classes seen so far; NaN where it was not tested"""
    task: float
    """Average accuracy after the last task where each sample's task is known: only its classes answer."""
    domain: float
    """The same over all classes, where only the place of the class in its task must be right."""
    final: float
    """Average accuracy after the last task, over all classes."""
    incremental: float
    """The mean over i of the average accuracy after task i on the tasks up to i; NaN unless each was tested."""
    curve: list[tuple[int, float]]
    """Samples seen, and the accuracy on the test data of the classes seen, after each `every` batches."""


def stream(
    learner: Any, tasks: Sequence[Task], batch: int = 1024, *, every: int | None = None, last: bool = False
) -> Streamed:
    """Show a learner the tasks of a class scenario one after the other, each sample once, and test it after each.

    Classes that were not seen yet are never answered.

    Args:
        learner: See `Learner`.
        tasks: Tasks without heads, whose labels are those of the data.
        batch: Samples that it observes at a time.
        every: Test after each so many batches too; None: only after tasks.
        last: Test only after the last task.

    Example:
        >>> cl.stream(cl.StreamingLDA(4, classes=4), [cl.Task((x, y), (x, y))]).matrix.shape
        torch.Size([1, 1])
    """
    if not tasks or any(task.head is not None for task in tasks):
        raise ValueError("tasks must be those of cl.split(..., scenario='class'), whose labels are those of the data")
    if every is not None and every < 1:
        raise ValueError(f"every must be None or a number of batches >= 1, got {every}")
    count = len(tasks)
    matrix = torch.full((count, count), torch.nan, dtype=torch.float64)
    known, domain, curve, steps, samples = 0.0, 0.0, [], 0, 0
    place = {label: index for task in tasks for index, label in enumerate(task.labels)}
    places = torch.tensor([place.get(label, -1) for label in range(max(place) + 1)]).to(tasks[0].train[1])
    seen = torch.zeros(len(places), dtype=torch.bool, device=places.device)

    def scores(x: Tensor) -> Tensor:
        found = learner(x)
        return found.masked_fill(~seen[: found.shape[1]], -torch.inf)

    for row, task in enumerate(tasks):
        x, y = task.train
        for rows, labels in zip(x.split(batch), y.split(batch), strict=True):
            learner.observe(rows, labels)
            seen[labels] = True
            steps, samples = steps + 1, samples + len(labels)
            if every and steps % every == 0:
                tests = [
                    (other.test[0][own], other.test[1][own]) for other in tasks if (own := seen[other.test[1]]).any()
                ]
                right = sum(int((scores(rows).argmax(1) == labels).sum()) for rows, labels in tests)
                curve.append((samples, 100 * right / sum(len(labels) for _, labels in tests)))
        for column, other in enumerate(tasks):
            if last and row < count - 1:
                continue
            if not seen[list(other.labels)].any():
                matrix[row, column] = 0  # none of its classes is answered
                continue
            x, y = other.test
            found = scores(x)
            matrix[row, column] = 100 * (found.argmax(1) == y).double().mean()
            if row == count - 1:
                own = torch.tensor(other.labels).to(y)
                known += 100 * float((own[found[:, own].argmax(1)] == y).double().mean()) / count
                domain += 100 * float((places[found.argmax(1)] == places[y]).double().mean()) / count
    averages = [float(matrix[row, : row + 1].mean()) for row in range(count)]
    return Streamed(matrix, known, domain, average_accuracy(matrix), sum(averages) / count, curve)
