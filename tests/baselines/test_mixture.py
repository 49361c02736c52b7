"""MixtureLinear against hand-computed cases, a Monte Carlo estimate and a reference that builds every weight."""

import copy
import gc
import math
import pickle
import weakref

import pytest
import torch
from baseline_helpers import assert_agrees_with_reference, assert_same, build_random, loss_gradients
from torch.nn.functional import linear, softplus
from torch.utils.checkpoint import checkpoint

import neurocoder as nc
from neurocoder.baselines import mixture as module
from neurocoder.baselines.mixture import smooth_load, squared_variation, top_k_gates


def mixture(experts=5, active=2, **options):
    layer = nc.MixtureLinear(6, 4, mixture=nc.MixtureConfig(experts, active, balance=0.1), **options)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.normal_()
    return layer


def normal_cdf(value):
    return (1 + torch.erf(value / math.sqrt(2))) / 2


def variation(amounts):
    mean = sum(amounts) / len(amounts)
    return sum((amount - mean) ** 2 for amount in amounts) / len(amounts) / mean**2


def reference(layer, x, control):
    """The equations of the paper and its appendix A, input by input and expert by expert."""
    experts, active = layer.config.experts, layer.config.active
    noise = torch.randn(len(x), experts, dtype=x.dtype)
    importance, load, outputs = [0.0] * experts, [0.0] * experts, []
    for n in range(len(x)):
        z = x[n] if control is None else control[n]
        clean, scale = layer.gating_weight @ z, softplus(layer.noise_weight @ z) + 0.01
        noisy = clean + noise[n] * scale
        chosen = sorted(range(experts), key=lambda i: -noisy[i].item())[:active]
        total = sum(noisy[i].exp() for i in chosen)
        gates = {i: noisy[i].exp() / total for i in chosen}
        weight = sum(gate * layer.bank[i] for i, gate in gates.items())
        outputs.append(weight @ x[n] + layer.bias)
        for i in range(experts):
            importance[i] = importance[i] + gates.get(i, 0.0)
            others = sorted((noisy[j] for j in range(experts) if j != i), key=lambda value: -value.item())
            inside = 1.0 if active == experts else normal_cdf((clean[i] - others[active - 1]) / scale[i])
            load[i] = load[i] + inside
    return torch.stack(outputs), layer.config.balance * (variation(importance) + variation(load))


@pytest.mark.parametrize(("experts", "active"), [(5, 2), (5, 1), (5, 4), (3, 3)])
def test_agrees_with_the_reference(experts, active):
    layer, x = mixture(experts, active, dtype=torch.float64), torch.randn(7, 6, dtype=torch.float64)
    assert_agrees_with_reference(layer, reference, x)


def test_agrees_with_the_reference_under_a_control():
    layer = mixture(control_dim=2, dtype=torch.float64)
    x, z = torch.randn(7, 6, dtype=torch.float64), torch.randn(7, 2, dtype=torch.float64)
    assert_agrees_with_reference(layer, reference, x, z)


def test_gates_by_hand():
    gates = top_k_gates(torch.tensor([[1.0, 3.0, 2.0], [0.0, -1.0, -5.0]]), 2)
    high = 1 / (1 + math.exp(-1))
    torch.testing.assert_close(gates, torch.tensor([[0.0, high, 1 - high], [high, 1 - high, 0.0]]))


def test_the_first_of_equals_is_kept():
    gates = top_k_gates(torch.zeros(9, 20), 3)
    torch.testing.assert_close(gates, torch.tensor([1 / 3] * 3 + [0.0] * 17).expand(9, 20))


def test_squared_variation_by_hand():
    assert squared_variation(torch.tensor([1.0, 2.0, 3.0])).item() == pytest.approx((2 / 3) / 4)
    assert squared_variation(torch.tensor([2.0, 0.0])).item() == pytest.approx(1.0)
    assert squared_variation(torch.full((4,), 7.0)) == 0
    assert squared_variation(torch.tensor([3.0])) == 0
    assert squared_variation(torch.zeros(4)) == 0


@pytest.mark.parametrize("active", [1, 2, 4])
def test_load_is_the_probability_of_being_chosen_with_new_noise(active):
    clean, scale = torch.randn(3, 5), torch.rand(3, 5) + 0.3
    noisy = clean + scale * torch.randn(3, 5)
    load = smooth_load(clean, noisy, scale, active)
    assert load.std() > 0.05
    for expert in range(5):
        redrawn = noisy.expand(40_000, 3, 5).clone()
        redrawn[..., expert] = clean[:, expert] + scale[:, expert] * torch.randn(40_000, 3)
        chosen = top_k_gates(redrawn, active)[..., expert] > 0
        torch.testing.assert_close(load[:, expert], chosen.float().mean(0), rtol=0.0, atol=0.012)


def test_starts_with_noise_alone():
    layer = nc.MixtureLinear(6, 4)
    assert layer.gating_weight.count_nonzero() == 0
    assert layer.noise_weight.count_nonzero() == 0
    gates = layer.forward_code(torch.randn(4000, 6))
    assert ((gates > 0).sum(-1) == 2).all()
    torch.testing.assert_close((gates > 0).float().mean(0), torch.full((10,), 0.2), rtol=0.0, atol=0.03)


def test_no_noise_and_no_loss_in_eval_mode():
    layer, x = mixture(), torch.randn(50, 6)
    assert not torch.allclose(layer(x), layer(x))
    assert layer.auxiliary_loss() > 0
    y = layer.eval()(x)
    assert torch.equal(layer(x), y)
    assert layer.auxiliary_loss() == 0
    with torch.no_grad():
        layer.noise_weight.normal_()
    assert torch.equal(layer(x), y)
    torch.testing.assert_close(y, torch.einsum("ni,nio->no", x, layer.materialize(x)) + layer.bias)


def test_the_loss_is_that_of_the_last_forward():
    layer, x, other = mixture(), torch.randn(50, 6), torch.randn(50, 6)
    assert layer.auxiliary_loss() == 0
    assert not layer.auxiliary_loss().requires_grad
    layer(other)
    torch.manual_seed(1)
    layer(x)
    loss = layer.auxiliary_loss()
    torch.manual_seed(1)
    clean, scale = linear(x, layer.gating_weight), softplus(linear(x, layer.noise_weight)) + 0.01
    noisy = clean + scale * torch.randn(50, 5)
    importance, load = top_k_gates(noisy, 2).sum(0), smooth_load(clean, noisy, scale, 2).sum(0)
    torch.testing.assert_close(loss, 0.1 * (squared_variation(importance) + squared_variation(load)))
    layer.materialize(other)
    layer.code(other)
    assert layer.auxiliary_loss() == loss
    torch.testing.assert_close(nc.auxiliary_loss(layer), loss)


def test_copies_leave_the_graph_behind():
    layer, x = mixture(), torch.randn(5, 6)
    layer(x)
    for twin in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert twin.auxiliary_loss() == 0
    assert layer.auxiliary_loss() > 0
    assert set(layer.state_dict()) == {"bank", "gating_weight", "noise_weight", "bias"}


def test_an_old_graph_is_let_go():
    layer = mixture()
    layer(torch.randn(5, 6))
    old = weakref.ref(layer.balance_loss)
    layer(torch.randn(5, 6))
    gc.collect()
    assert old() is None


def test_balance_loss_spreads_the_load():
    layer = nc.MixtureLinear(6, 4, mixture=nc.MixtureConfig(experts=5, active=2, balance=1.0))
    x = torch.randn(200, 6)
    x[:, 0] = 1.0
    with torch.no_grad():
        layer.gating_weight[:, 0] = torch.tensor([6.0, 4.0, 0.0, 0.0, 0.0])
    optimizer = torch.optim.Adam(layer.parameters(), 0.1)
    losses = []
    for _ in range(100):
        layer(x)
        loss = layer.auxiliary_loss()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[0] > 2
    assert losses[-1] < 0.2


def test_vanishing_noise_leaves_bounded_gradients():
    layer, x = mixture(), torch.rand(9, 6)
    with torch.no_grad():
        layer.noise_weight.fill_(-1000.0)
        layer.gating_weight.mul_(1e-5)  # logits so near each other that only NOISE_EPSILON decides
    layer(x)
    layer.auxiliary_loss().backward()
    assert 0 < layer.gating_weight.grad.norm() < 100


@pytest.mark.parametrize(("experts", "active"), [(1, 1), (4, 1), (4, 4)])
def test_no_parameter_goes_unused_at_the_limits(experts, active):
    layer = mixture(experts, active)
    (layer(torch.randn(5, 6)).sum() + layer.auxiliary_loss()).backward()
    assert [name for name, p in layer.named_parameters() if p.grad is None] == []


def test_ensemble_by_vmap_in_training(monkeypatch):
    monkeypatch.setattr(module, "NOISE_EPSILON", 1e-9)
    members, x = [mixture() for _ in range(3)], torch.rand(9, 6)
    with torch.no_grad():
        for member in members:
            member.noise_weight.fill_(-1000.0)  # no noise, so that the members can be compared
    parameters, _ = torch.func.stack_module_state(members)
    base = copy.deepcopy(members[0]).to("meta")

    def run(parameters):
        return torch.func.functional_call(base, parameters, (x,)), base.auxiliary_loss()

    y, loss = torch.func.vmap(run, randomness="different")(parameters)
    torch.testing.assert_close(y, torch.stack([member(x) for member in members]))
    torch.testing.assert_close(loss, torch.stack([member.auxiliary_loss() for member in members]))
    copy.deepcopy(base)


def test_ensemble_by_vmap_draws_noise_for_each_member():
    layer = mixture()
    parameters, _ = torch.func.stack_module_state([layer, copy.deepcopy(layer)])

    def run(parameters):
        return torch.func.functional_call(layer, parameters, (torch.ones(50, 6),))

    first, second = torch.func.vmap(run, randomness="different")(parameters)
    assert not torch.allclose(first, second)


def test_export_in_training_keeps_the_noise_and_leaves_no_state():
    layer, x = mixture(), torch.randn(50, 6)
    program = torch.export.export(layer, (x,), dynamic_shapes=({0: torch.export.Dim("batch", min=1)},))
    assert layer.auxiliary_loss() == 0
    run = program.module()
    assert not torch.allclose(run(x), run(x))


def test_checkpointing_inside_a_model():
    layer = build_random("mixture", 6, 6)
    x = torch.randn(5, 6)

    def twice(x, call):
        torch.manual_seed(1)
        return call(lambda h: layer(torch.tanh(h)), layer(x))

    expected = loss_gradients(layer, twice(x, lambda function, h: function(h)))
    actual = loss_gradients(layer, twice(x, lambda function, h: checkpoint(function, h, use_reentrant=False)))
    assert_same(actual, expected)


def test_balance_under_autocast_is_worked_out_in_float32():
    layer, x = mixture(), torch.randn(3000, 6)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        torch.manual_seed(1)
        layer(x)
    loss = layer.auxiliary_loss()
    torch.manual_seed(1)
    layer(x)
    assert loss.dtype is torch.float32
    assert loss.item() == pytest.approx(layer.auxiliary_loss().item(), rel=0.02)
