"""What people take for granted of a PyTorch layer, of core layers that are steered.

`tests/test_behaviour.py` has the same of core layers that read their own input.
"""

import copy

import pytest
import torch
from core_helpers import CONTROL, OPTIONS, build, randomised
from torch import nn
from torch.utils.checkpoint import checkpoint

import neurocoder as nc


@pytest.fixture(params=["linear", "linear sequence", "conv1d", "conv2d", "linear, all", "conv2d, all", "linear, shift"])
def steered(request):
    """A steered layer, and a function that makes inputs and controls."""
    kind, _, options = request.param.partition(", ")
    kind, _, sequence = kind.partition(" ")
    layer, shape = build(kind, dtype=torch.float32, **OPTIONS[options])
    shape = (4, *shape) if sequence else shape

    def batch(size=6, **more):
        return torch.randn(size, *shape, **more), torch.randn(size, CONTROL, **more)

    return randomised(layer), batch


def gradients(layer, *given):
    named = dict(layer.named_parameters())
    return dict(zip(named, torch.autograd.grad(layer(*given).square().sum(), named.values()), strict=True))


@pytest.mark.slow
def test_compile_full_graph(steered):
    layer, batch = steered
    given = batch()
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(*given), layer(*given))
    compiled(*given).square().sum().backward()
    found = {name: parameter.grad for name, parameter in layer.named_parameters()}
    torch.testing.assert_close(found, gradients(layer, *given), rtol=1e-4, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("control_dim", [pytest.param(None, marks=pytest.mark.long), 3])
def test_compile_with_inductor(control_dim):
    layer = randomised(nc.CoreLinear(7, 17, core=nc.CoreConfig(slots=4), control_dim=control_dim))
    given = (torch.randn(5, 7), torch.randn(5, 3))[: 1 if control_dim is None else 2]
    compiled = torch.compile(layer, fullgraph=True)
    torch.testing.assert_close(compiled(*given), layer(*given))
    expected = gradients(layer, *given)
    compiled(*given).square().sum().backward()
    found = {name: parameter.grad for name, parameter in layer.named_parameters()}
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("strict", [False, pytest.param(True, marks=pytest.mark.long)])
def test_export_with_a_dynamic_batch(steered, strict):
    layer, batch = steered
    sizes = {0: torch.export.Dim("batch", min=1)}
    program = torch.export.export(layer.eval(), batch(), dynamic_shapes=(sizes, sizes), strict=strict)
    for size in (1, 5, 11):
        given = batch(size)
        torch.testing.assert_close(program.module()(*given), layer(*given))


def test_export_with_a_dynamic_sequence():
    layer = randomised(build("linear", dtype=torch.float32)[0])
    length = torch.export.Dim("length", min=2)
    given = torch.randn(6, 9, 7), torch.randn(6, CONTROL)
    program = torch.export.export(layer.eval(), given, dynamic_shapes=({1: length}, None))
    for size in (2, 40, 500):
        other = torch.randn(6, size, 7), given[1]
        torch.testing.assert_close(program.module()(*other), layer(*other), rtol=1e-4, atol=1e-4)


def test_bfloat16_autocast(steered):
    layer, batch = steered
    given = batch()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = layer(*given)
        y.float().square().sum().backward()
    assert y.dtype is torch.bfloat16
    assert all(p.grad.dtype is torch.float32 and p.grad.isfinite().all() for p in layer.parameters())
    assert (y.float() - layer(*given)).norm() / layer(*given).norm() < 0.05


def test_bfloat16_layer(steered):
    layer, batch = steered
    exact = copy.deepcopy(layer.bfloat16()).double()
    given = batch(dtype=torch.bfloat16)
    y = layer(*given)
    y.float().square().sum().backward()
    assert y.dtype is torch.bfloat16
    expected = exact(*(one.double() for one in given))
    assert (y.double() - expected).norm() / expected.norm() < 0.05
    torch.testing.assert_close(layer(given[0], control=given[1].float()), y)  # a control in another precision


def test_meta_device():
    for kind in ("linear", "conv1d", "conv2d"):
        layer, shape = build(kind, device="meta")
        x, z = torch.randn(6, *shape, device="meta"), torch.randn(6, CONTROL, device="meta")
        assert layer(x.double(), control=z.double()).is_meta
        assert all(tensor.is_meta for tensor in layer.state_dict().values())


@pytest.mark.parametrize("control_dim", [None, 3])
def test_a_layer_made_on_meta_starts_when_it_is_told_to(control_dim):
    layer = nc.CoreLinear(40, 20, device="meta", control_dim=control_dim).to_empty(device="cpu")
    torch.manual_seed(5)
    layer.reset_parameters()
    torch.manual_seed(5)
    torch.testing.assert_close(layer.state_dict(), nc.CoreLinear(40, 20, control_dim=control_dim).state_dict())


def test_functional_call_and_grad(steered):
    layer, batch = steered
    given = batch()

    def loss(parameters):
        return torch.func.functional_call(layer, parameters, given).square().sum()

    found = torch.func.grad(loss)({name: p.detach() for name, p in layer.named_parameters()})
    torch.testing.assert_close(found, gradients(layer, *given), rtol=1e-4, atol=1e-4)


def test_ensembles_and_single_samples_by_vmap(steered):
    layer, batch = steered
    members, given = [randomised(copy.deepcopy(layer)) for _ in range(3)], batch()
    stacked = torch.func.stack_module_state(members)
    base = copy.deepcopy(layer).to("meta")
    found = torch.func.vmap(lambda *state: torch.func.functional_call(base, state, given))(*stacked)
    torch.testing.assert_close(found, torch.stack([member(*given) for member in members]))
    torch.testing.assert_close(torch.func.vmap(layer)(*given), layer(*given))


def test_activation_checkpointing(steered):
    layer, batch = steered
    given = batch(requires_grad=True)
    expected = gradients(layer, *given)
    checkpoint(layer, *given, use_reentrant=False).square().sum().backward()
    found = {name: parameter.grad for name, parameter in layer.named_parameters()}
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_copies_are_independent(steered):
    layer, batch = steered
    given = batch()
    y = layer(*given)
    twin = copy.deepcopy(layer)
    assert torch.equal(twin(*given), y)
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.add_(1.0)
    assert torch.equal(layer(*given), y)
    twin.load_state_dict(layer.state_dict())
    assert torch.equal(twin(*given), y)


def test_empty_batch(steered):
    layer, batch = steered
    y = layer(*batch(0))
    assert y.shape == (0, *layer(*batch(1)).shape[1:])
    y.sum().backward()


def test_any_leading_dimensions():
    layer = randomised(build("linear", dtype=torch.float32)[0])
    x, z = torch.randn(2, 3, 4, 7), torch.randn(2, 3, 4, CONTROL)
    expected = layer(x.flatten(0, 2), control=z.flatten(0, 2))
    torch.testing.assert_close(layer(x, control=z), expected.view(2, 3, 4, -1))
    torch.testing.assert_close(layer(x[0, 0, 0], control=z[0, 0, 0]), expected[0])
    own = randomised(nc.CoreLinear(7, 17, core=nc.CoreConfig(slots=4)))
    torch.testing.assert_close(own(x), own(x.flatten(0, 2)).view(2, 3, 4, -1))
    assert layer.programs(x, control=z[:, 0, 0]).core.shape == (2, 4, 4)


@pytest.mark.parametrize("control_dim", [None, 3])
def test_the_same_seed_gives_the_same_layer_in_any_dtype(control_dim):
    made = []
    for dtype in (torch.float32, torch.float64):
        torch.manual_seed(3)
        made.append(nc.CoreLinear(20, 20, control_dim=control_dim, dtype=dtype))
    for a, b in zip(*(layer.state_dict().values() for layer in made), strict=True):
        assert torch.equal(a.double(), b)


def test_a_model_recoded_and_steered_trains():
    torch.manual_seed(0)
    model = nc.recode(nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 2)), "*", nc.CoreConfig(), control_dim=2)
    tasks, x = torch.eye(2), torch.randn(2, 64, 4)
    y = torch.stack([x[0] @ torch.randn(4, 2), x[1] @ torch.randn(4, 2)])
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(150):
        with nc.control(model, tasks):
            loss = (model(x) - y).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    assert loss < 0.05 * y.var()
