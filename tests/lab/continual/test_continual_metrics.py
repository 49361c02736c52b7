"""Metrics of a matrix, by hand."""

import math

import pytest
import torch

from neurocoder.lab import continual as cl

MATRIX = [[90.0, 20.0, 10.0], [92.0, 80.0, 30.0], [70.0, 85.0, 95.0]]


def test_metrics_by_hand():
    assert cl.average_accuracy(MATRIX) == pytest.approx((70 + 85 + 95) / 3)
    assert cl.forgetting(MATRIX) == pytest.approx(((92 - 70) + (80 - 85)) / 2)
    assert cl.backward_transfer(MATRIX) == pytest.approx(((70 - 90) + (85 - 80)) / 2)
    assert cl.forward_transfer(MATRIX, [50, 12, 25]) == pytest.approx(((20 - 12) + (30 - 25)) / 2)


def test_accuracy_before_a_task_was_learned_cannot_be_forgotten():
    assert cl.forgetting([[90.0, 99.0], [80.0, 70.0]]) == pytest.approx(10)
    assert cl.forgetting([[90.0, math.nan, math.nan], [80.0, 60.0, math.nan], [70.0, 60.0, 1.0]]) == pytest.approx(10)


def test_one_task_forgets_nothing():
    matrix = torch.tensor([[70.0]])
    assert cl.average_accuracy(matrix) == 70
    assert cl.forgetting(matrix) == cl.backward_transfer(matrix) == cl.forward_transfer(matrix, [50.0]) == 0


@pytest.mark.parametrize("metric", [cl.average_accuracy, cl.forgetting, cl.backward_transfer])
@pytest.mark.parametrize(
    ("matrix", "message"),
    [
        (MATRIX[:2], r"matrix must be \(tasks, tasks\), got \(2, 3\)"),
        ([1.0, 2.0], r"matrix must be \(tasks, tasks\), got \(2,\)"),
        (torch.zeros(0, 0), r"matrix must be \(tasks, tasks\), got \(0, 0\)"),
        ([[1.0], [1.0, 2.0]], r"matrix must be numbers \(tasks, tasks\), got \[\[1.0\], \[1.0, 2.0\]\]"),
    ],
)
def test_wrong_matrices(metric, matrix, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        metric(matrix)


def test_wrong_untrained():
    with pytest.raises(ValueError, match=r"^untrained must be \(3,\), one accuracy for each task, got \(2,\)"):
        cl.forward_transfer(MATRIX, [1.0, 2.0])
