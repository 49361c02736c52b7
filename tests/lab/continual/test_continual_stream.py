"""Learners of one pass, each against a case computed by hand or a literal form, and the evaluation of all."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.functional import normalize, one_hot

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


def test_fecam_goes_on_learning_after_an_answer():
    x, y = torch.randn(60, 3), torch.arange(60) % 2
    asked, fresh = (cl.FeCAM(3, classes=2) for _ in range(2))
    for rows in (slice(0, 20), slice(20, 60)):
        asked.observe(x[rows], y[rows])
        asked(x)
        fresh.observe(x[rows], y[rows])
    torch.testing.assert_close(asked(x), fresh(x))


def test_randumb_is_lda_of_cosines():
    learner = cl.RanDumb(2, classes=2, features=4, shrinkage=0.3, seed=3)
    learner.basis(X)
    taught(learner)
    draws = torch.Generator().manual_seed(3)
    W, b = torch.randn(4, 2, generator=draws), 2 * torch.pi * torch.rand(4, generator=draws)
    median = sorted(float((X[i] - X[j]).norm()) for i in range(5) for j in range(i))[4]  # of ten distances, the lower
    phi = torch.cos(X @ W.mT / (0.7 * median) + b).double()
    means = torch.stack([phi[label == Y].mean(0) for label in range(2)])
    S = (phi - means[Y]).mT @ (phi - means[Y]) / 5
    inverse = torch.linalg.inv(0.7 * S + 0.3 * torch.eye(4))
    expected = phi @ inverse @ means.mT - 0.5 * torch.stack([mean @ inverse @ mean for mean in means])
    torch.testing.assert_close(learner(X), expected, rtol=1e-4, atol=1e-4)
    assert learner.numbers() == {"answer": 10, "learn": 20}  # W and b are drawn again


def literal(phi, ridge, weight=None):
    """`(sum a phi phi^T + ridge I)^-1 sum a phi y^T`, a sample after the other."""
    gram, moment = ridge * torch.eye(phi.shape[1]).double(), torch.zeros(phi.shape[1], 2).double()
    for index, row in enumerate(phi):
        a = 1.0 if weight is None else weight[index]
        gram += a * torch.outer(row, row)
        moment[:, Y[index]] += a * row
    return torch.linalg.inv(gram) @ moment


def projected(features, seed):
    """30 relu(W x / sqrt(d))"""
    W = torch.randn(features, 2, generator=torch.Generator().manual_seed(seed)).double()
    return 30 * torch.relu(X.double() @ W.mT / 2**0.5)


def test_the_fields_names_are_their_formulas():
    constant = torch.cat([X.double(), torch.ones(5, 1)], 1)
    found = taught(cl.ridge(2, classes=2, ridge=0.5))(X)
    torch.testing.assert_close(found.double(), constant @ literal(constant, 0.5), rtol=1e-4, atol=1e-5)
    phi = projected(6, seed=2)
    found = taught(cl.acil(2, classes=2, features=6, gamma=0.5, seed=2))(X)
    torch.testing.assert_close(found.double(), phi @ literal(phi, 0.5), rtol=1e-4, atol=1e-4)
    ranpac = taught(cl.ranpac(2, classes=2, features=6, seed=2))
    chosen = ranpac.solve().ridge  # by generalised cross-validation
    torch.testing.assert_close(ranpac(X).double(), phi @ literal(phi, chosen), rtol=1e-3, atol=1e-3)
    gkeal = cl.gkeal(2, classes=2, features=3, width=0.5)
    gkeal.basis(X)
    taught(gkeal).solve(0.5)
    keys, s = gkeal.memory.keys.double(), float(gkeal.memory.bandwidth)
    phi = torch.stack(
        [torch.stack([30 * torch.exp(-(x - k).square().sum() / (2 * s**2)) for k in keys]) for x in X.double()]
    )
    torch.testing.assert_close(gkeal(X).double(), phi @ literal(phi, 0.5), rtol=1e-4, atol=1e-4)


def test_air_weighs_classes_alike():
    learner = taught(cl.AIR(2, classes=2, features=3, gamma=0.5, seed=2))
    phi, shares = projected(3, seed=2), torch.tensor([1 / 2, 1 / 3]) * 2 / (1 / 2 + 1 / 3)
    torch.testing.assert_close(learner(X), phi @ literal(phi, 0.5, shares[Y].double()), rtol=1e-4, atol=1e-4)
    assert learner.numbers() == {"answer": 6, "learn": 6 + 2 * 6}


def test_nearest_neighbours_vote():
    learner = taught(cl.NearestNeighbours(classes=2, k=3))
    # the nearest: (5, 1), (2, 0) and (6, 2)
    assert learner(torch.tensor([[4.0, 0.0]]))[0].tolist() == pytest.approx([1 + 1 / 4, 2 + 1 / (2 + 2**0.5)])
    learner.k = 2
    assert learner(torch.tensor([[4.0, 0.0]])).argmax() == 1  # a tie of votes
    assert learner.numbers() == {"answer": 15, "learn": 15}


def test_a_reservoir_keeps_each_sample_alike():
    kept = torch.zeros(20)
    for seed in range(400):
        memory = cl.Reservoir(5, seed)
        for rows in torch.arange(20.0).split(7):
            memory.add(rows, rows)
        assert torch.equal(*memory.columns)
        kept[memory.columns[0].long()] += 1
    assert len(memory) == 5
    assert kept.sum() == 2000
    assert 60 < kept.min() <= kept.max() < 140  # 100 expected, standard deviation 9


def slope(W, x, y):
    """Gradient of the mean cross-entropy of `x W^T`: (softmax - one hot) x^T."""
    return (torch.softmax(x @ W.mT, 1) - one_hot(y, len(W))).mT @ x / len(x)


def test_replay_steps_on_new_and_stored_samples():
    model = nn.Linear(2, 2, bias=False)
    W = model.weight.detach().clone()
    learner = taught(cl.Replay(model, capacity=3, rate=0.1, batch=2, seed=5))
    memory = cl.Reservoir(3, seed=5)
    for rows in torch.arange(5).split(2):
        step = slope(W, X[rows], Y[rows])
        if len(memory):
            step += slope(W, *memory.draw(2))
        W = W - 0.1 * step
        memory.add(X[rows], Y[rows])
    torch.testing.assert_close(model.weight.detach(), W)
    assert learner.numbers() == {"answer": 4, "learn": 4 + 3 * 3}


def test_der_pulls_to_the_logits_that_were_stored():
    model = nn.Linear(2, 2, bias=False)
    W = model.weight.detach().clone()
    learner = taught(cl.DERpp(model, capacity=3, rate=0.1, batch=2, seed=5, alpha=0.7, beta=0.2))
    memory = cl.Reservoir(3, seed=5)
    for rows in torch.arange(5).split(2):
        step, logits = slope(W, X[rows], Y[rows]), X[rows] @ W.mT
        if len(memory):
            x, _, then = memory.draw(2)
            step += 0.7 * 2 * (x @ W.mT - then).mT @ x / then.numel()
            x, y, _ = memory.draw(2)
            step += 0.2 * slope(W, x, y)
        W = W - 0.1 * step
        memory.add(X[rows], Y[rows], logits)
    torch.testing.assert_close(model.weight.detach(), W)
    assert learner.numbers() == {"answer": 4, "learn": 4 + 3 * 5}


def test_gdumb_keeps_classes_even_and_trains_anew():
    learner = cl.GDumb(lambda: nn.Linear(1, 3), capacity=6, rate=0.5, epochs=40, seed=1)
    y = torch.tensor([0] * 20 + [1] * 20 + [2] * 20)
    sizes = []
    for label in range(3):
        learner.observe((y[y == label] * 1.0).unsqueeze(1), y[y == label])
        sizes.append({key: len(rows) for key, rows in learner.memory.items()})
    assert sizes == [{0: 6}, {0: 3, 1: 3}, {0: 2, 1: 2, 2: 2}]
    answers = learner(torch.tensor([[0.0], [2.0]]))
    assert answers.argmax(1).tolist() == [0, 2]
    again = copy.copy(learner)
    again.model = None
    assert torch.equal(again(torch.tensor([[0.0], [2.0]])), answers)  # from the seed
    assert learner.numbers() == {"answer": 6, "learn": 6 * 2}  # which give the model again


@pytest.mark.parametrize("make", [cl.Reservoir, lambda capacity: cl.GDumb(lambda: nn.Linear(1, 2), capacity)])
def test_no_memory_is_an_error(make):
    with pytest.raises(ValueError, match=r"capacity must be .*at least 1 sample, got 0"):
        make(0)


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
    final = cl.stream(nc.ExactLinear(8, 6, exact=ridge.config), tasks, last=True)
    assert torch.equal(final.matrix[-1], found.matrix[-1])
    assert final.matrix[:-1].isnan().all()


def test_the_curve_is_of_the_classes_seen():
    class Table:
        """Answers class 3 for all, class 1 second."""

        def observe(self, x, y):
            pass

        def __call__(self, x):
            return torch.tensor([0.0, 1.0, 0.0, 2.0]).expand(len(x), 4)

    x, y = torch.randn(8, 2), torch.arange(4).repeat_interleave(2)
    tasks = cl.split((x, y), (x, y), classes=[(0, 1), (2, 3)], scenario="class")
    found = cl.stream(Table(), tasks, batch=2, every=1)
    # class 0 alone; 0 and 1: 1 is answered; 0 to 2: still 1; all: 3
    assert found.curve == [(2, 100.0), (4, 50.0), (6, pytest.approx(100 / 3)), (8, 25.0)]
    assert found.matrix.tolist() == [[50, 0], [0, 50]]


def test_wrong_requests_are_refused():
    tasks = cl.split((X, Y), (X, Y), classes=[(0,), (1,)], scenario="task")
    with pytest.raises(ValueError, match="tasks must be those of"):
        cl.stream(cl.NearestMean(2, classes=2), tasks)
    with pytest.raises(ValueError, match="every must be None or a number of batches >= 1, got 0"):
        cl.stream(cl.NearestMean(2, classes=2), [cl.Task((X, Y), (X, Y))], every=0)
