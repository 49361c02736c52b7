"""Learners of one pass, each against a case computed by hand or a literal form, and the evaluation of all."""

import pytest
import torch
from torch.nn.functional import normalize

import neurocoder as nc
from neurocoder.lab import continual as cl

X = torch.tensor([[0.0, 0.0], [2.0, 0.0], [5.0, 1.0], [7.0, 3.0], [6.0, 2.0]])
Y = torch.tensor([0, 0, 1, 1, 1])


def taught(learner, batch=2):
    for rows in torch.arange(len(X)).split(batch):
        learner.observe(X[rows], Y[rows])
    return learner


def test_nearest_mean_by_hand():
    learner = taught(cl.NearestMean(2, classes=3))
    assert learner.means.tolist() == [[1, 0], [6, 2], [0, 0]]
    assert learner(torch.tensor([[2.0, 0.0]]))[0].tolist() == pytest.approx([-1, -20, -torch.inf])
    assert learner.numbers() == {"answer": 9, "learn": 9}


def test_streaming_lda_by_hand():
    learner = taught(cl.StreamingLDA(2, classes=2, shrinkage=0.5))
    # deviations from the means: (-1, 0), (1, 0), (-1, -1), (1, 1), (0, 0)
    torch.testing.assert_close(learner.covariance(), torch.tensor([[4.0, 2.0], [2.0, 2.0]]).double() / 5)
    inverse = torch.linalg.inv(torch.tensor([[0.9, 0.2], [0.2, 0.7]]).double())
    means, x = torch.tensor([[1.0, 0.0], [6.0, 2.0]]).double(), torch.tensor([3.0, 1.0]).double()
    expected = [float(x @ inverse @ mean - 0.5 * mean @ inverse @ mean) for mean in means]
    assert learner(x.view(1, 2))[0].tolist() == pytest.approx(expected)
    assert learner.numbers() == {"answer": 6, "learn": 9}


def test_fecam_is_its_formula():
    learner = taught(cl.FeCAM(2, classes=3, shrinkage=0.5))
    scores, x = learner(torch.tensor([[3.0, 1.0]]))[0], torch.tensor([3.0, 1.0]).double().sqrt()
    for label in range(2):
        rows = X[label == Y].double().sqrt()
        S = (rows - rows.mean(0)).mT @ (rows - rows.mean(0)) / len(rows)
        S = S + 0.5 * (S.diagonal().mean() * torch.eye(2) + S[0, 1] * (1 - torch.eye(2)))
        deviation = S.diagonal().sqrt()
        difference = normalize(x, dim=0) - normalize(rows.mean(0), dim=0)
        distance = difference @ torch.linalg.inv(S / torch.outer(deviation, deviation)) @ difference
        assert float(scores[label]) == pytest.approx(-float(distance))
    assert scores[2] == -torch.inf  # never seen


def test_nearest_neighbours_vote():
    learner = taught(cl.NearestNeighbours(2, classes=2, k=3))
    assert learner(torch.tensor([[4.0, 0.0]])).tolist() == [[1, 2]]  # (2, 0), (5, 1) and (6, 2)
    assert learner.numbers() == {"answer": 15, "learn": 15}


def test_a_reservoir_keeps_each_sample_alike():
    kept = torch.zeros(20)
    for seed in range(400):
        learner = cl.NearestNeighbours(1, classes=1, capacity=5, seed=seed)
        for rows in torch.arange(20.0).split(7):
            learner.observe(rows.unsqueeze(1), torch.zeros(len(rows), dtype=torch.int64))
        kept[learner.x.flatten().long()] += 1
    assert len(learner.x) == 5
    assert kept.sum() == 2000
    assert 60 < kept.min() <= kept.max() < 140  # 100 expected, standard deviation 9


def test_an_exact_layer_is_a_learner_and_the_evaluation_counts():
    torch.manual_seed(0)
    centres = 4 * torch.randn(6, 8)
    y = torch.arange(6).repeat(40)
    x = centres[y] + torch.randn(240, 8)
    tasks = cl.split((x, y), (x, y), classes=[(0, 3), (1, 4), (2, 5)], scenario="class")
    ridge = nc.ExactLinear(8, 6, exact=nc.ExactConfig(features="none"))
    found = cl.stream(ridge, tasks, batch=16)
    assert found.matrix.shape == (3, 3)
    assert (found.matrix.diagonal() > 90).all()
    assert found.matrix[0, 1] == 0  # classes to come are never answered
    assert found.final <= found.domain <= 100
    assert found.final <= found.task <= 100
    assert found.final == float(found.matrix[-1].mean())
    assert found.incremental == pytest.approx(
        float((found.matrix[0, 0] + found.matrix[1, :2].mean() + found.matrix[2].mean()) / 3)
    )
    answers = ridge(x).argmax(1)
    assert found.domain == pytest.approx(100 * float(((answers >= 3) == (y >= 3)).double().mean()))


def test_tasks_with_heads_are_refused():
    tasks = cl.split((X, Y), (X, Y), classes=[(0,), (1,)], scenario="task")
    with pytest.raises(ValueError, match="tasks must be those of"):
        cl.stream(cl.NearestMean(2, classes=2), tasks)
