"""Many tasks: what the families make, how contenders are sized, and how new tasks are learned."""

import copy
import math

import pytest
import torch
from torch import nn

import neurocoder as nc
from neurocoder.lab.experiments.tasks import domains, families, learning, models
from neurocoder.lab.experiments.tasks.experiment import points
from neurocoder.lab.experiments.tasks.families import FAMILIES, Tasks
from neurocoder.lab.experiments.tasks.models import CONTENDERS, TaskNetwork

SINES = FAMILIES["sines"]


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def sines(count, examples, seed=0):
    """Samples of some sinusoids, to fit and to measure on."""
    drawn = generator(seed)
    tasks = families.sines(count, drawn)
    return SINES.sample(tasks, examples, True, drawn), SINES.sample(tasks, 30, False, drawn)


@pytest.mark.parametrize("name", ["sines", "springs", "rotated"])
def test_families_make_tasks_of_their_sizes(name):
    family = FAMILIES[name]
    pools = family.pools(7, generator())
    assert [len(pool) for pool in pools] == [7, families.CHOSEN, families.NEW]
    data = family.sample(pools.trained, 5, True, generator())
    assert data.x.shape == (7, 5, family.inputs)
    assert data.y.shape == ((7, 5) if family.classes else (7, 5, family.outputs))
    assert data.x.std() == pytest.approx(1, abs=0.4)
    again = family.sample(pools.trained, 5, True, generator())
    assert torch.equal(data.x, again.x)
    more = family.pools(30, generator())  # the number of tasks does not change the new ones
    assert torch.equal(more.chosen, pools.chosen)
    assert torch.equal(more.new, pools.new)


def test_a_linear_spring_swings_as_a_cosine():
    tasks = torch.tensor([[2.5, 0.0, 0.0, 0.0, 0.0]])
    data = families.spring_values(tasks, 50, True, generator())
    place, speed = data.x.unbind(2)
    turn = math.sqrt(2.5)
    after = place * math.cos(turn) + speed / turn * math.sin(turn)
    torch.testing.assert_close(place + data.y[..., 0], after, atol=0.1, rtol=0)  # steps of 0.02


def test_held_out_angles_are_not_trained():
    pools = families.angles(500, generator())
    low, high = families.HELD_OUT
    assert not ((pools.trained > low) & (pools.trained < high)).any()
    assert ((pools.new >= low) & (pools.new <= high)).all()
    assert pools.trained.min() < 20
    assert pools.trained.max() > 340


def test_a_quarter_turn_is_a_quarter_turn():
    upright = families.rotated(torch.zeros(1), 4, False, generator(1)).x.view(4, 14, 14)
    turned = families.rotated(torch.full((1,), 90.0), 4, False, generator(1)).x.view(4, 14, 14)
    near = [(turned - torch.rot90(upright, k, (1, 2))).abs().mean() for k in (1, 3)]
    assert min(near) < 1e-4


def test_superclasses_have_every_class_once():
    assert sorted(families.SUPERCLASSES.flatten().tolist()) == list(range(100))
    places = families.superclasses(torch.tensor([4, 95, 1, 89]))
    assert places.tolist() == [[0, 0], [0, 4], [1, 0], [19, 4]]
    pools = families.groups((12, 4, 4))(12, generator())
    assert sorted(torch.cat(list(pools)).tolist()) == list(range(20))


def test_domains_have_fifteen_intents_each():
    assert len(domains.PLACES) == 150
    assert [len(intents.split()) for intents in domains.INTENTS.values()] == [15] * 10
    assert domains.PLACES["freeze_account"] == (0, 0)
    assert domains.PLACES["maybe"] == (9, 14)


def test_samples_of_a_group_are_its_own():
    x = torch.arange(40.0).unsqueeze(1)
    places = torch.stack([torch.arange(40) % 4, torch.arange(40) // 8], 1)
    data = families.labelled(lambda train: (x if train else -x, places))(torch.tensor([2, 1]), 6, True, generator())
    assert data.x.shape == (2, 6, 1)
    for task, own, labels in zip((2, 1), data.x.squeeze(2), data.y, strict=True):
        assert (own % 4 == task).all()
        assert len(own.unique()) == 6
        assert torch.equal(labels, own.long() // 8)


def test_contenders_have_equal_parameters():
    for name, family in FAMILIES.items():
        for contender in CONTENDERS if name != "text" else ():
            with torch.device("meta"):
                network = TaskNetwork(contender, family, models.hidden_width(contender, family), 1)
            assert abs(models.parameters(network) / family.parameters - 1) < 0.03, (name, contender)


def test_a_mixture_is_its_experts_in_the_shares_of_the_gate():
    layer = models.Mixture(5, 3, 2)
    x, z = torch.randn(4, 6, 5), torch.randn(4, 2)
    share = (z @ layer.A.mT + layer.a).softmax(1)
    expected = sum(share[:, e, None, None] * (x @ layer.W[e].mT + layer.b[e]) for e in range(models.EXPERTS))
    torch.testing.assert_close(layer(x, z), expected)


def test_latents_are_fitted_as_fit_control_does():
    torch.manual_seed(0)
    network = TaskNetwork("core", SINES, 9, 4)
    for layer in network.layers:
        nn.init.normal_(layer.layer.memory.V, std=0.3)
    data, _ = sines(3, 8)
    start = network.latents.detach()[0]
    found = learning.fit_latents(network, data, start, 0.1, 12)[-1]
    gelu = nn.GELU("tanh")
    alone = nn.Sequential(network.layers[0].layer, gelu, network.layers[1].layer, gelu, network.layers[2].layer)
    for task in range(3):
        own = data.x[task], data.y[task]
        z = nc.fit_control(alone, own, nn.functional.mse_loss, lr=0.1, steps=12, start=start)
        torch.testing.assert_close(found[task], z, rtol=1e-3, atol=1e-4)


def test_fine_tuned_copies_are_what_a_plain_loop_makes(monkeypatch):
    monkeypatch.setattr(learning, "RATES", (1e-2,))
    torch.manual_seed(0)
    network = TaskNetwork("film", SINES, 6, 4)
    before = copy.deepcopy(network.state_dict())
    (a, a_test), (b, b_test) = sines(1, 8), sines(2, 8, 1)
    found = learning.by_parameters(network, (a, a_test), (b, b_test), 6)
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())
    shares = torch.tensor([1, 2, 3, 4, 5, 6]) / 6
    by_share = {}
    for task in range(3):
        x, y = (a.x, a.y) if task == 0 else (b.x[[task - 1]], b.y[[task - 1]])
        own = copy.deepcopy(network)
        own.latents = nn.Parameter(network.latents.detach().mean(0, keepdim=True))
        optimiser = torch.optim.Adam(own.parameters(), lr=1e-2)
        for step in range(6):
            optimiser.param_groups[0]["lr"] = 1e-2 * learning.decay(step, 6)
            optimiser.zero_grad()
            models.loss(own(x, torch.zeros(1, dtype=torch.long)), y).backward()
            optimiser.step()
            if task:
                with torch.no_grad():
                    error = (
                        own(b_test.x[[task - 1]], torch.zeros(1, dtype=torch.long)) - b_test.y[[task - 1]]
                    ).square()
                by_share.setdefault(step, []).append(100 * error.mean())
    variance = (b_test.y - b_test.y.flatten(0, 1).mean(0)).square().mean()
    step = int((shares - found.share).abs().argmin())
    torch.testing.assert_close(found.error, torch.stack(by_share[step]) / variance, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("starts", [None, (torch.ones(1, 8), torch.tensor([[2.0] * 8, [3.0] * 8]))])
def test_fine_tuning_starts_where_it_is_told(monkeypatch, starts):
    monkeypatch.setattr(learning, "RATES", (1e-9,))
    torch.manual_seed(0)
    network = TaskNetwork("shift", SINES, 6, 4)
    chosen, new = sines(1, 8), sines(2, 8, 1)
    mean = network.latents.detach().mean(0).expand(2, -1)
    found = learning.by_parameters(network, chosen, new, 1, starts)
    untrained = models.errors(network.outputs(new[1].x, mean if starts is None else starts[1]), new[1])
    torch.testing.assert_close(found.error, untrained.detach(), rtol=1e-4, atol=1e-3)  # after one tiny step


def test_a_gaussian_process_by_hand(monkeypatch):
    monkeypatch.setattr(learning, "LENGTHS", (1.0,))
    monkeypatch.setattr(learning, "NOISES", (0.1,))
    x, y = torch.tensor([[[0.0], [1.0]]]), torch.tensor([[[1.0], [3.0]]])
    place = torch.tensor([[[0.5], [-1.0]]])
    seen = Tasks(place, y)
    found = learning.by_kernel((Tasks(x, y), seen), (Tasks(x, y), seen))
    near = math.exp(-0.5)
    weight = 1 / (1.1 - near)  # of targets -1 and 1 about their mean 2
    predicted = [2.0, 2 - weight * (math.exp(-0.5) - math.exp(-2.0))]
    expected = 100 * ((predicted[0] - 1) ** 2 + (predicted[1] - 3) ** 2) / 2  # their variance is 1
    assert found.error.item() == pytest.approx(expected, rel=1e-5)
    labels = torch.arange(40) % 2
    points_of = torch.randn(3, 40, 2) + 4.0 * labels.view(1, 40, 1)
    classes = Tasks(points_of, labels.expand(3, -1))
    assert learning.by_kernel((classes, classes), (classes, classes)).error.max() < 10


def test_a_head_for_each_task_shares_its_hidden_layers():
    torch.manual_seed(0)
    network = TaskNetwork("heads", SINES, 9, 4)
    x, z = torch.randn(2, 5, 1), torch.randn(2, 8)
    hidden = x
    for layer in network.layers[:-1]:
        hidden = torch.nn.functional.gelu(hidden @ layer.W.mT + layer.b, approximate="tanh")
    head = network.layers[-1]
    W = head.W + torch.einsum("nk,koi->noi", z, head.H)
    expected = torch.einsum("nti,noi->nto", hidden, W) + head.b + (z @ head.S.mT).unsqueeze(1)
    torch.testing.assert_close(network.outputs(x, z), expected)


def test_the_best_moment_of_each_copy_is_kept():
    stack = learning.Stack(nn.Linear(1, 1), [("sgd", 1.0), ("sgd", 1.0)])
    best = learning.Best(stack)
    for error, value in (([3.0, 2.0], 1.0), ([1.0, math.nan], 2.0), ([2.0, 5.0], 3.0)):
        stack.values.fill_(value)
        best.keep(torch.tensor(error), value)
    assert best.values[:, 0].tolist() == [2.0, 1.0]
    assert best.share == [2.0, 1.0]


def test_training_learns_many_tasks_and_new_ones():
    drawn = generator()
    tasks = families.sines(40, drawn)
    data, held_out, test = (SINES.sample(tasks, number, True, drawn) for number in (10, 20, 20))
    torch.manual_seed(0)
    network = TaskNetwork("core", SINES, 16, 40)
    untrained = models.errors(network(test.x, torch.arange(40)), test).mean()
    found = learning.train(network, data, held_out, test, 60, drawn)
    assert found.error.mean() < 0.6 * untrained
    torch.testing.assert_close(found.error, models.errors(network(test.x, torch.arange(40)), test).detach())
    new, latents = learning.by_latents(network, sines(4, 10, 1), sines(6, 10, 2), 20)
    assert len(new.error) == 6
    assert [z.shape for z in latents] == [(4, 8), (6, 8)]
    data, test = sines(6, 10, 2)
    again = models.errors(network.outputs(test.x, latents[1]), test)
    torch.testing.assert_close(new.error, again.detach())
    tuned = learning.by_parameters(network, sines(4, 10, 1), (data, test), 20, latents)
    assert tuned.error.mean() < 1.5 * new.error.mean()  # from the latents that were found
    unfitted = learning.unchanged(network, sines(6, 10, 2))
    assert new.error.mean() < unfitted.error.mean()


def test_errors_by_hand():
    data = Tasks(torch.zeros(2, 2, 1), torch.tensor([[0, 1], [1, 1]]))
    outputs = torch.tensor([[[1.0, 0.0], [0.0, 1.0]], [[1.0, 0.0], [0.0, 1.0]]])
    assert models.errors(outputs, data).tolist() == [0, 50]
    values = Tasks(torch.zeros(2, 1, 1), torch.tensor([[[1.0]], [[3.0]]]))
    assert models.errors(torch.tensor([[[1.0]], [[1.0]]]), values).tolist() == [0, 400]


def test_points_vary_one_number_at_a_time():
    assert points(1_000, "core") == [(10, 10), (100, 10), (1_000, 10), (100, 5), (100, 50)]
    assert points(12, "film") == [(10, 10), (12, 10), (12, 5), (12, 50)]
    assert points(1_000, "attention") == [(100, 10)]
    assert points(1_000, "kernel") == points(1_000, "own")
    assert points(1_000, "own") == [(1, 5), (1, 10), (1, 50)]
