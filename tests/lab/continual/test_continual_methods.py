"""What each method computes, against values worked out by hand."""

import copy
import math
from types import SimpleNamespace

import pytest
import torch
from continual_helpers import Heads, one_task, set_weight, sgd, still, tasks
from torch import nn

import neurocoder as nc
from conftest import randomised, small
from neurocoder.lab import continual as cl
from neurocoder.lab.continual.methods.ewc import fisher

INPUTS = [[1.0], [2.0], [-1.0]]


def two_parameters(first, second):
    """`logits = (first * x, second * x)`."""
    return set_weight(nn.Linear(1, 2, bias=False), [first], [second])


def fisher_by_hand(inputs, difference):
    """The gradient of log p(y') is ±x (1 - p(y')) for either parameter, and p(y') = sigmoid(|x difference|)."""
    return sum((x / (1 + math.exp(abs(x * difference)))) ** 2 for x in inputs) / len(inputs)


def fixed_trainer(model, method, **options):
    return cl.Trainer(model, method, optimiser=still, epochs=1, **options)


def move(model, first, second):
    return set_weight(copy.deepcopy(model), [first], [second])


# EWC


@pytest.mark.parametrize("labels", [[0, 0, 1], [1, 1, 0]])
def test_fisher_of_two_parameters_is_per_sample_with_the_models_own_label(labels):
    trainer = fixed_trainer(two_parameters(1.5, 0.5), cl.EWC(1.0), batch=2)
    trainer.learn(one_task(INPUTS, labels))
    expected = fisher_by_hand([1, 2, -1], 1.0)
    found = trainer.method.terms[0].importance["weight"]
    torch.testing.assert_close(found, torch.full((2, 1), expected))


class Opaque(torch.autograd.Function):
    """The identity, for which torch.func has no rule."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient


class OpaqueLinear(nn.Linear):
    def forward(self, x):
        return super().forward(Opaque.apply(x))


def test_fisher_of_a_layer_that_cannot_be_batched():
    model = set_weight(OpaqueLinear(1, 2, bias=False), [1.5], [0.5])
    found = fisher(model, torch.tensor(INPUTS), None, [0, 1])
    torch.testing.assert_close(found["weight"], torch.full((2, 1), fisher_by_hand([1, 2, -1], 1.0)))


def learn_twice(method):
    """Two tasks with other inputs, the parameters moved by hand in between."""
    model = two_parameters(1.0, 0.0)
    trainer = fixed_trainer(model, method)
    trainer.learn(one_task([[1.0], [2.0]], [0, 1]))
    first = move(model, 1.0, 0.0)
    set_weight(model, [0.0], [3.0])
    trainer.learn(one_task([[0.5], [1.0]], [0, 1]))
    assert method.penalty(model).shape == ()
    assert fisher_by_hand([1, 2], 1.0) != fisher_by_hand([0.5, 1], 3.0)
    return first, model, fisher_by_hand([1, 2], 1.0), fisher_by_hand([0.5, 1], 3.0)


def test_ewc_keeps_every_tasks_anchor():
    method = cl.EWC(10.0)
    _, model, one, two = learn_twice(method)
    assert method.penalty(model).item() == pytest.approx(10 * one * (1 + 9))
    # Anchors (1, 0) and (0, 3); now (2, 5).
    assert method.penalty(move(model, 2.0, 5.0)).item() == pytest.approx(10 * (one * (1 + 25) + two * (4 + 4)))


def test_online_ewc_sums_importance_at_the_latest_anchor():
    method = cl.OnlineEWC(10.0)
    _, model, one, two = learn_twice(method)
    assert method.penalty(model).item() == 0
    assert method.penalty(move(model, 2.0, 5.0)).item() == pytest.approx(10 * (one + two) * (4 + 4))


def test_fisher_of_the_class_scenario_is_over_the_classes_seen():
    model = set_weight(nn.Linear(1, 3, bias=False), [1.5], [0.5], [9.0])
    trainer = fixed_trainer(model, cl.EWC(1.0))
    trainer.learn(one_task(INPUTS, [0, 1, 0]))
    expected = fisher_by_hand([1, 2, -1], 1.0)
    torch.testing.assert_close(
        trainer.method.terms[0].importance["weight"], torch.tensor([[expected], [expected], [0.0]])
    )


# L2, SI, MAS


def test_l2_is_the_distance_to_the_latest_anchor():
    method = cl.L2(0.5)
    _, model, *_ = learn_twice(method)
    assert method.penalty(model).item() == 0
    assert method.penalty(move(model, 2.0, 5.0)).item() == pytest.approx(0.5 * (4 + 4))


def test_path_integral_of_si_on_a_quadratic():
    """`L = theta^2`, gradient descent at rate 0.1 from 1: theta = 0.8^k, and each step lowers w by g * 0.1 g."""
    model = set_weight(nn.Linear(1, 1, bias=False), [1.0])
    method, trainer = cl.SI(2.0, damping=0.1), SimpleNamespace(model=model)
    optimiser = sgd(model.parameters())
    method.begin(trainer, None)
    for _ in range(3):
        optimiser.zero_grad()
        model.weight.square().sum().backward()
        method.after_backward(model)
        optimiser.step()
        method.after_step(model)
    path = sum(0.1 * (2 * 0.8**k) ** 2 for k in range(3))
    torch.testing.assert_close(method.path["weight"], torch.tensor([[path]]))
    method.end(trainer, None)
    importance = path / ((1 - 0.8**3) ** 2 + 0.1)
    set_weight(model, [2.0])
    assert method.penalty(model).item() == pytest.approx(2 * importance * (2 - 0.8**3) ** 2)
    method.begin(trainer, None)
    assert method.path["weight"].item() == 0
    method.end(trainer, None)
    torch.testing.assert_close(method.terms[0].importance["weight"], torch.tensor([[importance]]))
    assert method.penalty(model).item() == 0


def test_si_sums_over_tasks():
    trainer = cl.Trainer(two_parameters(1.0, 0.0), cl.SI(1.0), optimiser=sgd, epochs=1, batch=2)
    paths = []
    for _ in range(2):
        before = trainer.model.weight.detach().clone()
        trainer.learn(one_task(INPUTS, [1, 0, 1]))
        way = trainer.model.weight.detach() - before
        paths.append(trainer.method.path["weight"] / (way.square() + 0.1))
    torch.testing.assert_close(trainer.method.terms[0].importance["weight"], paths[0] + paths[1])


@pytest.mark.parametrize(("batch", "expected"), [(1, [[3.0, 2.0], [7.0, 2.0]]), (2, [[1.0, 2.0], [5.0, 2.0]])])
def test_mas_of_a_linear_map(batch, expected):
    """Outputs y = W x are (2, 6) and (1, 1) for x = (1, 2) and (-1, 0.5): d mean(y^2) / dW is the mean of y x^T."""
    model = set_weight(nn.Linear(2, 2, bias=False), [0.0, 1.0], [2.0, 2.0])
    x = torch.tensor([[1.0, 2.0], [-1.0, 0.5]])
    y = x @ model.weight.detach().T
    by_hand = torch.stack([torch.outer(y[n], x[n]) for n in range(2)])  # 2 y x^T / (outputs = 2), per sample
    wanted = by_hand.abs().mean(0) if batch == 1 else by_hand.mean(0).abs()
    trainer = fixed_trainer(model, cl.MAS(1.0), batch=batch)
    trainer.learn(one_task(x.tolist(), [0, 1]))
    torch.testing.assert_close(trainer.method.terms[0].importance["weight"], wanted)


# LwF


def softened(*logits):
    powers = [math.exp(logit / 2) for logit in logits]
    return [power / sum(powers) for power in powers]


def surprise(before, now):
    """T^2 times the cross-entropy, T = 2."""
    return -4 * sum(p * math.log(q) for p, q in zip(before, now, strict=True) if p)


def penalties(trainer, task, model):
    """The penalty of another model on the last batch of a task."""
    found = []
    trainer.learn(task, after_step=lambda trainer: found.append(trainer.method.penalty(model).item()))
    return found


def test_distillation_counts_each_earlier_task_of_a_shared_head():
    model = two_parameters(1.0, 0.0)
    trainer = fixed_trainer(model, cl.LwF())
    moved = move(model, 0.0, 2.0)
    term = sum(surprise(softened(x, 0), softened(0, 2 * x)) for x in (1, 2, -1)) / 3
    task = one_task(INPUTS, [0, 1, 0])
    assert penalties(trainer, task, moved) == [0]
    assert penalties(trainer, task, moved) == pytest.approx([term])
    assert penalties(trainer, task, moved) == pytest.approx([2 * term])


def test_distillation_of_each_earlier_head():
    heads = [two_parameters(1.0, 0.0), two_parameters(0.0, 3.0), two_parameters(5.0, 5.0)]
    model = Heads(nn.Identity(), heads)
    trainer = fixed_trainer(model, cl.LwF(coefficient=0.5))
    for head in range(2):
        trainer.learn(one_task([[1.0]], [0], head, classes=(0, 1)))
    moved = copy.deepcopy(model)
    set_weight(moved.heads[0], [0.0], [2.0])
    expected = surprise(softened(1, 0), softened(0, 2)) + surprise(softened(0, 3), softened(0, 3))
    assert penalties(trainer, one_task([[1.0]], [0], 2, classes=(0, 1)), moved) == pytest.approx([0.5 * expected])


def test_distillation_in_the_class_scenario_expects_nothing_of_new_classes():
    model = set_weight(nn.Linear(1, 4, bias=False), [1.0], [0.0], [7.0], [9.0])
    trainer = fixed_trainer(model, cl.LwF())
    trainer.learn(one_task([[1.0], [1.0]], [0, 1]))
    moved = set_weight(copy.deepcopy(model), [0.0], [2.0], [1.0], [9.0])
    expected = surprise([*softened(1, 0), 0], softened(0, 2, 1))
    assert penalties(trainer, one_task([[1.0]], [2]), moved) == pytest.approx([expected])


# Rehearsal and offline


def test_rehearsal_replays_a_memory_of_fixed_size_one_to_one():
    sequence, method = tasks("task"), cl.Rehearsal(7)
    trainer = fixed_trainer(Heads(nn.Identity(), [nn.Linear(4, 2) for _ in range(3)]), method)
    for index, task in enumerate(sequence):
        parts = method.data(trainer, task)
        old = sum(len(part.y) for part in parts[:-1])
        assert old == [0, 2 * 7, 2 * (3 + 3)][index]  # 20 new samples: two copies of the memory
        assert torch.equal(parts[-1].x, task.train[0])
        trainer.learn(task)
        assert [len(part.y) for part in method.memory] == [[7], [3, 3], [2, 2, 2]][index]
        assert [part.head for part in method.memory] == list(range(index + 1))
    for part, task in zip(method.memory, sequence, strict=True):
        rows = [task.train[0].tolist().index(sample) for sample in part.x.tolist()]
        assert len(set(rows)) == 2
        assert torch.equal(task.train[1][rows], part.y)


def test_samples_of_several_heads_are_each_answered_by_their_own():
    """One step on a pool of two heads, against the loss written out."""
    model = Heads(
        nn.Identity(), [two_parameters(1.0, 0.0), set_weight(nn.Linear(1, 3, bias=False), [1.0], [2.0], [0.0])]
    )
    trainer = cl.Trainer(model, cl.Offline(), optimiser=sgd, epochs=1)
    trainer.learn(one_task([[1.0], [2.0]], [0, 1], 0))
    set_weight(trainer.model.heads[0], [1.0], [0.0])
    by_hand = copy.deepcopy(model)
    with torch.no_grad():
        by_hand.load_state_dict(trainer.method.start)
    x = [torch.tensor([[1.0], [2.0]]), torch.tensor([[3.0], [1.0]])]
    y = [torch.tensor([0, 1]), torch.tensor([2, 0])]
    losses = [nn.functional.cross_entropy(by_hand(x[head], head), y[head], reduction="sum") for head in range(2)]
    (sum(losses) / 4).backward()
    sgd(by_hand.parameters()).step()
    trainer.learn(one_task(x[1].tolist(), y[1].tolist(), 1, classes=(0, 1, 2)))
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter, by_hand.get_parameter(name))


# Program layers


def program_model(**changes):
    torch.manual_seed(3)
    trunk = randomised(nc.Linear(4, 5, program=small(**changes)), 0.5)
    return Heads(nn.Sequential(nn.BatchNorm1d(4), trunk, nn.ReLU()), [nn.Linear(5, 2)])


@pytest.mark.parametrize("method", [cl.EWC(1.0), cl.MAS(1.0), cl.SI(1.0)], ids=lambda method: type(method).__name__)
def test_importance_reaches_slots_controller_and_residual_but_no_buffers(method):
    trainer = cl.Trainer(program_model(), method, optimiser=sgd, epochs=1)
    trainer.learn(tasks("domain")[0])
    importance = method.terms[0].importance
    assert importance.keys() == dict(trainer.model.named_parameters()).keys()
    layer = trainer.model.trunk[1]
    parts = {
        layer.part_of(name) for name, _ in layer.named_parameters() if importance[f"trunk.1.{name}"].abs().max() > 0
    }
    assert parts == {"memory", "controller", "residual", "main"}
    assert not any("running" in name for name in importance)


@pytest.mark.parametrize("method", [cl.EWC, cl.L2, cl.MAS, cl.SI])
def test_frozen_parameters_stay_and_have_no_importance(method):
    model = program_model()
    model.trunk[1].memory.U.requires_grad_(False)
    before = model.trunk[1].memory.U.clone()
    trainer = cl.Trainer(model, method(1.0), optimiser=sgd, epochs=1)
    for task in tasks("domain")[:2]:
        trainer.learn(task)
    assert trainer.method.terms[0].importance.keys() == dict(model.named_parameters()).keys() - {"trunk.1.memory.U"}
    assert torch.equal(model.trunk[1].memory.U, before)


@pytest.mark.parametrize("method", [cl.EWC, cl.MAS])
def test_fisher_and_mas_leave_out_the_orthogonal_loss(method):
    found = []
    for orthogonality in (0.0, 10.0):
        trainer = fixed_trainer(program_model(orthogonality=orthogonality), method(1.0))
        trainer.learn(tasks("domain")[0])
        found.append(trainer.method.terms[0].importance)
    for name, value in found[0].items():
        torch.testing.assert_close(value, found[1][name])


def test_si_leaves_out_the_orthogonal_loss_and_the_penalty():
    """One step of gradient descent: w = rate * g * (all gradients), with g that of the cross-entropy alone."""
    method, task = cl.SI(1.0), tasks("domain")[0]
    trainer = cl.Trainer(program_model(orthogonality=10.0), method, optimiser=sgd, epochs=1)
    trainer.learn(task)
    randomised(trainer.model.trunk[1], 0.5)  # away from the anchor, so that there is a penalty
    model = copy.deepcopy(trainer.model).train()
    parameters = dict(model.named_parameters())
    loss = nn.functional.cross_entropy(model(task.train[0]), task.train[1])
    alone = torch.autograd.grad(loss, list(parameters.values()))
    rest = nc.auxiliary_loss(model) + method.penalty(model)
    others = torch.autograd.grad(rest, list(parameters.values()), allow_unused=True, materialize_grads=True)
    trainer.learn(task)
    assert any(other.abs().max() > 0.1 for other in others)
    for name, gradient, other in zip(parameters, alone, others, strict=True):
        expected = 0.1 * gradient * (gradient + other)
        torch.testing.assert_close(method.path[name], expected, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: cl.EWC(-1.0), "coefficient must be a finite number >= 0, got -1.0"),
        (lambda: cl.L2(math.inf), "coefficient must be a finite number >= 0, got inf"),
        (lambda: cl.MAS("1"), "coefficient must be a finite number >= 0, got '1'"),
        (lambda: cl.SI(1.0, damping=0), "damping must be a finite number > 0, got 0"),
        (lambda: cl.LwF(temperature=0.0), "temperature must be a finite number > 0, got 0.0"),
        (lambda: cl.Rehearsal(0), "size must be a whole number >= 1, got 0"),
    ],
)
def test_wrong_methods(build, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        build()
