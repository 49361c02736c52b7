"""The growing layers' Triton kernels, through Triton's interpreter where there is no GPU, against float64."""

import copy

import pytest
import torch
from growing_helpers import fill, small
from torch import nn

import neurocoder as nc
from neurocoder.growing import GrowingLinear, grow

pytest.importorskip("triton")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def built(d_in=7, d_out=3, count=None, **changes):
    return fill(GrowingLinear(d_in, d_out, growing=small(**changes)), count).to(DEVICE)


def results(layer, x, upstream):
    """Outputs and gradients by name."""
    x = x.detach().clone().requires_grad_()
    layer.zero_grad()
    y = layer(x)
    y.backward(upstream)
    grads = {name: None if p.grad is None else p.grad.clone() for name, p in layer.named_parameters()}
    return {"y": y.detach(), "x": x.grad, **grads}


SIZES = {
    "small": ({}, 5, {}),
    "odd": ({"d_in": 131, "d_out": 150, "count": 30}, 37, {"slots": 37, "rank": 3, "top_k": 5}),
    "wide": ({"d_in": 300, "d_out": 600, "count": 9}, 8, {"slots": 16, "rank": 4, "top_k": 4}),
    "one input, one slot": ({"count": 1}, 1, {"rank": 1, "top_k": 1}),
    "fewer slots than top_k": ({"count": 2}, 9, {"top_k": 5}),
    "nothing written": ({"count": 0}, 4, {}),
    "full": ({"count": 6}, 14, {"residual": False}),
}


@pytest.mark.parametrize("case", SIZES)
def test_values_and_gradients(case):
    size, count, changes = SIZES[case]
    layer = built(**size, **changes)
    x = torch.randn(count, layer.in_features, device=DEVICE)
    upstream = torch.randn(count, layer.out_features, device=DEVICE)
    with nc.backend("torch"):
        exact = results(copy.deepcopy(layer).double(), x.double(), upstream.double())
    with nc.backend("triton"):
        found = results(layer, x, upstream)
    for name, value in exact.items():
        assert value.shape == found[name].shape
        scale = value.abs().max().clamp_min(1e-2)
        torch.testing.assert_close(
            found[name].double() / scale, value / scale, rtol=0, atol=1e-4, msg=lambda m, n=name: f"{n}: {m}"
        )


def test_the_nearest_slots_are_the_torch_paths():
    layer = built(d_in=20, count=30, slots=41, top_k=5)
    x = torch.randn(50, 20, device=DEVICE)
    x[3], x[4, 0] = 0.0, float("nan")
    found = {}
    for path in ("torch", "triton"):
        with nc.backend(path), torch.no_grad():
            found[path] = layer.memory(x)
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
    with nc.backend("triton"), torch.no_grad():
        reading = layer.memory(torch.randn(2, 7, device=DEVICE))
    assert reading.slots.tolist() == [[0, 1, 2]] * 2


def test_only_what_needs_a_gradient_gets_one():
    x, upstream = torch.randn(5, 7, device=DEVICE), torch.randn(5, 3, device=DEVICE)
    layer = built()
    with nc.backend("triton"):
        whole = results(layer, x, upstream)
        for frozen in ("U", "V"):
            part = copy.deepcopy(layer)
            getattr(part.memory, frozen).requires_grad_(False)
            found = results(part, x, upstream)
            assert found.pop(f"memory.{frozen}") is None
            assert all(torch.equal(value, whole[name]) for name, value in found.items())
        layer.zero_grad()
        layer(x).backward(upstream)  # the input needs none
    assert all(torch.equal(p.grad, whole[name]) for name, p in layer.named_parameters())


def test_the_same_input_gives_the_same_bits():
    inputs = 600 if DEVICE == "cuda" else 12  # the interpreter is slow, and always does the same
    layer, x = built(count=6), torch.randn(inputs, 7, device=DEVICE)
    with nc.backend("triton"):
        first, second = (results(layer, x, torch.ones(inputs, 3, device=DEVICE)) for _ in range(2))
    assert all(torch.equal(value, second[name]) for name, value in first.items())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_and_narrow_layers(dtype):
    layer, x = built(d_in=40, d_out=20, count=5), torch.randn(30, 40, device=DEVICE)
    upstream = torch.randn(30, 20, device=DEVICE)
    with nc.backend("torch"):
        exact = results(copy.deepcopy(layer).double(), x.double(), upstream.double())
    with nc.backend("triton"), torch.autocast(DEVICE, dtype):
        found = results(layer, x, upstream.to(dtype))
    assert found["y"].dtype == dtype
    assert found["memory.U"].dtype == torch.float32
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
    with nc.backend("torch"):
        expected = layer(x)
    with nc.backend("triton"):
        torch.testing.assert_close(layer(x), expected, rtol=1e-4, atol=1e-4)
        assert layer(x[:0]).shape == (0, 3, 3)


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
