"""Layers in the surroundings of torch: autocast, learned controls, copies of compiled layers, replicas, hooks."""

import copy
import pickle

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import neurocoder as nc
from conftest import small

KINDS = [
    small(),
    small(residual=False),
    nc.MixtureConfig(experts=3),
    nc.StoredProgramConfig(programs=3),
    nc.HyperConfig(hidden=4),
]


def coded(config, control_dim=None):
    torch.manual_seed(0)
    return nc.recode(nn.Sequential(nn.Linear(6, 3)), "0", config, control_dim=control_dim)


@pytest.mark.parametrize("config", KINDS, ids=lambda config: type(config).__name__)
def test_autocast_changes_neither_start_nor_recoding(config):
    expected = coded(config)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = coded(config)
    for (name, left), right in zip(expected.state_dict().items(), found.state_dict().values(), strict=True):
        assert torch.equal(left, right), name


@pytest.mark.parametrize("config", [small(), *KINDS[2:]], ids=lambda config: type(config).__name__)
def test_autocast_does_not_change_what_is_restored(config):
    model = nn.Sequential(nn.Linear(6, 3))
    weight = model[0].weight.detach().clone()
    nc.recode(model, "0", config)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        nc.restore(model)
    torch.testing.assert_close(model[0].weight, weight)


@pytest.mark.parametrize(
    ("width", "config", "scale", "moves"),
    [
        (256, nc.ProgramConfig(), 1, 0.005),
        (1024, nc.ProgramConfig(slots=5, steps=10, heads=10), 1, 0.08),
        (16, nc.ProgramConfig(slots=5, steps=10, heads=10), 1, 0.43),
        (256, nc.ProgramConfig(), 0.01, 0.04),
    ],
)
def test_how_far_recoding_in_bfloat16_moves_an_output(width, config, scale, moves):
    """The figures of the quickstart: the worst output, of those of the plain layer in float32."""
    torch.manual_seed(0)
    plain, x = nn.Linear(width, width, bias=False), torch.randn(64, width)
    with torch.no_grad():
        expected = plain(x).mul_(scale)
        plain.weight.mul_(scale)
        found = nc.Linear.from_plain(plain.bfloat16(), config)(x.bfloat16()).float()
    worst = ((found - expected).norm(dim=0) / expected.norm(dim=0)).max().item()
    assert worst == pytest.approx(moves, rel=0.5)


def test_a_learned_control_stays_out_of_the_layers():
    model, x = coded(small(), control_dim=4), torch.randn(5, 6)
    nn.init.normal_(model[0].controller.signal_weight)
    task = nn.Parameter(torch.randn(4))
    names = list(model.state_dict())
    with nc.control(model, task):
        assert list(model.state_dict()) == names
        assert all(p is not task for p in model.parameters())
        with nc.control(model, torch.randn(4)):
            model(x)
        model(x).sum().backward()
    assert task.grad is not None
    assert task.grad.abs().sum() > 0
    with nc.control(model, torch.randn(4)):
        model(x)
    assert model[0].ambient_control is None


def test_checkpointed_code_is_steered_where_its_backward_runs_in_the_block():
    model, x = coded(small(), control_dim=4), torch.randn(5, 6)
    nn.init.normal_(model[0].controller.signal_weight)
    gradients = []
    for run in (model, lambda x: checkpoint(model, x, use_reentrant=False)):
        model.zero_grad()
        with nc.control(model, torch.ones(5, 4)):
            run(x).square().sum().backward()
        gradients.append(model[0].memory.U.grad.clone())
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("config", KINDS, ids=lambda config: type(config).__name__)
def test_a_copy_of_a_compiled_layer_is_a_layer_of_its_own(config):
    layer, x = coded(config)[0].eval(), torch.randn(5, 6)
    layer.compile(backend="eager")
    expected = layer(x)
    twin = copy.deepcopy(layer)
    torch.testing.assert_close(twin(x), expected)
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.zero_()
    assert not twin(x).any()
    torch.testing.assert_close(pickle.loads(pickle.dumps(layer))(x), expected)


def replicated(module):
    """A replica as `nn.DataParallel` makes them: its parameters are tensors, and `parameters()` is empty."""
    replica = module._replicate_for_data_parallel()
    for name, child in module._modules.items():
        replica._modules[name] = None if child is None else replicated(child)
    for name, parameter in module._parameters.items():
        if parameter is None:
            replica._parameters[name] = None
        else:
            setattr(replica, name, parameter.clone())
    return replica


@pytest.mark.parametrize("config", KINDS, ids=lambda config: type(config).__name__)
def test_replicas_of_data_parallel(config):
    layer, x = coded(config)[0].eval(), torch.randn(5, 6)
    replica = replicated(layer)
    assert not list(replica.parameters())
    torch.testing.assert_close(replica(x), layer(x))
    assert replica.weight.dtype == torch.float32
    assert replica.weight.device == x.device
    torch.testing.assert_close(replica.auxiliary_loss(), layer.auxiliary_loss())


def test_one_control_for_all_images():
    layer = nc.Conv2d(2, 3, 3, program=small(), control_dim=4)
    nn.init.normal_(layer.controller.signal_weight)
    images, task = torch.randn(5, 2, 6, 6), torch.randn(4)
    torch.testing.assert_close(layer(images, task), layer(images, task.expand(5, 4)))
    torch.testing.assert_close(layer.materialize(images, task), layer.materialize(images, task.expand(5, 4)))
    with pytest.raises(ValueError, match="leading dimensions"):
        layer(images, torch.randn(3, 4))


def test_a_failing_hook_of_the_model_leaves_it_as_it_was(tmp_path):
    nc.save(coded(small()), tmp_path / "checkpoint")
    model = nn.Sequential(nn.Linear(6, 3))

    def fail(module, keys):
        raise KeyError("the user's own")

    model.register_load_state_dict_post_hook(fail)
    with pytest.raises(KeyError, match="user's own"):
        nc.load(tmp_path / "checkpoint", model)
    assert type(model[0]) is nn.Linear


def test_rates_may_be_numpy_numbers():
    groups = nc.parameter_groups(coded(small()), lr=np.float32(0.5), weight_decay=np.float64(0.25))
    assert {group["lr"] for group in groups} == {0.5}


@pytest.mark.parametrize(
    ("attempt", "message"),
    [
        (lambda: nc.recode(nn.Sequential(nn.Linear(2, 2), nn.ReLU()), nn.ReLU, small()), "recoded. 1: .*ReLU"),
        (lambda: nc.Linear.from_plain(nn.Conv2d(2, 2, 3), small()), "Linear: plain must have in_features.*Conv2d"),
        (lambda: nc.Conv2d.from_plain(nn.Linear(2, 2), small()), "Conv2d: plain must have in_channels.*Linear"),
        (lambda: nc.ProgramConfig(residual=np.array([1, 2])), "residual must be True, False or 'plain'"),
    ],
)
def test_errors_name_what_is_wrong(attempt, message):
    with pytest.raises(ValueError, match=message):
        attempt()
