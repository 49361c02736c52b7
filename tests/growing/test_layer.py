"""The growing layers against their literal reference, and what people take for granted of a layer."""

import copy
import json
import pickle

import pytest
import torch
from growing_helpers import INPUTS, LAYERS, batch, fill, filled, small, state_of
from torch import nn
from torch.utils.checkpoint import checkpoint

import neurocoder as nc
from neurocoder.growing import GrowingConfig, GrowingConv2d, GrowingLinear, reference


def pytest_generate_tests(metafunc):
    if "kind" in metafunc.fixturenames:
        metafunc.parametrize("kind", LAYERS)


def literal(kind, layer, x, control=None):
    state = state_of(layer)
    if kind.startswith("linear"):
        return reference.linear(state, layer.config, x, control)
    if kind == "conv2d":
        x = nn.functional.pad(x, (0, 0, 1, 1), mode="reflect")
        return reference.conv(state, layer.config, x, layer.kernel_size, control, stride=layer.stride)
    return reference.conv(state, layer.config, x, layer.kernel_size, control, padding=layer.padding)


@pytest.mark.parametrize("steered", [False, True])
@pytest.mark.parametrize("written", [0, 1, 2, 5, 6])
def test_values_and_gradients_are_the_references(kind, steered, written):
    layer = filled(kind, written, dtype=torch.float64, control_dim=4 if steered else None)
    x = batch(kind, dtype=torch.float64).requires_grad_()
    control = torch.randn(5, 4, dtype=torch.float64) if steered else None
    own = None
    if not steered and kind == "conv2d":  # the reference sees the padded image, whose channel means differ
        own = x.detach().flatten(2).mean(-1)
        own = own - own.mean(-1, keepdim=True)
    y, expected = layer(x, control), literal(kind, layer, x, own if control is None else control)
    torch.testing.assert_close(y, expected, rtol=1e-10, atol=1e-10)
    weight = torch.linspace(-1, 2, y.numel(), dtype=y.dtype).view_as(y)
    inputs = [layer.memory.U, layer.memory.V, x, *(p for p in (layer.R, layer.bias) if p is not None)]
    found = torch.autograd.grad((weight * y).sum(), inputs)
    wanted = torch.autograd.grad((weight * expected).sum(), inputs, materialize_grads=True)
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)
    if written:
        assert found[0].count_nonzero()
        assert found[0][written:].count_nonzero() == 0


def test_gradcheck(kind):
    layer = filled(kind, dtype=torch.float64, control_dim=2)
    x, z = batch(kind, 2, dtype=torch.float64, requires_grad=True), torch.randn(2, 2, dtype=torch.float64)
    names, parameters = zip(*layer.named_parameters(), strict=True)

    def run(x, *values):
        return torch.func.functional_call(layer, dict(zip(names, values, strict=True)), (x, z))

    assert torch.autograd.gradcheck(run, (x, *parameters))


def test_no_gradient_passes_through_the_routing():
    layer = filled("linear", dtype=torch.float64, control_dim=4)
    x, z = batch("linear", dtype=torch.float64), torch.randn(5, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.grad(layer(x, z).sum(), z, allow_unused=True) == (None,)
    own = batch("linear", dtype=torch.float64).requires_grad_()
    layer = filled("linear", dtype=torch.float64)
    (grad,) = torch.autograd.grad(layer(own).sum(), own)
    torch.testing.assert_close(grad, layer.materialize(own).sum(-1))  # as if W_t were a constant


def test_materialized_weight_is_what_is_executed(kind):
    layer, x = filled(kind, dtype=torch.float64), batch(kind, dtype=torch.float64)
    weight = layer.materialize(x)
    if kind.startswith("linear"):
        y = torch.einsum("ni,nio->no", x, weight)
        torch.testing.assert_close(layer(x), y if layer.bias is None else y + layer.bias)
    else:
        assert weight.shape == (5, *layer.weight_shape)
        plain = layer.to_plain()
        with torch.no_grad():
            plain.bias.copy_(layer.bias)
            for n in range(5):
                plain.weight.copy_(weight[n])
                torch.testing.assert_close(layer(x)[n], plain(x[n]))


def test_any_leading_dimensions_and_one_control_for_a_sequence():
    layer, x = filled("linear"), torch.randn(2, 3, 5, 7)
    rows = torch.stack([layer(row) for row in x.reshape(-1, 7)])
    torch.testing.assert_close(layer(x), rows.reshape(2, 3, 5, 3))
    layer, z = filled("linear", control_dim=4), torch.randn(2, 4)
    each = torch.stack([layer(x[i], z[i].expand(3, 5, 4)) for i in range(2)])
    torch.testing.assert_close(layer(x, z), each)
    with nc.control(layer, z):
        torch.testing.assert_close(layer(x), each)


def test_unbatched_image(kind):
    if kind.startswith("conv"):
        layer, x = filled(kind), batch(kind)
        torch.testing.assert_close(layer(x[0]), layer(x)[0], rtol=1e-5, atol=1e-5)


def test_empty_batch_reaches_every_parameter(kind):
    layer = filled(kind)
    y = layer(batch(kind, 0))
    assert y.shape == (0, *layer(batch(kind, 1)).shape[1:])
    y.sum().backward()
    assert [name for name, p in layer.named_parameters() if p.grad is None] == []


def test_every_parameter_gets_a_gradient_before_anything_is_written(kind):
    layer = LAYERS[kind]()
    layer(batch(kind)).sum().backward()
    assert [name for name, p in layer.named_parameters() if p.grad is None] == []


def test_a_forward_changes_nothing(kind):
    layer, x = filled(kind).train(), batch(kind)
    before = copy.deepcopy(layer.state_dict())
    notes = layer.memory.notes.visits.clone()
    layer(x)
    layer.eval()(x).sum().backward()
    assert all(torch.equal(before[name], tensor) for name, tensor in layer.state_dict().items())
    assert torch.equal(layer.memory.notes.visits, notes)


def test_checkpointed_forward_is_the_plain_one_and_notes_once(kind):
    layer, x = filled(kind), batch(kind, requires_grad=True)
    noted = []
    for run in (
        layer,
        lambda x: checkpoint(layer, x, use_reentrant=False),
        lambda x: checkpoint(layer, x, use_reentrant=True),
    ):
        layer.zero_grad()
        y = run(x)
        y.square().sum().backward()
        notes = layer.memory.notes
        noted.append([y, layer.memory.U.grad, notes.visits.clone(), notes.similarity.clone(), notes.keys.clone()])
    assert float(noted[0][2].sum()) == pytest.approx(5)
    for other in noted[1:]:
        for a, b in zip(other, noted[0], strict=True):
            torch.testing.assert_close(a, b)


def test_bfloat16_autocast(kind):
    layer, x = filled(kind), batch(kind)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = layer(x)
        y.float().square().sum().backward()
    assert y.dtype is torch.bfloat16
    assert all(p.grad.dtype is torch.float32 and p.grad.isfinite().all() for p in layer.parameters())
    assert (y.float() - layer(x)).norm() / layer(x).norm() < 0.02
    assert float(layer.memory.notes.visits.sum()) == pytest.approx(5, rel=1e-5)


def test_routing_is_exact_under_autocast():
    layer, x = filled("linear"), batch("linear")
    expected = layer.programs(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = layer.programs(x)
    assert torch.equal(found.share, expected.share)


def test_bfloat16_layer(kind):
    layer = filled(kind, dtype=torch.bfloat16)
    x = batch(kind, dtype=torch.bfloat16)
    y = layer(x)
    y.float().square().sum().backward()
    assert y.dtype is torch.bfloat16
    assert layer.memory.visits.dtype is torch.float32
    exact = copy.deepcopy(layer).double()
    assert (y.double() - exact(x.double())).norm() / exact(x.double()).norm() < 0.05


def test_visits_keep_their_precision_when_a_layer_is_converted():
    layer = filled("linear")
    layer.memory.visits.fill_(1001.25)
    assert float(layer.bfloat16().memory.visits[0]) == 1001.25
    assert layer.memory.keys.dtype is torch.bfloat16


def test_meta_device(kind):
    layer = LAYERS[kind](device="meta")
    assert layer(batch(kind, device="meta")).is_meta


def test_same_start_from_the_same_seed_in_any_dtype(kind):
    def start(dtype):
        torch.manual_seed(3)
        return [p.double() for p in LAYERS[kind](dtype=dtype).parameters()]

    for dtype, tolerance in ((torch.float32, 0.0), (torch.float64, 1e-6), (torch.bfloat16, 0.02)):
        for p, q in zip(start(torch.float32), start(dtype), strict=True):
            torch.testing.assert_close(p, q, rtol=tolerance, atol=0.0)


@pytest.mark.slow
@pytest.mark.filterwarnings(
    "ignore:<class 'torch.autograd.function.Function'> should not be:DeprecationWarning"
)  # dynamo
def test_compiled_in_one_graph_with_notes(kind):
    layer, x = filled(kind), batch(kind)
    layer(x).square().sum().backward()
    notes = layer.memory.notes
    expected = layer.memory.U.grad.clone(), notes.visits.clone(), notes.similarity.clone(), notes.keys.clone()
    layer.zero_grad()
    notes.clear()
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    y = compiled(x)
    torch.testing.assert_close(y, layer(x))
    y.square().sum().backward()
    for a, b in zip(expected, (layer.memory.U.grad, notes.visits, notes.similarity, notes.keys), strict=True):
        torch.testing.assert_close(a, b)


def test_export_with_a_dynamic_batch(kind):
    layer, x = filled(kind).eval(), batch(kind)
    if kind.startswith("conv"):
        program = torch.export.export(layer, (x,))  # a group for each image: the batch is fixed
        torch.testing.assert_close(program.module()(x), layer(x))
        return
    program = torch.export.export(layer, (x,), dynamic_shapes=({0: torch.export.Dim("batch", min=1)},))
    for size in (1, 5, 11):
        x = batch(kind, size)
        torch.testing.assert_close(program.module()(x), layer(x))


@pytest.mark.parametrize("strict", [False, True])
def test_an_exported_layer_in_training_takes_no_notes(strict):
    layer = GrowingLinear(7, 3, growing=GrowingConfig(slots=6, writes=4))
    shapes = ({0: torch.export.Dim("batch", min=1)},)
    program = torch.export.export(layer, (torch.randn(5, 7),), dynamic_shapes=shapes, strict=strict)
    x = torch.randn(2, 7)  # notes would need a batch of at least `writes`
    torch.testing.assert_close(program.module()(x), layer(x))


@pytest.mark.parametrize("strict", [False, True])
def test_a_layer_on_the_meta_device_is_exported(strict):
    layer, x = GrowingLinear(7, 3).to("meta").eval(), torch.randn(5, 7, device="meta")
    assert torch.export.export(layer, (x,), strict=strict).module()(x).shape == (5, 3)


def test_functional_call_grad_and_vmap():
    members, x = [filled("linear") for _ in range(3)], batch("linear")
    parameters, buffers = torch.func.stack_module_state(members)
    base = copy.deepcopy(members[0]).to("meta")

    def run(parameters, buffers):
        return torch.func.functional_call(base, (parameters, buffers), (x,))

    torch.testing.assert_close(torch.func.vmap(run)(parameters, buffers), torch.stack([m(x) for m in members]))
    layer = members[0]
    layer(x).square().sum().backward()

    def loss(parameters):
        return torch.func.functional_call(layer, parameters, (x,)).square().sum()

    grads = torch.func.grad(loss)({name: p.detach() for name, p in layer.named_parameters()})
    torch.testing.assert_close(grads["memory.U"], layer.memory.U.grad)


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda layer: pickle.loads(pickle.dumps(layer))])
def test_copies_after_a_backward_are_independent(kind, duplicate):
    layer, x = filled(kind), batch(kind)
    y = layer(x)
    y.sum().backward()
    twin = duplicate(layer)
    assert torch.equal(twin(x), y)
    assert twin.memory.notes.visits.count_nonzero() == 0
    with torch.no_grad():
        twin.memory.U.add_(1.0)
        twin.memory.keys.neg_()
    assert torch.equal(layer(x), y)


def test_state_dict_round_trip(kind):
    layer, other, x = filled(kind), filled(kind, 2), batch(kind)
    assert not torch.allclose(layer(x), other(x))
    other.load_state_dict(layer.state_dict())
    assert torch.equal(layer(x), other(x))
    assert int(other.memory.written) == 5


def test_memory_touches_only_the_slots_that_are_used():
    layer, x = filled("linear"), batch("linear", 1)
    layer(x).sum().backward()
    used = layer.memory.U.grad.flatten(1).norm(dim=1) > 0
    assert int(used.sum()) == 3
    assert set(used.nonzero().flatten().tolist()) == set(layer.programs(x).slots.flatten().tolist())


def plain_models():
    return {
        "linear": (nn.Sequential(nn.Linear(7, 5), nn.Tanh(), nn.Linear(5, 4)), torch.randn(9, 7), "2"),
        "conv": (nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU()), torch.randn(9, 3, 6, 6), "0"),
    }


@pytest.mark.parametrize("residual", [True, "frozen"])
@pytest.mark.parametrize("name", ["linear", "conv"])
def test_recoding_changes_no_output_and_restore_gives_the_weight_back(name, residual):
    model, x, target = plain_models()[name]
    before, old = model(x), copy.deepcopy(model[int(target)])
    planned = nc.plan(model, target, small(residual=residual))
    assert len(planned.replacements) == 1
    nc.recode(model, target, small(residual=residual))
    layer = model[int(target)]
    assert torch.equal(model(x), before)
    assert layer.R.requires_grad is layer.bias.requires_grad is (residual is True)
    assert nc.count_parameters(model)["residual"] == old.weight.numel()
    with torch.no_grad():
        layer.memory.written.fill_(2)  # new slots output zero until trained
        layer.memory.keys[:2] = torch.eye(layer.memory.keys.shape[1])[:2]
    assert torch.equal(model(x), before)
    layer.memory.written.zero_()
    nc.restore(model)
    assert torch.equal(model[int(target)].weight, old.weight)
    assert torch.equal(model(x), before)


def test_restoring_a_trained_layer_takes_the_mean_weight():
    model, x = nn.Sequential(filled("linear")), batch("linear")
    expected = model[0].materialize(x).mean(0).mT
    with pytest.raises(ValueError, match="data must be given"):
        nc.restore(model)
    nc.restore(model, data=x)
    torch.testing.assert_close(model[0].weight, expected)


def test_a_frozen_weight_stays_frozen():
    model = nn.Sequential(nn.Linear(6, 4)).requires_grad_(False)
    nc.recode(model, "0", small())
    assert {name for name, p in model[0].named_parameters() if not p.requires_grad} == {"bias", "R"}


def test_save_and_load_into_a_plain_model(tmp_path):
    def plain():
        return nn.Sequential(nn.Linear(7, 5), nn.Tanh(), nn.Linear(5, 4))

    model, x = nc.recode(plain(), "2", small()), torch.randn(9, 7)
    fill(model[2])
    nc.save(model, tmp_path)
    loaded = nc.load(tmp_path, plain())
    assert torch.equal(loaded(x), model(x))
    assert loaded[2].config == model[2].config
    assert int(loaded[2].memory.written) == 5
    torch.optim.SGD(loaded.parameters(), 0.1)


def test_record_tells_which_slots_are_used_and_when_they_were_written():
    model, x = nn.Sequential(filled("linear", 2), nn.Linear(3, 2)), batch("linear")
    with nc.record(model) as recording:
        model(x)
    found = recording["0"]
    assert found.slots.shape == found.share.shape == found.similarity.shape == found.born.shape == (5, 3)
    torch.testing.assert_close(found.share.sum(-1), torch.ones(5))
    assert (found.share[:, 2] == 0).all()  # two of three are written
    assert (found.born[:, 2] == -1).all()
    assert (found.born[:, :2].sort().values == torch.tensor([0, 1])).all()
    assert int(found.written) == 2


def test_counts():
    layer = filled("linear", 2)
    assert layer.stored() == {"memory": 6 * 7}
    assert layer.written_numbers() == 2 * (2 * 7 + 2 * 3 + 7)
    assert layer.part_of("memory.U") == "memory"
    groups = nc.parameter_groups(layer, lr=0.1, weight_decay=0.3)
    decayed = {id(p) for group in groups if group["weight_decay"] for p in group["params"]}
    assert decayed == {id(layer.R)}


def test_keys_count_and_what_is_written_is_told():
    layer = filled("linear", 2)
    counts = nc.count_parameters(nn.Sequential(layer, nn.Linear(3, 2)))
    assert counts["memory"] == 6 * (2 * 7 + 2 * 3 + 7)
    assert counts["written"] == 2 * (2 * 7 + 2 * 3 + 7)
    assert counts["total"] == counts["memory"] + counts["residual"] + counts["main"]
    assert "written" not in nc.count_parameters(nn.Linear(3, 2))
    (planned,) = nc.plan(nn.Sequential(nn.Linear(7, 3)), "0", small()).replacements
    assert planned.after == counts["memory"] + counts["residual"] + 3


def test_a_zero_control_is_served():
    layer = filled("linear", control_dim=4)
    assert layer(torch.randn(2, 7), torch.zeros(2, 4)).isfinite().all()


def test_repr_and_config_round_trip():
    config = small(max_slots=9)
    assert GrowingConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config
    assert "in_features=7, out_features=3, bias=True, slots=6, rank=2, top_k=3" in repr(LAYERS["linear"]())
    assert GrowingConfig().max_slots == 8 * 512


BAD_CONFIGS = [
    ({"slots": 0}, "growing.slots must be a whole number >= 1, got 0"),
    ({"rank": 1.5}, "growing.rank must be a whole number >= 1, got 1.5"),
    ({"slots": 3, "top_k": 4}, r"growing.top_k must be in 1..slots \(3\), got 4"),
    ({"max_similarity": 1.5}, "growing.max_similarity must be above -1 and at most 1, got 1.5"),
    ({"max_similarity": "a"}, "growing.max_similarity must be a finite number, got 'a'"),
    ({"sharpness": 0}, "growing.sharpness must be a finite number > 0, got 0"),
    ({"consolidation": 0}, "growing.consolidation must be a finite number > 0, got 0"),
    ({"residual": "plain"}, "growing.residual must be True, False or 'frozen', got 'plain'"),
    ({"writes": 0}, "growing.writes must be a whole number >= 1, got 0"),
    ({"growth": 1.0}, "growing.growth must be above 1, got 1.0"),
    ({"max_slots": 100}, r"growing.max_slots must be at least slots \(512\), got 100"),
]


@pytest.mark.parametrize(("fields", "message"), BAD_CONFIGS, ids=lambda value: str(value)[:30])
def test_bad_configurations(fields, message):
    with pytest.raises(ValueError, match=message):
        GrowingConfig(**fields)


def test_wrong_input_is_named():
    for make, message in (
        (lambda: GrowingLinear(0, 4), "GrowingLinear: in_features must be a whole number >= 1, got 0"),
        (lambda: GrowingLinear(4, 4, growing=nc.HyperConfig()), "growing must be a GrowingConfig, got HyperConfig"),
        (lambda: GrowingLinear(1, 4), "GrowingLinear: control_dim must be given where an input has one feature"),
        (lambda: GrowingConv2d(3, 4, 0), "GrowingConv2d: kernel_size must be a whole number >= 1"),
        (lambda: GrowingConv2d(4, 4, 3, groups=2), "GrowingConv2d: groups must be 1"),
        (lambda: LAYERS["linear"]()(torch.randn(2, 5)), r"x must have shape \(..., 7\), got \(2, 5\)"),
        (lambda: LAYERS["conv2d"]()(torch.randn(2, 5, 8, 8)), r"GrowingConv2d: x must have shape \(\[B,\] 3, H, W\)"),
        (lambda: LAYERS["linear"](control_dim=2)(torch.randn(2, 7)), "control must be given"),
    ):
        with pytest.raises(ValueError, match=message):
            make()
    assert set(INPUTS) == {kind.split(",")[0] for kind in LAYERS}
