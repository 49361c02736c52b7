"""Losses, counts and optimiser groups over whole models, against values worked out by hand."""

import copy
import math

import numpy as np
import pytest
import torch
from torch import nn

import neurocoder as nc
from conftest import randomised, small


def by_hand(memory):
    """L_o of one memory, in numpy."""
    distance = 0.0
    for slots in (memory.U, memory.V):
        m = slots.detach().numpy().astype(np.float64)
        distance += math.sqrt(np.square(m @ m.T - np.eye(len(m))).sum())
    return distance


def mlp(config=None, seed=0):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Conv1d(4, 3, 2), nn.Linear(6, 3))
    return randomised(nc.recode(model, "[023]", config or small()))


def test_orthogonal_loss_is_the_sum_over_layers():
    model = mlp()
    expected = sum(by_hand(model[i].memory) for i in (0, 2, 3))
    assert nc.orthogonal_loss(model).item() == pytest.approx(expected, rel=1e-5)


def test_auxiliary_loss_weighs_each_layer():
    model = mlp(small(orthogonality=0.1))
    other = randomised(nc.Linear(4, 4, program=small(orthogonality=2.5)))
    expected = 0.1 * sum(by_hand(model[i].memory) for i in (0, 2, 3)) + 2.5 * by_hand(other.memory)
    assert nc.auxiliary_loss(model, other).item() == pytest.approx(expected, rel=1e-5)
    assert nc.orthogonal_loss(other).item() == pytest.approx(by_hand(other.memory), rel=1e-5)


def test_a_shared_layer_counts_once():
    layer = randomised(nc.Linear(4, 4, program=small()))
    inside = nn.Sequential(layer, nn.Tanh(), layer)
    for modules in [(inside,), (layer, layer), (inside, layer), (inside, nn.Sequential(layer))]:
        assert nc.orthogonal_loss(*modules).item() == pytest.approx(by_hand(layer.memory), rel=1e-5)
        assert nc.auxiliary_loss(*modules).item() == pytest.approx(0.1 * by_hand(layer.memory), rel=1e-5)


def test_layers_that_share_a_memory_each_weigh_it():
    first, second = (randomised(nc.Linear(4, 4, program=small(orthogonality=a))) for a in (0.1, 0.3))
    second.memory = first.memory
    model = nn.Sequential(first, second)
    assert nc.auxiliary_loss(model).item() == pytest.approx(0.4 * by_hand(first.memory), rel=1e-5)
    assert nc.orthogonal_loss(model).item() == pytest.approx(2 * by_hand(first.memory), rel=1e-5)


def test_looking_for_the_layers_costs_little_in_a_large_model(monkeypatch):
    """A module that is asked for an attribute it lacks takes 2 us to say so; the walk alone takes 0.5."""
    model = nn.Sequential(*[nn.Sequential(nn.Tanh()) for _ in range(502)], nc.Linear(4, 4, program=small()))
    asked, look_up = [], nn.Module.__getattr__
    monkeypatch.setattr(nn.Module, "__getattr__", lambda self, name: asked.append(name) or look_up(self, name))
    nc.auxiliary_loss(model)
    assert len(asked) < 100


def test_layers_are_found_anew_at_every_call():
    model = mlp(small(orthogonality=0.1))
    for i in (0, 2, 3):
        expected = 0.1 * sum(by_hand(layer.memory) for layer in model if isinstance(layer, nc.ProgramLayer))
        assert nc.auxiliary_loss(model).item() == pytest.approx(expected, rel=1e-5)
        model[i] = nn.Identity()
    assert nc.auxiliary_loss(model).item() == 0
    model[3] = randomised(nc.Linear(4, 4, program=small(orthogonality=0.1)))
    assert nc.auxiliary_loss(model).item() == pytest.approx(0.1 * by_hand(model[3].memory), rel=1e-5)


def test_a_model_without_coded_layers_adds_zero():
    model = nn.Linear(3, 2)
    for loss in (nc.auxiliary_loss(model), nc.orthogonal_loss(model), nc.auxiliary_loss(nn.ReLU())):
        assert loss.shape == ()
        assert loss.item() == 0
    (model(torch.ones(1, 3)).sum() + nc.auxiliary_loss(model)).backward()


def test_without_orthogonality_the_loss_is_zero_but_measurable():
    layer = randomised(nc.Linear(4, 4, program=small(orthogonality=0)))
    assert nc.auxiliary_loss(layer).item() == 0
    assert nc.orthogonal_loss(layer).item() > 1


def test_more_slots_than_dimensions_have_a_floor():
    layer = nc.Linear(5, 3, program=small(slots=12))
    floor = math.sqrt(12 - 5) + math.sqrt(12 - 3)
    assert nc.orthogonal_loss(layer).item() == pytest.approx(floor, rel=1e-4)
    randomised(layer, 0.3)
    optimiser = torch.optim.Adam([layer.memory.U, layer.memory.V], lr=0.05)
    for _ in range(300):
        optimiser.zero_grad()
        loss = nc.orthogonal_loss(layer)
        loss.backward()
        optimiser.step()
    assert floor - 1e-4 < loss.item() < 1.02 * floor


def test_the_gradient_is_finite_at_exactly_orthonormal_slots():
    layer = nc.Linear(6, 6, program=small())
    with torch.no_grad():
        layer.memory.U.copy_(torch.eye(6))
        layer.memory.V.copy_(torch.eye(6))
    loss = nc.auxiliary_loss(layer)
    loss.backward()
    assert loss.item() == 0
    for slots in (layer.memory.U, layer.memory.V):
        assert torch.isfinite(slots.grad).all()


def test_the_gradient_agrees_with_finite_differences():
    layer = randomised(nc.Linear(4, 3, program=small(orthogonality=0.7), dtype=torch.float64))
    nc.auxiliary_loss(layer).backward()
    direction = torch.randn_like(layer.memory.U)
    moved = [copy.deepcopy(layer) for _ in range(2)]
    for sign, one in zip((1, -1), moved, strict=True):
        one.memory.U.data += sign * 1e-6 * direction
    slope = 0.7 * (by_hand(moved[0].memory) - by_hand(moved[1].memory)) / 2e-6
    assert (layer.memory.U.grad * direction).sum().item() == pytest.approx(slope, rel=1e-5)
    assert layer.controller.signal_weight.grad is None


def gradients(model, *losses):
    """Of the sum of these losses, each by a backward of its own."""
    model.zero_grad()
    for loss in losses:
        loss.backward()
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters()}


def test_accumulated_gradients_are_those_of_the_whole_batch_if_both_losses_are_divided():
    """Undivided, the auxiliary loss counts once for each part."""
    model = randomised(
        nc.recode(nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3)), "*", small()), 0.5
    ).double()
    x = torch.randn(8, 5, dtype=torch.float64)
    auxiliary = gradients(model, nc.auxiliary_loss(model) + 0 * model(x).sum())
    whole = gradients(model, model(x).square().mean() + nc.auxiliary_loss(model))
    parts = gradients(model, *((model(part).square().mean() + nc.auxiliary_loss(model)) / 4 for part in x.split(2)))
    torch.testing.assert_close(parts, whole)
    naive = gradients(model, *(model(part).square().mean() / 4 + nc.auxiliary_loss(model) for part in x.split(2)))
    torch.testing.assert_close(naive, {name: whole[name] + 3 * auxiliary[name] for name in whole})
    assert auxiliary["0.memory.U"].abs().max() > 0.1


def test_mixtures_add_their_balance_loss():
    model = nc.recode(nn.Sequential(nn.Linear(5, 5), nn.Linear(5, 2)), "0", nc.MixtureConfig(experts=4, balance=0.5))
    assert nc.auxiliary_loss(model).item() == 0, "before any forward"
    model(torch.randn(8, 5))
    assert nc.auxiliary_loss(model).item() > 0
    assert nc.orthogonal_loss(model).item() == 0


def test_layers_of_different_dtypes_add_up():
    layers = [randomised(nc.Linear(4, 4, program=small(), dtype=t)) for t in (torch.bfloat16, torch.float64)]
    total = nc.auxiliary_loss(*layers)
    assert total.item() == pytest.approx(sum(nc.auxiliary_loss(layer).item() for layer in layers), rel=1e-2)


@pytest.mark.parametrize(("steps", "expected"), [(5, 7176), (1, 7032)])
def test_parameter_count_of_the_mnist_layer(steps, expected):
    config = nc.ProgramConfig(slots=6, key_dim=2, steps=steps, heads=3, hidden=6, residual=False)
    assert nc.count_parameters(nc.Linear(200, 10, program=config))["total"] == expected


@pytest.mark.parametrize("residual", [True, False, "plain"])
def test_count_by_hand(residual):
    d, o, p, k, h, hid = 7, 3, 4, 2, 3, 5
    config = nc.ProgramConfig(slots=p, key_dim=k, steps=2, heads=h, least_used=2, hidden=hid, residual=residual)
    slots = p * (d + o + 1)
    keys = (d + 1) * k + (o + 1) * k + (1 + 1) * k
    lstm = 4 * hid * (d + 1) + 4 * hid * hid
    reads = 3 * h * (hid + 1) * (k + p)
    gate = d + 1 if residual is True else 0
    expected = {
        "memory": slots + keys,
        "controller": lstm + reads + gate,
        "residual": d * o if residual else 0,
        "main": o + 8,
    }
    model = nn.Sequential(nc.Linear(d, o, program=config), nn.Linear(o, 2))
    assert nc.count_parameters(model) == {**expected, "total": sum(expected.values())}


def test_shared_parameters_count_once():
    layer = nc.Linear(4, 4, program=small())
    once = nc.count_parameters(layer)
    assert nc.count_parameters(nn.Sequential(layer, nn.ReLU(), layer)) == once
    plain = nn.Linear(4, 4)
    plain.bias = layer.bias
    assert nc.count_parameters(nn.Sequential(layer, plain))["main"] == once["main"] + 16


def test_count_of_a_plain_model_and_of_baselines():
    assert nc.count_parameters(nn.Linear(3, 2)) == {"memory": 0, "controller": 0, "residual": 0, "main": 8, "total": 8}
    mixture = nc.MixtureLinear(3, 2, mixture=nc.MixtureConfig(experts=5))
    assert nc.count_parameters(mixture) == {
        "memory": 5 * 6,
        "controller": 2 * 3 * 5,
        "residual": 0,
        "main": 2,
        "total": 62,
    }


def grouped_model():
    model = nn.Sequential(nn.Linear(5, 6), nn.LayerNorm(6), nn.Conv1d(1, 2, 3), nn.Linear(6, 3), nn.Linear(3, 3))
    nc.recode(model, ["0", "2"], small())
    nc.recode(model, "4", nc.StoredProgramConfig())
    model[3].bias.requires_grad_(False)
    return model


def test_parameter_groups():
    model = grouped_model()
    groups = nc.parameter_groups(model, lr=0.1, controller_lr=0.02, weight_decay=0.3)
    settings = {id(p): (group["lr"], group["weight_decay"]) for group in groups for p in group["params"]}
    assert sum(len(group["params"]) for group in groups) == len(settings)
    assert settings.keys() == {id(p) for p in model.parameters() if p.requires_grad}
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        vector = name.endswith("bias") or name == "1.weight"
        undecayed = vector or ".memory." in name or name == "4.keys"
        controls = ".controller." in name or name.startswith("4.query")
        assert settings[id(parameter)] == (0.02 if controls else 0.1, 0.0 if undecayed else 0.3), name
    assert {"main", "controller", "main, undecayed"} <= {group["name"] for group in groups}


def test_parameter_groups_drive_an_optimiser():
    model, x = randomised(nc.recode(nn.Sequential(nn.Linear(4, 4)), "0", small())), torch.randn(3, 4)
    optimiser = torch.optim.AdamW(nc.parameter_groups(model, lr=0.0, controller_lr=0.1, weight_decay=0.1))
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    model(x).sum().backward()
    optimiser.step()
    moved = {name for name, p in model.named_parameters() if not torch.equal(p, before[name])}
    assert moved
    assert all(name.startswith("0.controller.") for name in moved)


def test_one_learning_rate_for_all_by_default():
    groups = nc.parameter_groups(grouped_model(), lr=0.1)
    assert {(group["lr"], group["weight_decay"]) for group in groups} == {(0.1, 0.0)}


def test_shared_parameters_are_grouped_once():
    layer = nc.Linear(4, 4, program=small())
    groups = nc.parameter_groups(nn.Sequential(layer, layer), lr=0.1)
    assert sum(len(group["params"]) for group in groups) == len(list(layer.parameters()))
