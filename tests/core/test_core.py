"""Core layers against their literal equations: values, weights and every gradient, in float64."""

import copy

import pytest
import torch
from core_helpers import CONTROL, OPTIONS, OWN, build, literal, literal_outputs, randomised, reads
from torch import nn
from torch.nn.functional import linear

import neurocoder as nc
from neurocoder.core import functional as F

KINDS = pytest.mark.parametrize("kind", ["linear", "conv1d", "conv2d"])


def assert_literal(layer, x, given, rows):
    """Outputs and the gradients of inputs, controls and every parameter, by name."""
    named = {name: parameter for name, parameter in layer.named_parameters() if parameter.requires_grad}
    leaves = {**named, **{f"input {i}": leaf for i, leaf in enumerate([x, *given.values()]) if leaf.requires_grad}}
    found, expected = layer(x, **given), literal_outputs(layer, x, rows)
    torch.testing.assert_close(found, expected)
    direction = torch.randn_like(expected)
    actual = torch.autograd.grad(found, leaves.values(), direction)
    for name, grad, target in zip(
        leaves, actual, torch.autograd.grad(expected, leaves.values(), direction), strict=True
    ):
        assert target.abs().max() > 1e-6, name
        torch.testing.assert_close(grad, target, msg=lambda m, n=name: f"{n}: {m}")


@KINDS
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("options", OPTIONS)
def test_a_steered_layer_is_the_literal_one(kind, bias, options):
    layer, shape = build(kind, bias=bias, **OPTIONS[options])
    randomised(layer)
    x = torch.randn(6, *shape, dtype=torch.float64, requires_grad=True)
    z = torch.randn(6, CONTROL, dtype=torch.float64, requires_grad=True)
    assert_literal(layer, x, {"control": z}, z)


@KINDS
@pytest.mark.parametrize("d_out", [5, 17])  # without and with a gate
@pytest.mark.parametrize("options", OWN)
def test_a_layer_that_reads_its_own_input_is_the_literal_one(kind, d_out, options):
    layer, shape = build(kind, steered=False, d_out=d_out, **OWN[options])
    randomised(layer)
    assert (layer.reader.gate is not None) == (d_out >= 16)
    x = torch.randn(6, *shape, dtype=torch.float64, requires_grad=True)
    assert_literal(layer, x, {}, reads(layer, x))


@KINDS
@pytest.mark.parametrize("steered", [True, False])
@pytest.mark.parametrize("options", OPTIONS)
def test_weights_and_programs_are_the_literal_ones(kind, steered, options):
    if not steered and options not in OWN:
        return
    layer, shape = build(kind, steered, d_out=17, **OPTIONS[options])
    randomised(layer)
    x, z = torch.randn(6, *shape, dtype=torch.float64), torch.randn(6, CONTROL, dtype=torch.float64)
    given, rows = ({"control": z}, z) if steered else ({}, reads(layer, x))
    expected = torch.stack([literal(layer, row)[0] for row in rows])
    found = layer.materialize(x, **given)
    torch.testing.assert_close(found.mT if kind == "linear" else found.flatten(2), expected)
    programs, memory = layer.programs(x, **given), layer.memory
    gR = 0 if layer.R is None else layer.R.flatten(1) * (1 if programs.gate is None else programs.gate.unsqueeze(-1))
    U, V = memory.U, memory.V
    if not steered:
        U, V = F.unit_rows(U), F.bounded_slots(V, layer.R, layer.d_in)
    core = torch.diag_embed(programs.core) if layer.config.diagonal else programs.core
    torch.testing.assert_close(V.mT @ core @ U + gR, expected)
    torch.testing.assert_close(memory.C_0 + torch.tensordot(programs.blend, memory.cores, 1), programs.core)
    torch.testing.assert_close(programs.sigma, torch.linalg.svdvals(V.mT @ core @ U)[:, : len(U)])


def test_the_mean_weight_and_offset():
    layer, _ = build("linear", shift=True)
    randomised(layer)
    x, z = torch.randn(6, 7, dtype=torch.float64), torch.randn(6, CONTROL, dtype=torch.float64)
    pairs = [literal(layer, row) for row in z]
    torch.testing.assert_close(layer.mean_weight(x, z)[0], torch.stack([W for W, _ in pairs]).mean(0).detach())
    torch.testing.assert_close(layer.mean_offset(x, z), torch.stack([offset for _, offset in pairs]).mean(0).detach())


@pytest.mark.parametrize("options", OPTIONS)
def test_one_control_for_many_inputs_is_that_control_repeated(options):
    layer, _ = build("linear", **OPTIONS[options])
    randomised(layer)
    x, z = torch.randn(4, 6, 7, dtype=torch.float64), torch.randn(4, CONTROL, dtype=torch.float64)
    expected = layer(x, control=z.unsqueeze(1).expand(4, 6, CONTROL))
    torch.testing.assert_close(layer(x, control=z), expected)
    torch.testing.assert_close(layer(x, control=z[0])[0], expected[0])
    found = torch.autograd.grad(layer(x, control=z).sin().sum(), [*layer.parameters()])  # W_t is built
    torch.testing.assert_close(found, torch.autograd.grad(expected.sin().sum(), [*layer.parameters()]))
    for kind in ("conv1d", "conv2d"):
        layer, shape = build(kind, **OPTIONS[options])
        randomised(layer)
        x = torch.randn(4, *shape, dtype=torch.float64)
        torch.testing.assert_close(layer(x, control=z[0]), layer(x, control=z[0].expand(4, CONTROL)))
        torch.testing.assert_close(layer(x[0], control=z[0]), layer(x, control=z[0])[0])


@pytest.mark.parametrize("kind", ["linear", "conv2d"])
@pytest.mark.parametrize("steered", [True, False])
def test_gradients_twice(kind, steered):
    layer, shape = build(kind, steered, d_out=16 if kind == "linear" else 5)
    randomised(layer)
    x = torch.randn(2, *shape, dtype=torch.float64, requires_grad=True)
    z = (torch.randn(2, CONTROL, dtype=torch.float64, requires_grad=True),) if steered else ()
    assert torch.autograd.gradcheck(layer, (x, *z))
    assert torch.autograd.gradgradcheck(layer, (x, *z), atol=1e-4)


def test_the_backward_by_hand_serves_what_it_can_and_is_the_one_of_autograd():
    """Elsewhere autograd does: with hooks on the reader, or under `nc.backend("torch")`."""
    layer = randomised(build("linear", steered=False, d_out=17)[0])
    calls, x = [], torch.randn(6, 7, dtype=torch.float64, requires_grad=True)
    leaves = [x, *layer.parameters()]

    def names(y):
        seen, todo = set(), [y.grad_fn]
        while todo:
            node = todo.pop()
            seen.add(node.name())
            todo += [following for following, _ in node.next_functions if following is not None]
        return seen

    assert "BoundedProgramsBackward" in names(layer(x))
    found = torch.autograd.grad(layer(x).square().sum(), leaves)
    layer.reader.register_forward_hook(lambda *_: calls.append(1))
    assert "BoundedProgramsBackward" not in names(layer(x))
    assert calls
    torch.testing.assert_close(found, torch.autograd.grad(layer(x).square().sum(), leaves))
    other = build("linear", steered=False, d_out=17)[0]
    with nc.backend("torch"):
        assert "BoundedProgramsBackward" not in names(other(x))


# How a layer starts.


@KINDS
@pytest.mark.parametrize("residual", [True, "frozen"])
@pytest.mark.parametrize("steered", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_recode_is_exact_whatever_the_control(kind, residual, steered, dtype):
    plain = {"linear": nn.Linear(9, 17), "conv1d": nn.Conv1d(3, 17, 3), "conv2d": nn.Conv2d(3, 17, 3)}[kind].to(dtype)
    x = torch.randn(6, *{"linear": (9,), "conv1d": (3, 8), "conv2d": (3, 8, 8)}[kind]).to(dtype)
    config = nc.CoreConfig(slots=4, residual=residual, shift=steered)
    model = nc.recode(nn.Sequential(copy.deepcopy(plain)), "0", config, control_dim=2 if steered else None)
    given = {"control": 100 * torch.randn(6, 2).to(dtype)} if steered else {}
    rounding = {"rtol": 0, "atol": 0} if dtype is torch.float32 else {"rtol": 0.016, "atol": 0.016}
    torch.testing.assert_close(model[0](x, **given), plain(x), **rounding)
    assert torch.equal(model[0].R, plain.weight)
    is_frozen = residual == "frozen"
    assert (model[0].R.requires_grad, model[0].bias.requires_grad) == (not is_frozen, not is_frozen)
    restored = nc.restore(model)[0]
    assert torch.equal(restored.weight, plain.weight)
    assert torch.equal(restored.bias, plain.bias)


@pytest.mark.parametrize("slots", [1, 5, 12, 60])
@pytest.mark.parametrize(("d_in", "d_out"), [(40, 40), (784, 10), (8, 64)])
@pytest.mark.parametrize("diagonal", [False, True])
def test_without_a_residual_the_first_outputs_vary_as_a_plain_layers(slots, d_in, d_out, diagonal):
    config = nc.CoreConfig(slots=slots, diagonal=diagonal, residual=False)
    for scale in (0.0, 1.0):
        found = []
        for _ in range(5):
            layer = nc.CoreLinear(d_in, d_out, bias=False, core=config, control_dim=6)
            found.append(layer(torch.randn(512, d_in), control=scale * torch.randn(512, 6)).var())
        assert 1 / 2 < torch.stack(found).mean() / (1 / 3) < 2


def test_starting_values_of_both_forms():
    steered = nc.CoreLinear(200, 100, control_dim=24).memory
    assert steered.U.shape == (16, 200)
    assert steered.cores.shape == (24, 16, 16)
    torch.testing.assert_close(steered.U @ steered.U.mT, torch.eye(16))
    assert torch.equal(steered.C_0, torch.eye(16))
    assert "C_0" in dict(steered.named_parameters())
    assert not steered.V.any()
    torch.testing.assert_close(steered.cores.std(), torch.tensor((24 * 16) ** -0.5), rtol=0.05, atol=0)
    layer = nc.CoreLinear(200, 100)
    own = layer.memory
    assert own.U.shape == (16, 200)
    assert own.cores.shape == (8, 16, 16)
    torch.testing.assert_close(own.U.std(), torch.tensor(1.0), rtol=0.05, atol=0)
    torch.testing.assert_close(own.cores.std(), torch.tensor(0.3 / 4), rtol=0.1, atol=0)
    assert "C_0" in dict(own.named_buffers())
    assert not own.V.any()
    for parameter in (layer.reader.weight, layer.reader.bias):
        assert 0.2 < parameter.abs().max() <= 0.25
    assert not layer.reader.gate.any()


@pytest.mark.parametrize(
    ("d_in", "d_out", "sizes"),
    [(784, 64, (14, 8)), (784, 10, (2, 2)), (1024, 1024, (16, 8)), (64, 10, (2, 2)), (20, 20, (2, 2)), (7, 5, (0, 0))],
)
def test_the_size_rule_of_layers_without_a_control(d_in, d_out, sizes):
    """floor(d_in d_out / (4 (d_in + d_out))): 784 x 64 gives 14.8, 7 x 5 gives 0.7."""
    assert nc.CoreConfig().sizes(d_in, d_out, None) == sizes
    assert nc.CoreConfig(slots=3).sizes(d_in, d_out, None) == (3, 3)
    assert nc.CoreConfig(slots=20, programs=5).sizes(d_in, d_out, None) == (20, 5)
    assert nc.CoreConfig().sizes(d_in, d_out, 5) == (16, 5)


def test_the_bounds_hold_however_large_the_parameters_are():
    layer = randomised(build("linear", steered=False, d_out=17)[0], 1e3)
    x = 1e3 * torch.randn(50, 7, dtype=torch.float64)
    programs, memory = layer.programs(x), layer.memory
    assert ((programs.gate - 1).abs() <= 0.5).all()
    a = linear(x, F.unit_rows(memory.U))
    d = torch.einsum("npq,nq->np", programs.core - memory.C_0, a)
    assert (d.norm(dim=1) <= a.norm(dim=1) * (1 + 1e-9)).all()
    assert F.bounded_slots(memory.V, layer.R, 7).norm() <= 0.5 * layer.R.norm()
    assert (d.norm(dim=1) > 0.5 * a.norm(dim=1)).any()  # the bound is reached, so it is tested


def test_zero_inputs_and_zero_controls_give_finite_gradients():
    for steered in (True, False):
        for kind in ("linear", "conv2d"):
            layer, shape = build(kind, steered, d_out=17, dtype=torch.float32, normalise=steered)
            x = torch.zeros(3, *shape, requires_grad=True)
            given = {"control": torch.zeros(3, CONTROL, requires_grad=True)} if steered else {}
            randomised(layer)(x, **given).square().sum().backward()
            leaves = [x, *given.values(), *layer.parameters()]
            assert all(leaf.grad is None or leaf.grad.isfinite().all() for leaf in leaves)


# Layers that are too small for programs.


def test_a_layer_too_small_for_programs_is_plain():
    plain = nn.Linear(7, 5)
    model = nc.recode(nn.Sequential(copy.deepcopy(plain)), "*", nc.CoreConfig())
    x = torch.randn(6, 7)
    assert model[0].memory is None
    assert torch.equal(model[0](x), plain(x))
    assert model[0].materialize(x).shape == (6, 7, 5)
    assert model[0].programs(x).core.shape == (6, 0)
    with pytest.raises(ValueError, match="model must have a program layer to record, found none"):
        nc.record(model).__enter__()
    torch.testing.assert_close(nc.restore(model)[0].weight, plain.weight)


def test_a_small_layer_keeps_its_gate():
    for layer, x in ((nc.CoreLinear(2, 20), torch.randn(6, 2)), (nc.CoreConv2d(1, 20, 1), torch.randn(6, 1, 4, 4))):
        randomised(layer)
        assert layer.memory is None
        weight = torch.stack([reference_gate(layer, row) * layer.R for row in reads(layer, x)])
        expected = torch.stack(list(map(plain_output(layer), x, weight)))
        torch.testing.assert_close(layer(x), expected)
        assert nc.recode(nn.Sequential(layer.to_plain()), "0", nc.CoreConfig())(x).shape == expected.shape


def reference_gate(layer, row):
    return 1 + 0.5 * torch.tanh(0.5 * (layer.reader.gate @ row) / row.norm())


def plain_output(layer):
    plain = layer.to_plain()
    return lambda x, weight: torch.func.functional_call(plain, {"weight": weight, "bias": layer.bias}, (x,))


# Errors.


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"slots": 0}, r"core\.slots must be a whole number >= 1, got 0"),
        ({"programs": 2.5}, r"core\.programs must be a whole number >= 1, got 2\.5"),
        ({"diagonal": 1}, r"core\.diagonal must be True or False, got 1"),
        ({"shift": "yes"}, r"core\.shift must be True or False, got 'yes'"),
        ({"normalise": None}, r"core\.normalise must be True or False, got None"),
        ({"residual": "plain"}, r"core\.residual must be True, False or 'frozen', got 'plain'"),
        ({"residual": 1.0}, r"core\.residual must be True, False or 'frozen', got 1\.0"),
    ],
)
def test_wrong_configurations(fields, message):
    with pytest.raises(ValueError, match=message):
        nc.CoreConfig(**fields)


@pytest.mark.parametrize("fields", [{"residual": False}, {"shift": True}, {"normalise": True}])
@pytest.mark.parametrize("build", [nc.CoreLinear, lambda *sizes, **options: nc.CoreConv1d(*sizes, 3, **options)])
def test_what_needs_a_control_says_so_before_anything_changes(fields, build):
    ((name, value),) = fields.items()
    config = nc.CoreConfig(**fields)
    with pytest.raises(ValueError, match=rf"control_dim must be given with core\.{name}={value}, got None"):
        build(8, 4, core=config)
    model = nn.Sequential(nn.Linear(8, 4))
    with pytest.raises(ValueError, match="control_dim must be given"):
        nc.recode(model, "0", config)
    assert type(model[0]) is nn.Linear
    nc.recode(model, "0", config, control_dim=2)


def test_counts_groups_and_repr():
    layer = nc.CoreLinear(40, 20, core=nc.CoreConfig(slots=3, programs=2), control_dim=4)
    memory = 3 * 40 + 3 * 20 + 3 * 3 * 3
    assert nc.count_parameters(layer) == {
        "memory": memory,
        "controller": 8,
        "residual": 800,
        "main": 20,
        "total": memory + 828,
    }
    groups = {group["name"]: group for group in nc.parameter_groups(layer, lr=1.0, controller_lr=0.1, weight_decay=0.5)}
    undecayed = groups["main, undecayed"]["params"]
    assert {id(p) for p in layer.memory.parameters()} < {id(p) for p in undecayed}
    assert groups["controller"]["lr"] == 0.1
    assert "P=3, K=2" in repr(layer)
    assert "P=0" in repr(nc.CoreLinear(4, 3))


def test_record_and_figures():
    model = nc.recode(nn.Sequential(nn.Linear(7, 7), nn.Linear(7, 5)), {"0": nc.CoreConfig(slots=4)}, control_dim=3)
    nc.recode(model, "1", nc.CoreConfig(slots=4, diagonal=True), control_dim=3)
    randomised(model)
    x, z = torch.randn(6, 7), torch.randn(6, 3)
    with nc.control(model, z), nc.record(model) as trace:
        model(x)
    assert trace["0"].core.shape == (6, 4, 4)
    assert trace["1"].core.shape == (6, 4)
    assert not trace["0"].core.requires_grad
    torch.testing.assert_close(nc.inspect.vectors(trace["0"]), z)
    torch.testing.assert_close(nc.inspect.attention(trace["0"]), trace["0"].core.abs().mean(-2))
    for name in trace:
        for draw in (nc.plot.programs, nc.plot.usage, nc.plot.clusters):
            assert draw(trace[name])._repr_png_()
    assert nc.plot.usage(trace, labels=torch.arange(6) % 2)._repr_png_()


@pytest.mark.parametrize("steered", [True, False])
@pytest.mark.parametrize("kind", ["linear", "conv1d", "conv2d"])
def test_save_and_load(kind, steered, tmp_path):
    layer, shape = build(kind, steered, dtype=torch.float32, shift=steered, programs=2)
    model = randomised(nn.Sequential(layer))
    x = torch.randn(4, *shape)
    given = torch.randn(4, CONTROL)
    nc.save(model, tmp_path)
    again = nc.load(tmp_path, nn.Sequential(layer.to_plain()))
    assert again[0].config == layer.config
    for one in (model, again):
        one.y = one[0](x, **({"control": given} if steered else {}))
    assert torch.equal(again.y, model.y)


def test_restore_takes_the_mean_over_data_with_its_offset():
    layer, _ = build("linear", shift=True, bias=False)
    model = randomised(nn.Sequential(layer))
    x, z = torch.randn(6, 7, dtype=torch.float64), torch.randn(6, CONTROL, dtype=torch.float64)
    pairs = [literal(layer, row) for row in z]
    with nc.control(model, z):
        restored = nc.restore(model, data=x)[0]
    torch.testing.assert_close(restored.weight, torch.stack([W for W, _ in pairs]).mean(0), check_dtype=False)
    torch.testing.assert_close(restored.bias, torch.stack([o for _, o in pairs]).mean(0), check_dtype=False)


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("bias", [True, False])
def test_restore_gives_the_plain_network_of_one_control(options, bias):
    layer, shape = build("conv2d", bias=bias, **OPTIONS[options])
    own, _ = build("linear", steered=False)
    model = randomised(nn.Sequential(layer, nn.Flatten(2), nn.Linear(30, 7).double(), own))
    x, z = torch.randn(6, *shape, dtype=torch.float64), torch.randn(CONTROL, dtype=torch.float64)
    with nc.control(model, z):
        expected, inside = model[0](x), model(x)
    with pytest.raises(ValueError, match=r"data must be given: the program of '3' differs"):
        nc.restore(model, control=z)
    nc.restore(model, "0", control=z)
    torch.testing.assert_close(model[0](x), expected)
    assert type(model[0]) is nn.Conv2d
    torch.testing.assert_close(model(x), inside)


def test_layers_of_two_widths_are_restored_one_after_the_other():
    model = nn.Sequential(*(nc.CoreLinear(4, 4, core=nc.CoreConfig(slots=3), control_dim=width) for width in (3, 2)))
    randomised(model)
    x, z = torch.randn(5, 4), torch.randn(3)
    expected = model[0](x, control=z)
    with pytest.raises(ValueError, match=r"must have shape \(2,\) for '1', got \(3,\): restore layers of other"):
        nc.restore(model, control=z)
    nc.restore(model, "0", control=z)
    torch.testing.assert_close(model[0](x), expected)
    with pytest.raises(ValueError, match="no layer to restore was built with control_dim"):
        nc.restore(nn.Sequential(nc.CoreLinear(4, 4)), control=z)


def test_what_recode_froze_trains_again_after_restore():
    model = nc.recode(nn.Sequential(nn.Linear(4, 3)), "0", nc.CoreConfig(residual="frozen"), control_dim=2)
    assert not model[0].bias.requires_grad
    assert all(parameter.requires_grad for parameter in nc.restore(model, control=torch.zeros(2)).parameters())


@pytest.mark.parametrize("z", [torch.zeros(2, 3), torch.tensor(0.0), [0.0, 1.0, 2.0]])
def test_restore_takes_one_control(z):
    model = randomised(nn.Sequential(build("linear", dtype=torch.float32)[0]))
    with pytest.raises(ValueError, match=r"control must be one control, a tensor of shape \(control_dim,\), got"):
        nc.restore(model, control=z)
    with pytest.raises(ValueError, match=r"control must have shape \(3,\) for '0', got \(4,\)"):
        nc.restore(model, control=torch.zeros(4))
    with pytest.raises(ValueError, match="control must be finite, got NaN or infinity"):
        nc.restore(model, control=torch.tensor([0.0, torch.nan, 1.0]))
    assert isinstance(model[0], nc.CoreLinear)
