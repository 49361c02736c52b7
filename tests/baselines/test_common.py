"""What people take for granted of a layer, for each of the baselines."""

import copy
import pickle

import pytest
import torch
from baseline_helpers import KINDS, assert_same, build, build_random, loss_gradients
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint

import neurocoder as nc
from conftest import small


def pytest_generate_tests(metafunc):
    """Run each test that asks for a kind with each of the baselines."""
    if "kind" in metafunc.fixturenames:
        metafunc.parametrize("kind", KINDS)


def seeded_forward(layer, *inputs):
    torch.manual_seed(1)
    return layer(*inputs)


def test_gradcheck_of_inputs_parameters_and_auxiliary_loss(kind):
    layer = build_random(kind, 3, 2, dtype=torch.float64)
    names, parameters = zip(*layer.named_parameters(), strict=True)

    def run(x, *values):
        torch.manual_seed(1)
        y = torch.func.functional_call(layer, dict(zip(names, values, strict=True)), (x,))
        return y, layer.auxiliary_loss()

    assert torch.autograd.gradcheck(run, (torch.randn(3, 3, dtype=torch.float64, requires_grad=True), *parameters))


def test_any_leading_dimensions(kind):
    layer, x = build_random(kind).eval(), torch.randn(2, 3, 5, 6)
    rows = torch.stack([layer(row) for row in x.reshape(-1, 6)])
    assert rows.shape == (30, 4)
    torch.testing.assert_close(layer(x), rows.reshape(2, 3, 5, 4))


@pytest.mark.parametrize("leading", [(0,), (2, 0)])
def test_empty_batch(kind, leading):
    layer = build_random(kind)
    y = layer(torch.randn(*leading, 6))
    assert y.shape == (*leading, 4)
    grads = loss_gradients(layer, y)
    assert all(grad.count_nonzero() == 0 for grad in grads.values())
    assert layer.auxiliary_loss() == 0


@pytest.mark.parametrize("leading", [(), (3,), (2, 3)])
def test_materialized_weight_is_what_is_executed(kind, leading):
    layer, x = build_random(kind, dtype=torch.float64).eval(), torch.randn(*leading, 6, dtype=torch.float64)
    weight = layer.materialize(x)
    assert weight.shape == (*leading, 6, 4)
    torch.testing.assert_close(layer(x), torch.einsum("...i,...io->...o", x, weight) + layer.bias)


class Largest(TorchDispatchMode):
    """The number of elements of the largest tensor that is made."""

    def __init__(self):
        super().__init__()
        self.numel = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        self.numel = max([self.numel, *(leaf.numel() for leaf in tree_leaves(out) if isinstance(leaf, torch.Tensor))])
        return out


def test_no_weight_is_built_for_an_input(kind):
    layer, x = build_random(kind, 32, 24), torch.randn(64, 32, requires_grad=True)
    with Largest() as largest:
        layer(x).sum().backward()
    assert 64 * 24 <= largest.numel < 64 * 32 * 24 / 4


def typical_error(y, exact):
    """The median over inputs: rounding may turn a mixture to another expert for one of them."""
    return ((y - exact).norm(dim=-1) / exact.norm(dim=-1)).median()


def test_bfloat16_autocast(kind):
    layer, plain, x = build_random(kind).eval(), nn.Linear(6, 4), torch.randn(50, 6)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y, expected_dtype = layer(x), plain(x).dtype
        layer.train()(x).float().sum().backward()
    assert y.dtype is expected_dtype is torch.bfloat16
    assert all(p.grad.dtype is torch.float32 and p.grad.isfinite().all() for p in layer.parameters())
    assert typical_error(y.float(), layer.eval()(x)) < 0.02


def test_bfloat16_layer(kind):
    layer = build_random(kind, dtype=torch.bfloat16).eval()
    x = torch.randn(50, 6, dtype=torch.bfloat16)
    y = layer(x)
    assert y.dtype is torch.bfloat16
    assert typical_error(y.double(), copy.deepcopy(layer).double()(x.double())) < 0.02
    layer.train()(x).float().sum().backward()
    assert all(p.dtype is torch.bfloat16 and p.grad.isfinite().all() for p in layer.parameters())


def test_meta_construction(kind):
    layer = build(kind, device="meta")
    assert layer(torch.randn(5, 6, device="meta")).is_meta
    with torch.device("meta"):
        assert all(p.is_meta for p in build(kind).parameters())


def test_same_start_from_the_same_seed_in_any_dtype(kind):
    def start(dtype):
        torch.manual_seed(3)
        return [p.double() for p in build(kind, dtype=dtype).parameters()]

    first = start(torch.float32)
    assert any(p.count_nonzero() for p in first)
    for dtype, tolerance in ((torch.float32, 0.0), (torch.float64, 1e-6), (torch.bfloat16, 0.02)):
        for p, q in zip(first, start(dtype), strict=True):
            torch.testing.assert_close(p, q, rtol=tolerance, atol=0.0)
    other_seed = list(build(kind).parameters())
    assert not torch.allclose(first[0].float(), other_seed[0])


def test_output_variance_at_the_start_is_a_plain_layers(kind):
    x = torch.randn(4000, 64)
    for config in {
        "mixture": [nc.MixtureConfig(e, k) for e, k in ((1, 1), (10, 1), (10, 2), (10, 10), (40, 20))],
        "stored program": [nc.StoredProgramConfig(n, k) for n, k in ((1, 1), (10, 1), (10, 5), (50, 5))],
        "hyper": [nc.HyperConfig(1), nc.HyperConfig(32)],
    }[kind]:
        layer = KINDS[kind][0](64, 64, True, config)
        for mode in (True, False):
            ratio = layer.train(mode)(x).var() / nn.Linear(64, 64)(x).var()
            assert 0.5 < ratio < 2, (config, mode, ratio)


@pytest.mark.slow
def test_compile_full_graph_without_recompilation(kind):
    layer, x = build_random(kind), torch.randn(5, 6)
    expected = seeded_forward(layer, x)
    expected_grads = loss_gradients(layer, expected)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    compiled(x)
    with torch.compiler.set_stance("fail_on_recompile"):
        y = seeded_forward(compiled, x)
    torch.testing.assert_close(y, expected)
    assert_same(loss_gradients(layer, y), expected_grads)


@pytest.mark.parametrize("training", [True, False])
def test_export_with_a_dynamic_batch(kind, training):
    layer, x = build_random(kind).train(training), torch.randn(5, 6)
    program = torch.export.export(layer, (x,), dynamic_shapes=({0: torch.export.Dim("batch", min=1)},))
    for size in (1, 5, 11):
        x = torch.randn(size, 6)
        torch.testing.assert_close(seeded_forward(program.module(), x), seeded_forward(layer, x))


def test_ensemble_by_vmap_equals_its_members(kind):
    members, x = [build_random(kind).eval() for _ in range(3)], torch.randn(5, 6)
    parameters, buffers = torch.func.stack_module_state(members)
    base = copy.deepcopy(members[0]).to("meta")

    def run(parameters, buffers):
        return torch.func.functional_call(base, (parameters, buffers), (x,))

    stacked = torch.func.vmap(run)(parameters, buffers)
    torch.testing.assert_close(stacked, torch.stack([member(x) for member in members]))


def test_functional_call_and_grad(kind):
    layer, x = build_random(kind), torch.randn(5, 6)
    expected = loss_gradients(layer, seeded_forward(layer, x))
    weight = torch.linspace(-1, 2, 20).reshape(5, 4)

    def loss(parameters):
        torch.manual_seed(1)
        return (weight * torch.func.functional_call(layer, parameters, (x,))).sum() + layer.auxiliary_loss()

    grads = torch.func.grad(loss)({name: p.detach() for name, p in layer.named_parameters()})
    assert_same(grads, expected)


def test_activation_checkpointing(kind):
    layer, x = build_random(kind), torch.randn(5, 6, requires_grad=True)
    expected = loss_gradients(layer, seeded_forward(layer, x), x)
    torch.manual_seed(1)
    y = checkpoint(layer, x, use_reentrant=False)
    assert_same(loss_gradients(layer, y, x), expected)


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda layer: pickle.loads(pickle.dumps(layer))])
def test_copies_after_a_forward_are_independent(kind, duplicate):
    layer, x = build_random(kind), torch.randn(5, 6)
    y = seeded_forward(layer, x)
    twin = duplicate(layer)
    assert torch.equal(seeded_forward(twin, x), y)
    assert_same(loss_gradients(twin, seeded_forward(twin, x)), loss_gradients(layer, y))
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.add_(1.0)
    assert torch.equal(seeded_forward(layer, x), y)


def test_state_dict_round_trip(kind):
    layer, other, x = build_random(kind), build_random(kind), torch.randn(5, 6)
    y = seeded_forward(layer, x)
    assert not torch.allclose(seeded_forward(other, x), y)
    assert layer.state_dict().keys() == dict(layer.named_parameters()).keys()
    other.load_state_dict(layer.state_dict())
    assert torch.equal(seeded_forward(other, x), y)


def test_control_of_a_sequence(kind):
    layer, x, z = build_random(kind, control_dim=2).eval(), torch.randn(3, 5, 6), torch.randn(3, 2)
    each = torch.stack([torch.stack([layer(step, z[b]) for step in x[b]]) for b in range(3)])
    torch.testing.assert_close(layer(x, z), each, rtol=1e-5, atol=1e-5)
    assert layer.materialize(x, z).shape == (3, 6, 4)
    weight = layer.materialize(x, z)
    torch.testing.assert_close(layer(x, z), x @ weight + layer.bias, rtol=1e-5, atol=1e-5)
    with nc.control(layer, z):
        torch.testing.assert_close(layer(x), layer(x, z))
    assert not torch.allclose(layer(x, z), layer(x, z.flip(0)))


def test_every_parameter_gets_a_gradient(kind):
    layer = build(kind)
    (layer(torch.randn(5, 6)).square().mean() + nc.auxiliary_loss(layer)).backward()
    assert [name for name, p in layer.named_parameters() if p.grad is None] == []


def trained_model(low_rank):
    """A model that ends in a layer without bias; one of low rank nearly nulls most inputs, so little may move."""
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 8, bias=False))
    if low_rank:
        with torch.no_grad():
            model[2].weight.copy_(torch.randn(8, 2) @ torch.randn(2, 16) + 1e-3 * torch.randn(8, 16))
    return model


def greatest_move(after, before):
    return ((after - before).float().norm(dim=-1) / before.float().norm(dim=-1)).max()


def test_recoding_keeps_the_outputs(kind):
    model, x = trained_model(low_rank=True), torch.randn(500, 6)
    before = model(x)
    nc.recode(model, "2", KINDS[kind][1])
    assert isinstance(model[2], KINDS[kind][0])
    after = model.train()(x)
    assert greatest_move(after, before) < 0.05
    torch.testing.assert_close(after, before, rtol=0.04, atol=1e-5)  # each number of it, whichever experts answer
    torch.testing.assert_close(model.eval()(x), before, rtol=1e-4, atol=1e-4)


def test_recoding_keeps_the_outputs_in_bfloat16(kind):
    model, x = trained_model(low_rank=False).bfloat16(), torch.randn(100, 6).bfloat16()
    before = model(x)
    nc.recode(model, "2", KINDS[kind][1])
    assert greatest_move(model.train()(x), before) < 0.05
    assert greatest_move(model.eval()(x), before) < 0.05


def test_a_recoded_layer_is_not_dormant(kind):
    model, x = trained_model(low_rank=True), torch.randn(500, 6)
    nc.recode(model, "2", KINDS[kind][1])
    optimizer = torch.optim.Adam(model[2].parameters(), 1e-2)
    for _ in range(20):
        optimizer.zero_grad()
        (model(x) - x[:, :1].sign()).square().mean().backward()
        optimizer.step()
    weights = model.eval()[2].materialize(model[:2](x))
    assert weights.std(0).mean() > 1e-3  # the weight has come to depend on the input


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.bfloat16, 0.02)])
def test_restoring_gives_back_the_old_weight(kind, dtype, tolerance):
    model = nn.Sequential(nn.Linear(6, 4)).to(dtype)
    old = copy.deepcopy(model[0])
    nc.restore(nc.recode(model, "0", KINDS[kind][1]))
    assert type(model[0]) is nn.Linear
    torch.testing.assert_close(model[0].weight, old.weight, rtol=tolerance, atol=1e-7)
    assert torch.equal(model[0].bias, old.bias)


def test_restoring_a_trained_layer_takes_the_mean_weight(kind):
    model, x = nn.Sequential(build_random(kind)), torch.randn(50, 6)
    expected = model[0].materialize(x).mean(0).mT
    with pytest.raises(ValueError, match="data must be given"):
        nc.restore(model)
    nc.restore(model, data=x)
    torch.testing.assert_close(model[0].weight, expected)


def test_a_frozen_weight_stays_frozen(kind):
    model = nn.Sequential(nn.Linear(6, 4)).requires_grad_(False)
    nc.recode(model, "0", KINDS[kind][1])
    frozen = {name for name, p in model[0].named_parameters() if not p.requires_grad}
    assert frozen == {"bias", "base" if kind == "hyper" else "bank"}
    assert not nc.restore(model)[0].weight.requires_grad


CONFIGS = [*(config for _, config in KINDS.values()), small(), small(steps=1, residual="plain")]


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: type(config).__name__)
def test_what_acts_on_the_linear_layers_of_a_model_leaves_the_maps_inside_a_layer_alone(config):
    """As adapters, quantisers and a model's own start do; a program layer is among the cases."""
    model, x = nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 4)).eval(), torch.randn(9, 5)
    nc.recode(model, "1", config)
    assert not any(isinstance(module, nn.Linear) for module in model[1].modules())
    first, y = model[0].weight.clone(), model[1](x)
    model.apply(lambda module: nn.init.normal_(module.weight) if isinstance(module, nn.Linear) else None)
    assert not torch.equal(model[0].weight, first)
    assert torch.equal(model[1](x), y)


def test_every_parameter_belongs_to_a_part(kind):
    layer = build(kind, control_dim=3)
    counts = nc.count_parameters(layer)
    assert counts["total"] == sum(p.numel() for p in layer.parameters())
    assert counts["controller"] > 0
    assert counts["residual"] == 0
    assert counts["main"] == (4 + 24 if kind == "hyper" else 4)


def test_repr_names_the_configuration(kind):
    expected = {
        "mixture": "experts=5, active=2, balance=0.01",
        "stored program": "programs=4, key_dim=3",
        "hyper": "hidden=5",
    }[kind]
    assert repr(build(kind)).startswith(f"{KINDS[kind][0].__name__}(")
    assert f"in_features=6, out_features=4, bias=True, {expected}" in repr(build(kind))
    assert f"bias=False, {expected}, control_dim=3" in repr(build(kind, bias=False, control_dim=3))


def test_wrong_input_is_named(kind):
    layer_type = KINDS[kind][0]
    for arguments, message in (
        ((0, 4), "in_features must be a whole number >= 1, got 0"),
        ((6, 2.5), "out_features must be a whole number >= 1, got 2.5"),
        ((6, 4, True, nc.ProgramConfig()), f"must be a {layer_type.config_type.__name__}, got ProgramConfig"),
    ):
        with pytest.raises(ValueError, match=message):
            layer_type(*arguments)
    with pytest.raises(ValueError, match="control_dim must be"):
        layer_type(6, 4, control_dim=0)
    with pytest.raises(ValueError, match=r"x must have shape \(..., 6\), got \(2, 5\)"):
        build(kind)(torch.randn(2, 5))
    with pytest.raises(ValueError, match="floating-point"):
        build(kind)(torch.ones(2, 6, dtype=torch.long))
    with pytest.raises(ValueError, match="control must be given"):
        build(kind, control_dim=2)(torch.randn(2, 6))
