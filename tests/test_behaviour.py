"""What people take for granted of a PyTorch layer."""

import copy
import json
import pickle
import subprocess
import sys
import textwrap

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import neurocoder as nc
from conftest import randomised, small

LAYERS = {
    "linear": lambda **options: nc.Linear(7, 3, program=small(), **options),
    "linear, one step": lambda **options: nc.Linear(7, 3, program=small(steps=1), **options),
    "linear, no residual": lambda **options: nc.Linear(7, 3, program=small(residual=False), **options),
    "conv1d": lambda **options: nc.Conv1d(2, 3, 3, padding=1, program=small(), **options),
    "conv2d": lambda **options: nc.Conv2d(2, 3, 3, stride=2, program=small(residual="plain"), **options),
    "linear, core": lambda **options: nc.CoreLinear(7, 17, core=nc.CoreConfig(slots=4), **options),
    "linear, diagonal": lambda **options: nc.CoreLinear(7, 3, core=nc.CoreConfig(slots=4, diagonal=True), **options),
    "conv1d, core": lambda **options: nc.CoreConv1d(2, 3, 3, core=nc.CoreConfig(slots=4), **options),
    "conv2d, core": lambda **options: nc.CoreConv2d(2, 17, 3, core=nc.CoreConfig(slots=4), **options),
}
INPUTS = {"linear": (7,), "conv1d": (2, 9), "conv2d": (2, 8, 8)}


@pytest.fixture(params=LAYERS)
def build(request):
    """A function that builds a randomised layer, and one that makes a batch for it."""
    shape = INPUTS[request.param.split(",")[0]]

    def layer(**options):
        return randomised(LAYERS[request.param](**options))

    layer.batch = lambda size=5, **options: torch.randn(size, *shape, **options)
    return layer


def gradients(layer, x):
    layer.zero_grad()
    layer(x).square().sum().backward()
    return {name: parameter.grad.clone() for name, parameter in layer.named_parameters()}


def assert_same_gradients(actual, expected):
    """Within float32's rounding of sums that different paths order differently."""
    assert actual.keys() == expected.keys()
    for name, grad in actual.items():
        scale = float(expected[name].abs().max())
        torch.testing.assert_close(
            grad, expected[name], rtol=1e-3, atol=1e-4 * scale, msg=lambda m, n=name: f"{n}: {m}"
        )


@pytest.mark.slow
def test_compile_full_graph(build):
    layer, x = build(), build.batch()
    expected = gradients(layer, x)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), layer(x))
    assert_same_gradients(gradients(compiled._orig_mod, x), expected)
    layer.zero_grad()
    compiled(x).square().sum().backward()
    assert_same_gradients({name: p.grad for name, p in layer.named_parameters()}, expected)


@torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True)
@pytest.mark.slow
def test_compile_with_a_batch_whose_size_depends_on_values():
    layer, x = randomised(nc.Linear(7, 3, program=small())), torch.randn(9, 7)

    def chosen(x):
        return layer(x[x[:, 0] > 0])

    found = torch.compile(chosen, fullgraph=True, backend="aot_eager")(x)
    torch.testing.assert_close(found, chosen(x))


@pytest.mark.slow
@pytest.mark.parametrize("rows", [5, pytest.param(1, marks=pytest.mark.long)])
def test_compile_with_inductor(rows):
    layer, x = randomised(nc.Linear(7, 3, program=small())), torch.randn(rows, 7)
    compiled = torch.compile(layer, fullgraph=True)
    torch.testing.assert_close(compiled(x), layer(x))
    expected = gradients(layer, x)
    layer.zero_grad()
    compiled(x).square().sum().backward()
    assert_same_gradients({n: p.grad for n, p in layer.named_parameters()}, expected)


@pytest.mark.parametrize("strict", [False, pytest.param(True, marks=pytest.mark.long)])
def test_export_with_a_dynamic_batch(build, strict):
    layer, x = build().eval(), build.batch()
    batch = torch.export.Dim("batch", min=1)
    program = torch.export.export(layer, (x,), dynamic_shapes=({0: batch},), strict=strict)
    for size in (1, 5, 11):
        other = build.batch(size)
        torch.testing.assert_close(program.module()(other), layer(other))


def test_bfloat16_autocast(build):
    layer, x = build(), build.batch()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = layer(x)
        y.float().square().sum().backward()
    assert y.dtype is torch.bfloat16
    assert all(p.grad.dtype is torch.float32 and p.grad.isfinite().all() for p in layer.parameters())
    error = (y.float() - layer(x)).norm() / layer(x).norm()
    assert error < 0.05


def test_bfloat16_layer(build):
    layer = build(dtype=torch.bfloat16)
    exact = copy.deepcopy(layer).double()
    x = build.batch(dtype=torch.bfloat16)
    y = layer(x)
    y.float().square().sum().backward()
    assert y.dtype is torch.bfloat16
    assert all(p.dtype is torch.bfloat16 and p.grad.isfinite().all() for p in layer.parameters())
    assert (y.double() - exact(x.double())).norm() / exact(x.double()).norm() < 0.1


def test_meta_device(build):
    layer = build(device="meta")
    assert layer(build.batch(device="meta")).is_meta


def test_functional_call_and_grad(build):
    layer, x = build(), build.batch()
    expected = gradients(layer, x)
    parameters = {name: p.detach() for name, p in layer.named_parameters()}

    def loss(parameters):
        return torch.func.functional_call(layer, parameters, (x,)).square().sum()

    assert_same_gradients(torch.func.grad(loss)(parameters), expected)


def test_ensemble_by_vmap_equals_its_members(build):
    members, x = [build() for _ in range(3)], build.batch()
    parameters, buffers = torch.func.stack_module_state(members)
    base = copy.deepcopy(members[0]).to("meta")

    def run(parameters, buffers):
        return torch.func.functional_call(base, (parameters, buffers), (x,))

    stacked = torch.func.vmap(run)(parameters, buffers)
    torch.testing.assert_close(stacked, torch.stack([member(x) for member in members]))
    per_sample = torch.func.vmap(lambda row: members[0](row))(x)
    torch.testing.assert_close(per_sample, members[0](x))


def test_activation_checkpointing(build):
    layer, x = build(), build.batch(requires_grad=True)
    expected = gradients(layer, x)
    layer.zero_grad()
    checkpoint(layer, x, use_reentrant=False).square().sum().backward()
    assert_same_gradients({name: p.grad for name, p in layer.named_parameters()}, expected)


def test_deepcopy_after_a_forward_is_independent(build):
    layer, x = build(), build.batch()
    y = layer(x)
    twin = copy.deepcopy(layer)
    assert torch.equal(twin(x), y)
    with torch.no_grad():
        twin.memory.U.add_(1.0)
    assert torch.equal(layer(x), y)


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, lambda layer: pickle.loads(pickle.dumps(layer))])
def test_copies_neither_record_nor_are_steered(build, duplicate):
    layer, x = build(control_dim=2), build.batch()
    z = torch.randn(5, 2, requires_grad=True) * 2  # part of a graph, as a controller's output is
    with nc.control(layer, z), nc.record(layer) as trace:
        y = layer(x)
        twin = duplicate(layer)
        with pytest.raises(ValueError, match="control must be given"):
            twin(x)
        torch.testing.assert_close(twin(x, z), y, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(layer(x), y)  # the layer itself still is
    assert twin.recorded is None
    assert len(trace.calls("")) == 2


def test_state_dict_round_trip(build):
    layer, other, x = build(), build(), build.batch()
    assert not torch.allclose(layer(x), other(x))
    other.load_state_dict(layer.state_dict())
    assert torch.equal(layer(x), other(x))


def test_empty_batch(build):
    layer = build()
    y = layer(build.batch(0))
    assert y.shape == (0, *layer(build.batch(1)).shape[1:])
    y.sum().backward()


def test_shared_layer_adds_up_its_gradients():
    layer = randomised(nc.Linear(7, 7, program=small()), 0.3)
    model = nn.Sequential(layer, nn.Tanh(), layer)
    x = torch.randn(5, 7)
    first, second = copy.deepcopy(layer), copy.deepcopy(layer)
    nn.Sequential(first, nn.Tanh(), second)(x).sum().backward()
    model(x).sum().backward()
    for (name, p), a, b in zip(layer.named_parameters(), first.parameters(), second.parameters(), strict=True):
        torch.testing.assert_close(p.grad, a.grad + b.grad, msg=lambda m, n=name: f"{n}: {m}")


NUMPY_CONFIGS = [
    nc.ProgramConfig(
        slots=np.int64(6), key_dim=np.int32(2), heads=np.uint8(1), least_used=np.int16(3), sharpness=np.float32(0.5)
    ),
    nc.MixtureConfig(experts=np.int64(4), active=np.int64(2), balance=np.float64(0.5)),
    nc.StoredProgramConfig(programs=np.int64(4), key_dim=np.int64(2)),
    nc.HyperConfig(hidden=np.int64(4)),
    nc.CoreConfig(slots=np.int64(4), programs=np.int32(2)),
    nc.ProgramConfig(start=nc.Start(gate_bias=np.float32(0.5), variance=np.int64(2))),
]


@pytest.mark.parametrize("config", NUMPY_CONFIGS, ids=lambda config: config.owner)
def test_numpy_numbers_in_a_configuration_become_pythons(config):
    fields = json.loads(json.dumps(config.to_dict()))
    assert type(config).from_dict(fields) == config
    values = [*vars(config).values()]
    values += [value for nested in values if isinstance(nested, nc.Config) for value in vars(nested).values()]
    assert {type(value) for value in values if not isinstance(value, nc.Config)} <= {int, float, bool}


def test_the_default_of_least_used_follows_the_slots():
    assert [nc.ProgramConfig(slots=slots).least_used for slots in (1, 4, 5, 30)] == [1, 4, 5, 5]
    config = nc.ProgramConfig(slots=4)
    assert nc.ProgramConfig.from_dict(config.to_dict()) == config == nc.ProgramConfig(slots=4, least_used=4)
    assert nc.Linear(6, 3, program=config)(torch.randn(2, 6)).shape == (2, 3)


def test_numpy_sizes_of_a_layer_become_pythons():
    four, two = np.int64(4), np.int32(2)
    for layer in (
        nc.Linear(four, two, program=small(), control_dim=two),
        nc.HyperLinear(four, two, control_dim=two),
        nc.Conv2d(four, two, (two, 3), np.int64(1), [two, 0], groups=np.int64(1), program=small(), control_dim=two),
    ):
        geometry = {name: value for name, value in vars(layer).items() if not name.startswith("_")}
        sizes = [size for value in geometry.values() for size in (value if isinstance(value, tuple) else (value,))]
        assert not any(isinstance(size, np.generic) for size in sizes), geometry
        assert layer.control_dim == 2
        assert layer(torch.randn(5, 4, *[8, 8] * isinstance(layer, nc.Conv2d)), torch.randn(5, 2)).shape[1] == 2


def test_parameters_of_no_named_part_belong_to_the_main_part():
    class Terse(nc.HyperLinear):
        parts = {"hidden_weight": "controller", "hidden_bias": "controller"}

    layer = Terse(6, 4)
    counts = nc.count_parameters(layer)
    assert counts["controller"] == layer.hidden_weight.numel() + layer.hidden_bias.numel()
    assert counts["main"] == counts["total"] - counts["controller"]
    nc.parameter_groups(layer, lr=0.1)


def test_pickle_free_repr_and_weight_stand_in():
    layer = nc.Linear(7, 3, program=small())
    assert "P=6, K=2, J=3, H=2, l_I=3" in repr(layer)
    assert layer.weight.dtype is torch.float32
    assert layer.weight.shape == (3, 7)
    with pytest.raises(TypeError, match="composed for each input"):
        torch.nn.functional.linear(torch.randn(2, 7), layer.weight)


MEMORY = """
    import torch, neurocoder as nc

    def peak():  # of this program alone: getrusage's maximum starts at that of the parent process
        line = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
        return int(line.split()[1]) / 2**20

    layer = nc.Linear(1024, 1024, program=nc.ProgramConfig(slots=50, key_dim=5, steps=1, heads=10, hidden=32))
    x = torch.randn(4096, 1024)
    layer(x[:8]).sum().backward()  # libraries are loaded and gradients exist
    before = peak()
    layer(x).square().mean().backward()
    print(peak() - before)
"""


@pytest.mark.slow
def test_memory_of_a_large_batch_stays_under_one_gib():
    result = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(MEMORY)], capture_output=True, text=True, timeout=180
    )
    assert result.returncode == 0, result.stderr[-2000:]
    assert 0.05 < float(result.stdout) < 1.0  # the output and its gradient alone take 0.03; W_t would take 16


def replica_of(module):
    """A copy whose parameters are plain attributes, as nn.DataParallel makes one for each GPU."""
    other = module._replicate_for_data_parallel()
    for name, parameter in module._parameters.items():
        setattr(other, name, None if parameter is None else parameter * 1)
    for name, child in module.named_children():
        other._modules[name] = replica_of(child)
    return other


def test_replicas_of_data_parallel_answer_and_learn_alike():
    layer, x = randomised(nc.Linear(7, 3, program=small())), torch.randn(5, 7)
    expected = gradients(layer, x)
    layer.zero_grad()
    y = replica_of(layer)(x)
    assert torch.equal(y, layer(x))
    y.square().sum().backward()
    assert_same_gradients({name: parameter.grad for name, parameter in layer.named_parameters()}, expected)
