"""Starting values: variance, orthonormal slots, the same start from the same seed."""

import json

import pytest
import torch
from torch import nn

import neurocoder as nc
from conftest import small


def variance_ratio(layer, plain, x):
    with torch.no_grad():
        return (layer(x).var() / plain(x).var()).item()


@pytest.mark.parametrize("residual", [True, False, "plain"])
@pytest.mark.parametrize("heads", [1, 10])
@pytest.mark.parametrize("steps", [1, 5])
@pytest.mark.parametrize("slots", [5, 30, 50, pytest.param(120, marks=pytest.mark.slow)])
def test_output_variance_is_that_of_a_plain_layer(slots, steps, heads, residual):
    config = nc.ProgramConfig(slots=slots, steps=steps, heads=heads, residual=residual)
    for size in ((64, 48), (200, 10)):
        ratio = variance_ratio(nc.Linear(*size, program=config), nn.Linear(*size), torch.randn(500, size[0]))
        assert 0.5 < ratio < 2, size


@pytest.mark.parametrize("residual", [True, False])
@pytest.mark.parametrize("size", [(16, 1), (1, 16), (784, 10), (1024, 1024)])
def test_output_variance_at_odd_sizes(size, residual):
    layer = nc.Linear(*size, program=nc.ProgramConfig(residual=residual))
    assert 0.4 < variance_ratio(layer, nn.Linear(*size), torch.randn(2000, size[0])) < 2.5


@pytest.mark.parametrize("residual", [True, False])
@pytest.mark.parametrize("steps", [1, 5])
def test_output_variance_of_a_convolution(steps, residual):
    config = nc.ProgramConfig(steps=steps, residual=residual)
    layer, plain = nc.Conv2d(16, 32, 3, padding=1, program=config), nn.Conv2d(16, 32, 3, padding=1)
    assert 0.5 < variance_ratio(layer, plain, torch.randn(64, 16, 8, 8)) < 2


def test_variance_with_a_control_of_its_own():
    layer = nc.Linear(64, 48, program=nc.ProgramConfig(residual=False), control_dim=5)
    x, z = torch.randn(2000, 64), torch.randn(2000, 5)
    with torch.no_grad():
        assert 0.5 < (layer(x, control=z).var() / nn.Linear(64, 48)(x).var()).item() < 2


@pytest.mark.parametrize("residual", [True, False, "plain"])
def test_slots_start_orthonormal(residual):
    memory = nc.Linear(20, 30, program=nc.ProgramConfig(slots=15, residual=residual)).memory
    assert memory.orthogonal_loss().item() < 1e-4
    wide = nc.Linear(10, 30, program=nc.ProgramConfig(slots=15, residual=residual)).memory
    assert wide.orthogonal_loss().item() == pytest.approx(5**0.5, rel=1e-4)  # semi-orthonormal: the floor


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_the_same_seed_starts_the_same_layer_in_any_dtype(dtype):
    states = []
    for kind in (torch.float32, torch.float32, dtype):
        torch.manual_seed(3)
        states.append(nc.Linear(20, 30, dtype=kind).state_dict())
    for name, value in states[0].items():
        assert torch.equal(value, states[1][name])
        tolerance = {"rtol": 1e-2, "atol": 1e-2} if dtype is torch.bfloat16 else {"rtol": 1e-5, "atol": 1e-6}
        torch.testing.assert_close(value, states[2][name].float(), **tolerance)


def test_reset_parameters_after_meta_construction():
    with torch.device("meta"):
        layer = nc.Linear(64, 48)
    assert all(p.is_meta for p in layer.parameters())
    layer.to_empty(device="cpu").reset_parameters()
    assert 0.5 < variance_ratio(layer, nn.Linear(64, 48), torch.randn(2000, 64)) < 2


@pytest.mark.parametrize("residual", [True, False, "plain"])
def test_every_parameter_gets_a_gradient_within_two_steps(residual):
    """Readers start at zero with a residual, so the LSTM behind them wakes at the second step."""
    layer = nc.Linear(20, 30, program=nc.ProgramConfig(residual=residual))
    optimiser = torch.optim.Adam(layer.parameters(), 1e-3)
    for _ in range(2):
        optimiser.zero_grad()
        layer(torch.randn(64, 20)).square().mean().backward()
        optimiser.step()
    for name, parameter in layer.named_parameters():
        assert parameter.grad.abs().max() > 0, name


def started(**options):
    torch.manual_seed(0)
    residual = options.pop("residual", False)
    return nc.Linear(40, 30, program=small(residual=residual, start=nc.Start(**options)))


def test_starting_values_are_options():
    usual = started()
    queries = 3 * usual.config.heads * usual.config.key_dim
    assert (started(gate_bias=0.5).controller.signal_bias[queries:] == 0.5).all()
    torch.testing.assert_close(started(input_scale=3.0).controller.input_weight, 3 * usual.controller.input_weight)
    torch.testing.assert_close(started(signal_scale=3.0).controller.signal_weight, 3 * usual.controller.signal_weight)
    assert started(residual=True, residual_gate_bias=-1.0).controller.integration_bias.item() == -1.0
    spread = [started(spread=value).memory.S.detach() for value in (0.0, 0.1, 0.5)]
    deviations = [float(values.std() / values.mean().abs()) for values in spread]
    assert deviations[0] < 1e-6
    assert 3 < deviations[2] / deviations[1] < 8
    x = torch.randn(2000, 40)
    variances = [started(variance=value)(x).detach().var().item() for value in (1 / 3, 3.0)]
    assert 7 < variances[1] / variances[0] < 11


def test_starting_values_that_differ_are_shown_and_saved():
    config = small(start=nc.Start(gate_bias=0.0))
    assert "start.gate_bias=0.0" in repr(nc.Linear(4, 3, program=config))
    assert "start" not in repr(nc.Linear(4, 3, program=small()))
    saved = json.loads(json.dumps(config.to_dict()))
    assert nc.ProgramConfig.from_dict(saved) == config
    del saved["start"]  # as saved before there was a choice
    assert nc.ProgramConfig.from_dict(saved) == small()


@pytest.mark.parametrize("residual", [True, "plain"])
def test_a_recoded_layer_keeps_its_weight_whatever_the_start(residual):
    plain, x = torch.nn.Linear(7, 5), torch.randn(9, 7)
    start = nc.Start(gate_bias=2.0, residual_gate_bias=-3.0, spread=1.0, input_scale=5.0, signal_scale=2.0)
    coded = nc.Linear.from_plain(plain, small(residual=residual, start=start))
    torch.testing.assert_close(coded(x), plain(x), rtol=1e-4, atol=1e-4)
