"""Scenarios: labels, heads and samples of each task; wrong input."""

import pytest
import torch
from continual_helpers import data

from neurocoder.lab import continual as cl

X = torch.arange(6.0).unsqueeze(1)
Y = torch.tensor([3, 0, 1, 2, 1, 3])


@pytest.mark.parametrize(
    ("scenario", "labels", "heads", "classes", "widths"),
    [
        ("task", [[1, 0], [0, 1, 1, 0]], [0, 1], [(0, 1), (0, 1)], [2, 2]),
        ("domain", [[1, 0], [0, 1, 1, 0]], [None, None], [(0, 1), (0, 1)], [2, 2]),
        ("class", [[0, 2], [3, 1, 1, 3]], [None, None], [(0, 2), (1, 3)], [None, None]),
    ],
)
def test_labels_and_heads_of_each_scenario(scenario, labels, heads, classes, widths):
    tasks = cl.split((X, Y), (X + 10, Y), classes=[(2, 0), (3, 1)], scenario=scenario)
    assert [task.train[1].tolist() for task in tasks] == labels
    assert [task.test[1].tolist() for task in tasks] == labels
    assert [task.train[0].flatten().tolist() for task in tasks] == [[1, 3], [0, 2, 4, 5]]
    assert [task.test[0].flatten().tolist() for task in tasks] == [[11, 13], [10, 12, 14, 15]]
    assert [task.head for task in tasks] == heads
    assert [task.labels for task in tasks] == classes
    assert [task.width for task in tasks] == widths


def test_a_task_of_ones_own_brings_the_labels_that_it_has():
    assert cl.Task((X, Y), (X, Y)).labels == (0, 1, 2, 3)


GOOD = {"train": (X, Y), "test": (X, Y), "classes": [(0, 1), (2, 3)], "scenario": "task"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"scenario": "tasks"}, r"scenario must be one of task, domain, class, got 'tasks'"),
        ({"classes": [(0, 1), (1, 2)]}, r"classes must name each label once, got 1 more than once"),
        ({"classes": [(0, 0)]}, r"classes must name each label once, got 0 more than once"),
        ({"classes": [(0, 7)]}, r"classes must be among the labels of train, got 7"),
        ({"test": (X[:2], Y[:2])}, r"classes must be among the labels of test, got 1"),
        ({"classes": []}, r"classes must name at least one task"),
        ({"classes": [()]}, r"classes must name at least one task"),
        ({"classes": 3}, r"classes must be a list of tuples of labels, got 3"),
        (
            {"classes": [(0, 1), (2,)], "scenario": "domain"},
            r"classes must have the same number in each task.*got 2, 1",
        ),
        ({"train": X}, r"train must be two tensors \(x, y\), got Tensor"),
        ({"train": (X, Y[:3])}, r"train must have as many inputs as labels, and at least one, got \(6, 1\) 3"),
        ({"test": (X, Y.float())}, r"test's labels must be whole numbers \(N,\), got torch.float32 \(6,\)"),
    ],
)
def test_wrong_splits(changes, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        cl.split(**(GOOD | changes))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"width": 3}, r"train's labels must be in 0..2, the outputs of the head, got 3"),
        ({"classes": (0, 1, 2)}, r"train's labels must be among classes \(0, 1, 2\), got 3"),
        ({"test": (X, Y - 1)}, r"test's labels must be at least 0, got -1"),
    ],
)
def test_wrong_tasks(options, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        cl.Task(**({"train": (X, Y), "test": (X, Y)} | options))


def test_every_sample_is_in_one_task():
    x, y = data()
    tasks = cl.split((x, y), (x, y), [(0, 5), (3, 1), (2, 4)], "class")
    found = torch.cat([task.train[0] for task in tasks])
    assert sorted(found.tolist()) == sorted(x.tolist())
