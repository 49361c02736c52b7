"""The growing layers' Triton kernels, through Triton's interpreter where there is no GPU, against float64."""

import copy
import itertools

import pytest
import torch
from growing_helpers import fill, small, state_of
from torch import nn

import neurocoder as nc
from neurocoder.growing import GrowingLinear, grow, reference
from neurocoder.growing import layer as growing_layer
from neurocoder.growing.functional import has_kernel

pytest.importorskip("triton")
from neurocoder.growing import kernels as gpu

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def built(d_in=7, d_out=3, count=None, control_dim=None, **changes):
    return fill(GrowingLinear(d_in, d_out, growing=small(**changes), control_dim=control_dim), count).to(DEVICE)


def results(layer, x, upstream, forward=None):
    """Outputs and gradients by name."""
    x = x.detach().clone().requires_grad_()
    layer.zero_grad()
    y = (forward or layer)(x)
    y.backward(upstream)
    grads = {name: None if p.grad is None else p.grad.clone() for name, p in layer.named_parameters()}
    return {"y": y.detach(), "x": x.grad, **grads}


def literal(layer, x, upstream):
    """The same by the literal equations, in float64."""
    exact = copy.deepcopy(layer).double()
    return results(exact, x.double(), upstream.double(), lambda x: reference.linear(state_of(exact), exact.config, x))


def assert_close(found, exact, atol=1e-4):
    """Each within so much of its largest value."""
    for name, value in exact.items():
        assert value.shape == found[name].shape
        scale = value.abs().max().clamp_min(1e-2)
        torch.testing.assert_close(
            found[name].double() / scale, value / scale, rtol=0, atol=atol, msg=lambda m, n=name: f"{n}: {m}"
        )


def launches(monkeypatch, name):
    """The constants of each launch of a kernel from here on."""
    kernel, seen = getattr(gpu, name), []

    class Recorder:
        def __getitem__(self, grid):
            def launch(*args, **constants):
                seen.append(constants)
                kernel[grid](*args, **constants)

            return launch

    monkeypatch.setattr(gpu, name, Recorder())
    return seen


SIZES = {
    "small": ({}, 5, {}),
    "odd": ({"d_in": 131, "d_out": 150, "count": 30}, 37, {"slots": 37, "rank": 3, "top_k": 5}),
    "wide": ({"d_in": 700, "d_out": 1100, "count": 9}, 8, {"slots": 16, "rank": 4, "top_k": 4}),
    "the largest rank and top_k": ({"d_in": 300, "d_out": 131, "count": 18}, 4, {"slots": 20, "rank": 16, "top_k": 16}),
    "one slot for many inputs": ({"d_in": 20, "count": 1}, 40, {"rank": 2, "top_k": 1}),
    "one input, one slot": ({"count": 1}, 1, {"rank": 1, "top_k": 1}),
    "fewer slots than top_k": ({"count": 2}, 9, {"top_k": 5}),
    "nothing written": ({"count": 0}, 4, {}),
    "full": ({"count": 6}, 14, {}),
}


@pytest.mark.parametrize(
    ("case", "residual"),
    [
        *((case, True) for case in SIZES),
        ("small", False),
        *(pytest.param(case, False, marks=pytest.mark.long) for case in SIZES if case != "small"),
    ],
)
def test_values_and_gradients(case, residual):
    size, count, changes = SIZES[case]
    layer = built(**size, **changes, residual=residual)
    x = torch.randn(count, layer.in_features, device=DEVICE)
    upstream = torch.randn(count, layer.out_features, device=DEVICE)
    with nc.backend("triton"):
        found = results(layer, x, upstream)
    assert_close(found, literal(layer, x, upstream))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("width", [2, 7, 16, 131, 4096, 4099])  # the last ones: one block of features and more
def test_controls_are_centred(width, dtype):
    x = (torch.randn(width, 5, device=DEVICE) + 3).to(dtype).T  # in another layout
    z, length = gpu.centred(x)
    exact = x.double() - x.double().mean(dim=-1, keepdim=True)
    assert z.dtype == length.dtype == torch.float32
    torch.testing.assert_close(z.double(), exact, rtol=0, atol=1e-5)
    torch.testing.assert_close(length.double(), exact.norm(dim=-1), rtol=1e-5, atol=1e-5)


@pytest.mark.filterwarnings("ignore:invalid value encountered")  # infinite minus infinite
def test_controls_that_are_zero_or_not_finite():
    x = torch.randn(4, 6, device=DEVICE)
    x[0], x[1, 2], x[2, 3] = 1.5, float("inf"), float("nan")
    z, length = gpu.centred(x)
    assert z[0].count_nonzero() == length[0] == 0
    assert length[1:].isnan().tolist() == [True, True, False]
    assert [part.shape for part in gpu.centred(x[:0])] == [(0, 6), (0,)]


def test_only_inputs_that_steer_themselves_are_centred(monkeypatch):
    seen = launches(monkeypatch, "centred_kernel")
    x = torch.randn(5, 7, device=DEVICE)
    with nc.backend("triton"):
        built()(x)
        assert len(seen) == 1
        built(control_dim=4)(x, torch.randn(5, 4, device=DEVICE))
    assert len(seen) == 1


def test_the_nearest_slots_are_the_torch_paths():
    layer = built(d_in=20, count=30, slots=41, top_k=5)
    x = torch.randn(50, 20, device=DEVICE)
    x[3], x[4, 0] = 0.0, float("nan")
    found = {path: layer.memory(x, uses_kernels=path == "triton") for path in ("torch", "triton")}
    usual = torch.arange(50, device=DEVICE) != 4
    good = usual & (torch.arange(50, device=DEVICE) != 3)  # the zero control is as near to all
    assert torch.equal(found["triton"].slots[good], found["torch"].slots[good])
    for name in ("share", "similarity"):
        a, b = (getattr(found[path], name)[usual] for path in ("triton", "torch"))
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    assert found["triton"].share[4].count_nonzero() == 0
    assert (found["triton"].slots < 30).all()


def test_the_first_of_equal_slots_is_taken():
    layer = built(count=6, top_k=3)
    layer.memory.keys.copy_(layer.memory.keys[:1].expand(6, -1).clone())
    reading = layer.memory(torch.randn(2, 7, device=DEVICE), uses_kernels=True)
    assert reading.slots.tolist() == [[0, 1, 2]] * 2


def test_only_what_needs_a_gradient_gets_one(monkeypatch):
    x, upstream = torch.randn(5, 7, device=DEVICE), torch.randn(5, 3, device=DEVICE)
    layer = built()
    with nc.backend("triton"):
        whole = results(layer, x, upstream)
        by_input, by_slot = launches(monkeypatch, "by_input_kernel"), launches(monkeypatch, "by_slot_kernel")
        for wants in itertools.product([True, False], repeat=3):
            part, given = copy.deepcopy(layer), x.clone()
            named = {"x": given, "memory.U": part.memory.U, "memory.V": part.memory.V, "R": part.R}
            needs = dict(zip(named, (*wants, wants[0] != wants[2]), strict=True))  # R with and without x
            for name, tensor in named.items():
                tensor.requires_grad_(needs[name])
            part(given).backward(upstream)  # the bias always needs one
            for name, tensor in named.items():
                assert torch.equal(tensor.grad, whole[name]) if needs[name] else tensor.grad is None, (name, needs)
            assert torch.equal(part.bias.grad, whole["bias"])
            expected = [True] + [needs["x"]] * (needs["x"] or needs["memory.U"])
            assert [launch["WRITE"] for launch in by_input] == expected, needs
            assert len(by_slot) == needs["memory.U"] + needs["memory.V"], needs
            by_input.clear()
            by_slot.clear()


@pytest.mark.parametrize("path", ["torch", "triton"])
def test_whether_there_are_kernels_is_asked_once(monkeypatch, path):
    asked = []
    monkeypatch.setattr(growing_layer, "has_kernel", lambda *args: asked.append(1) or has_kernel(*args))
    layer, x = built(), torch.randn(4, 7, device=DEVICE)
    with nc.backend(path):
        reading, _ = layer.find(x)
        layer(x)
    assert len(asked) == 2
    assert reading.uses_kernels is (path == "triton")


def test_only_a_backward_sorts(monkeypatch):
    monkeypatch.setattr(gpu, "paired", lambda *_: pytest.fail("sorted"))
    layer, x = built(), torch.randn(4, 7, device=DEVICE)
    with nc.backend("triton"):
        y = layer(x)
        with pytest.raises(pytest.fail.Exception, match="sorted"):
            y.sum().backward()


@pytest.mark.filterwarnings("ignore:invalid value encountered in multiply")  # beyond the rank, inf times 0
@pytest.mark.parametrize("written", [1, None])
def test_an_infinite_input_has_infinite_outputs(written):
    layer = built(control_dim=4, rank=3)  # 3 of 4 rows of a block
    if written:
        layer.memory.written.fill_(written)  # fewer than top_k: the others have no share
    with torch.no_grad():
        for bank in (layer.memory.U, layer.memory.V):
            bank.abs_()
    x, control = torch.randn(5, 7, device=DEVICE), torch.randn(5, 4, device=DEVICE)
    x[1, 2] = float("inf")
    layer.R.data.abs_()
    with nc.backend("triton"):
        y = layer(x, control)
    assert y[1].isposinf().all()
    assert y[[0, 2, 3, 4]].isfinite().all()


def test_an_input_that_finds_no_slot_changes_none():
    layer, x, upstream = built(), torch.randn(5, 7, device=DEVICE), torch.randn(5, 3, device=DEVICE)
    x[0, 3] = float("nan")
    with nc.backend("triton"):
        found, others = results(layer, x, upstream), results(layer, x[1:], upstream[1:])
    assert found["y"][0].isnan().all()
    for name in ("memory.U", "memory.V"):
        torch.testing.assert_close(found[name], others[name])


@pytest.fixture
def set_precision():
    """`torch.set_float32_matmul_precision`, for the duration of a test."""
    before = torch.get_float32_matmul_precision()
    yield torch.set_float32_matmul_precision
    torch.set_float32_matmul_precision(before)


PRECISIONS = {
    "exact": ("highest", None, "tf32x3", 1e-4),
    "tf32 allowed": ("high", None, "tf32", 1e-2),
    "autocast": ("highest", torch.bfloat16, "tf32", 3e-2),
}


@pytest.mark.parametrize("case", PRECISIONS)
def test_products_are_as_exact_as_torchs_own(monkeypatch, set_precision, case):
    allowed, dtype, expected, atol = PRECISIONS[case]
    set_precision(allowed)
    layer = built(d_in=40, d_out=20, count=5, top_k=5)  # all slots, whatever the rounding of the cosines
    x = torch.randn(10, 40, device=DEVICE)
    upstream = torch.randn(10, 20, device=DEVICE).to(dtype or torch.float32)
    seen = launches(monkeypatch, "by_slot_kernel")
    with nc.backend("triton"), torch.autocast(DEVICE, dtype or torch.bfloat16, enabled=dtype is not None):
        found = results(layer, x, upstream)
    assert [launch["PRECISION"] for launch in seen] == [expected] * 2
    assert_close(found, literal(layer, x, upstream), atol)


def test_the_same_input_gives_the_same_bits():
    inputs = 600 if DEVICE == "cuda" else 12  # the interpreter is slow, and always does the same
    layer, x = built(count=6), torch.randn(inputs, 7, device=DEVICE)
    with nc.backend("triton"):
        first, second = (results(layer, x, torch.ones(inputs, 3, device=DEVICE)) for _ in range(2))
    assert all(torch.equal(value, second[name]) for name, value in first.items())


@pytest.mark.parametrize(
    ("dtype", "residual"),
    [
        (torch.bfloat16, True),
        (torch.float16, False),
        pytest.param(torch.bfloat16, False, marks=pytest.mark.long),
        pytest.param(torch.float16, True, marks=pytest.mark.long),
    ],
)
def test_autocast_and_narrow_layers(dtype, residual):
    layer, x = built(d_in=40, d_out=20, count=5, residual=residual), torch.randn(10, 40, device=DEVICE)
    upstream = torch.randn(10, 20, device=DEVICE)
    exact = literal(layer, x, upstream)
    with nc.backend("triton"), torch.autocast(DEVICE, dtype):
        found = results(layer, x, upstream.to(dtype))
    assert found["y"].dtype == dtype
    assert all(value.dtype == torch.float32 for name, value in found.items() if name != "y")
    for name, value in exact.items():
        error = (found[name].double() - value).norm() / value.norm()
        assert error < 0.02, (name, float(error))
    narrow = copy.deepcopy(layer).to(dtype)
    with nc.backend("triton"):
        found = results(narrow, x.to(dtype), upstream.to(dtype))
    assert all(value.dtype == dtype for value in found.values())


def test_other_layouts_and_leading_dimensions():
    layer = built()
    x = torch.randn(7, 3, 4, device=DEVICE).permute(2, 1, 0)
    found = {}
    for path in ("torch", "triton"):
        layer.zero_grad()
        with nc.backend(path):
            y = layer(x)
            y.sum().backward()  # whose gradient is one number, expanded
            assert layer(x[:0]).shape == (0, 3, 3)
        found[path] = [y.detach(), *(p.grad.clone() for p in layer.parameters())]
    torch.testing.assert_close(found["triton"], found["torch"], rtol=1e-4, atol=1e-4)


def test_a_second_derivative_is_refused():
    layer, x = built(), torch.randn(4, 7, device=DEVICE, requires_grad=True)
    with nc.backend("triton"):
        y = layer(x).square().sum()
        with pytest.raises(RuntimeError, match=r"nc\.backend\('torch'\)"):
            torch.autograd.grad(y, x, create_graph=True)


@pytest.mark.filterwarnings("ignore:growing layer '' is full")
def test_training_is_the_torch_paths():
    layer = built(count=2, max_slots=6)
    twin, xs = copy.deepcopy(layer), torch.randn(5, 6, 7, device=DEVICE)
    for model, path in ((layer, "torch"), (twin, "triton")):
        optimiser = torch.optim.Adagrad(model.parameters(), 0.05)
        grow(model, optimiser)
        with nc.backend(path):
            for x in xs:
                optimiser.zero_grad()
                nn.functional.mse_loss(model(x), x[:, :3]).backward()
                optimiser.step()
    assert int(layer.memory.written) > 4
    for (name, a), b in zip(layer.state_dict().items(), twin.state_dict().values(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4, msg=lambda m, n=name: f"{n}: {m}")
