"""Tasks: parts of one data set, with the labels that a scenario gives them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

Data = tuple[Tensor, Tensor]
"""Inputs (N, ...) and labels (N,)."""

SCENARIOS = ("task", "domain", "class")
"""task: a head for each task, and the task is known. domain: one head, the same labels in each task. class: one head
over the classes of all tasks."""


@dataclass(frozen=True, eq=False)
class Task:
    """One task of a sequence.

    Example:
        >>> task = cl.Task(train=(x, y), test=(x, y))
        >>> task.classes
        (0, 1, 2, 3)
    """

    train: Data
    test: Data
    head: int | None = None
    """The head that answers, `model(x, head)`; None for `model(x)`."""
    classes: tuple[int, ...] | None = None
    """The labels that the task brings; None for those in `train`. The loss covers the labels that the tasks so far
    brought to the head."""
    width: int | None = None
    """How many outputs the head must have; None for any number that covers the labels."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "train", _data("train", self.train))
        object.__setattr__(self, "test", _data("test", self.test))
        found = self.train[1].unique().tolist()
        classes = tuple(found) if self.classes is None else tuple(sorted(self.classes))
        object.__setattr__(self, "classes", classes)
        for name, labels in (("train", found), ("test", self.test[1].unique().tolist())):
            low, high = min(labels), max(labels)
            if low < 0 or (self.width is not None and high >= self.width):
                limit = "at least 0" if self.width is None else f"in 0..{self.width - 1}, the outputs of the head"
                raise ValueError(f"{name}'s labels must be {limit}, got {low if low < 0 else high}")
        if unknown := sorted(set(found) - set(classes)):
            raise ValueError(f"train's labels must be among classes {classes}, got {unknown[0]}")

    @property
    def labels(self) -> tuple[int, ...]:
        """The labels that the task brings."""
        assert self.classes is not None
        return self.classes


def _data(name: str, data: Any) -> Data:
    """Require inputs and labels; returns them with labels as int64."""
    if not (isinstance(data, Sequence) and len(data) == 2 and all(isinstance(entry, Tensor) for entry in data)):
        raise ValueError(f"{name} must be two tensors (x, y), got {type(data).__name__}")
    x, y = data
    if y.dim() != 1 or y.is_floating_point() or y.is_complex() or y.dtype == torch.bool:
        raise ValueError(f"{name}'s labels must be whole numbers (N,), got {y.dtype} {tuple(y.shape)}")
    if x.dim() == 0 or len(x) != len(y) or len(y) == 0:
        raise ValueError(f"{name} must have as many inputs as labels, and at least one, got {tuple(x.shape)} {len(y)}")
    return x, y.long()


def _classes(classes: Any, scenario: str) -> list[tuple[int, ...]]:
    """Require at least one task, each with classes of its own."""
    try:
        found = [tuple(int(label) for label in group) for group in classes]
    except (TypeError, ValueError):
        raise ValueError(f"classes must be a list of tuples of labels, got {classes!r}") from None
    if not found or not all(found):
        raise ValueError(f"classes must name at least one task, each with at least one label, got {classes!r}")
    labels = [label for group in found for label in group]
    if twice := sorted({label for label in labels if labels.count(label) > 1}):
        raise ValueError(f"classes must name each label once, got {twice[0]} more than once")
    if scenario == "domain" and len({len(group) for group in found}) > 1:
        sizes = ", ".join(str(len(group)) for group in found)
        raise ValueError(f"classes must have the same number in each task, since they share a head, got {sizes}")
    return found


def _part(data: Data, group: tuple[int, ...], relabel: bool) -> Data:
    """The samples of these classes; relabelled, a label becomes its place in the group."""
    x, y = data
    rows = torch.isin(y, torch.tensor(group, device=y.device)).nonzero().squeeze(1)
    labels = y[rows]
    if relabel:
        table = torch.zeros(max(group) + 1, dtype=torch.int64, device=y.device)
        table[list(group)] = torch.arange(len(group), device=y.device)
        labels = table[labels]
    return x[rows.to(x.device)], labels


def split(train: Data, test: Data, classes: Sequence[Sequence[int]], scenario: str) -> list[Task]:
    """A data set as a sequence of tasks.

    Args:
        train: Inputs (N, ...) and labels (N,).
        test: Likewise.
        classes: The labels of each task.
        scenario: "task": task i has head i, and its labels are 0, 1, ... in the order of its classes. "domain": the
            same labels, one shared head. "class": labels stay as they are, one head with an output for each.

    Example:
        >>> tasks = cl.split((x, y), (x, y), classes=[(0, 1), (2, 3)], scenario="task")
        >>> [(task.head, task.classes) for task in tasks]
        [(0, (0, 1)), (1, (0, 1))]
    """
    if scenario not in SCENARIOS:
        raise ValueError(f"scenario must be one of {', '.join(SCENARIOS)}, got {scenario!r}")
    parts = {"train": _data("train", train), "test": _data("test", test)}
    groups = _classes(classes, scenario)
    for name, (_, y) in parts.items():
        if absent := sorted({label for group in groups for label in group} - set(y.unique().tolist())):
            raise ValueError(f"classes must be among the labels of {name}, got {absent[0]}")
    relabel, tasks = scenario != "class", []
    for index, group in enumerate(groups):
        train_part, test_part = (_part(data, group, relabel) for data in parts.values())
        head = index if scenario == "task" else None
        labels = tuple(range(len(group))) if relabel else group
        tasks.append(Task(train_part, test_part, head, labels, len(group) if relabel else None))
    return tasks
