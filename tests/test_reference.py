"""The fast path against the literal reference: outputs and the gradient of every parameter, in float64."""

import pytest
import torch

import neurocoder as nc
from conftest import randomised, small

SIZES = {
    "usual": ({}, (7, 3), (5,)),
    "one slot": ({"slots": 1, "least_used": 1}, (7, 3), (5,)),
    "all slots least used": ({"least_used": 6}, (7, 3), (5,)),
    "one slot least used": ({"least_used": 1}, (7, 3), (5,)),
    "more heads than slots": ({"slots": 3, "heads": 5}, (7, 3), (5,)),
    "more slots than inputs": ({"slots": 9, "least_used": 4}, (4, 5), (5,)),
    "one output": ({}, (7, 1), (5,)),
    "one input feature": ({}, (1, 3), (5,)),
    "one step": ({"steps": 1}, (7, 3), (5,)),
    "eight steps": ({"steps": 8, "heads": 1}, (7, 3), (3,)),
    "one component": ({"steps": 1, "heads": 1}, (7, 3), (5,)),
    "key of one": ({"key_dim": 1}, (7, 3), (5,)),
    "sharp": ({"sharpness": 10.0}, (7, 3), (5,)),
    "normalised": ({"normalise": True}, (7, 3), (5,)),
    "no leading dimension": ({}, (7, 3), ()),
    "three leading dimensions": ({}, (7, 3), (2, 1, 3)),
    "empty batch": ({}, (7, 3), (0,)),
    "empty in the middle": ({}, (7, 3), (2, 0, 3)),
}


def gradients(output, layer, x):
    """The gradient of a fixed random projection of the output, by parameter name."""
    weight = torch.linspace(-1, 1, output.numel(), dtype=output.dtype, device=output.device).view_as(output).cos()
    named = {**dict(layer.named_parameters()), "x": x}
    found = torch.autograd.grad((output * weight).sum(), list(named.values()), allow_unused=True)
    return {
        name: torch.zeros_like(tensor) if grad is None else grad
        for (name, tensor), grad in zip(named.items(), found, strict=True)
    }


def assert_same(layer, fast, slow, x):
    assert fast.shape == slow.shape
    torch.testing.assert_close(fast, slow, rtol=0, atol=1e-10)
    expected = gradients(slow, layer, x)
    for name, grad in gradients(fast, layer, x).items():
        torch.testing.assert_close(grad, expected[name], rtol=0, atol=1e-10, msg=lambda m, n=name: f"{n}: {m}")


@pytest.fixture(params=["torch", "cpu"])
def path(request):
    """Each test that asks for it runs through both paths that serve a CPU in float64."""
    with nc.backend(request.param):
        yield


@pytest.mark.usefixtures("path")
@pytest.mark.parametrize("residual", [True, False, "plain"])
@pytest.mark.parametrize("case", SIZES)
def test_linear_agrees_with_the_reference(case, residual):
    changes, (d_in, d_out), leading = SIZES[case]
    config = small(residual=residual, **changes)
    layer = randomised(nc.Linear(d_in, d_out, program=config, dtype=torch.float64))
    x = torch.randn(*leading, d_in, dtype=torch.float64, requires_grad=True)
    slow = nc.reference.linear(dict(layer.named_parameters()), config, x)
    assert_same(layer, layer(x), slow, x)


@pytest.mark.usefixtures("path")
def test_linear_without_bias_and_with_control():
    config = small()
    layer = randomised(nc.Linear(7, 3, bias=False, program=config, control_dim=4, dtype=torch.float64))
    x = torch.randn(5, 7, dtype=torch.float64, requires_grad=True)
    z = torch.randn(5, 4, dtype=torch.float64)
    slow = nc.reference.linear(dict(layer.named_parameters()), config, x, control=z)
    assert_same(layer, layer(x, control=z), slow, x)


@pytest.mark.parametrize("residual", [True, False, "plain"])
def test_the_reference_is_a_backend(residual):
    """So that any model can be compared with the literal equations, convolutions and empty batches too."""
    model = torch.nn.Sequential(
        nc.Conv2d(2, 3, 3, program=small(residual=residual)),
        torch.nn.Flatten(),
        nc.Linear(27, 4, program=small(residual=residual)),
    )
    model = randomised(model.double(), 0.5)
    for count in (3, 0):
        x = torch.randn(count, 2, 5, 5, dtype=torch.float64, requires_grad=True)
        with nc.backend("reference"):
            slow = model(x)
        assert_same(model, model(x), slow, x)


def test_a_compiled_model_runs_by_the_reference_too(monkeypatch):
    torch._dynamo.reset()
    layer, x = randomised(nc.Linear(7, 3, program=small(), dtype=torch.float64)), torch.randn(2, 7, dtype=torch.float64)
    compiled, composed, compose = torch.compile(layer, fullgraph=True, backend="eager"), [], nc.reference.compose
    monkeypatch.setattr("neurocoder.program.reference.compose", lambda *args: composed.append(args) or compose(*args))
    expected = compiled(x)
    assert not composed
    with nc.backend("reference"):
        torch.testing.assert_close(compiled(x), expected)
    assert len(composed) == 2
    torch.testing.assert_close(compiled(x), expected)
    assert len(composed) == 2


def test_a_normalised_layer_composes_the_same_programs_at_any_scale():
    layer = randomised(nc.Linear(7, 3, program=small(normalise=True)))
    x = torch.randn(5, 7)
    expected = layer.programs(x)
    for scale in (1e-3, 255):
        for found, wanted in zip(layer.programs(scale * x), expected, strict=True):
            torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(layer.materialize(scale * x), layer.materialize(x), rtol=1e-4, atol=1e-5)
    assert layer(torch.zeros(2, 7)).isfinite().all()
    conv = randomised(nc.Conv2d(2, 3, 3, program=small(normalise=True), bias=False))
    image = torch.randn(4, 2, 6, 6)
    torch.testing.assert_close(conv(100 * image), 100 * conv(image), rtol=1e-4, atol=1e-2)


def test_one_control_serves_a_whole_sequence():
    layer = randomised(nc.Linear(7, 3, program=small(), control_dim=4, dtype=torch.float64))
    x, z = torch.randn(2, 5, 7, dtype=torch.float64), torch.randn(2, 4, dtype=torch.float64)
    repeated = layer(x, control=z.unsqueeze(1).expand(2, 5, 4))
    torch.testing.assert_close(layer(x, control=z), repeated, rtol=0, atol=1e-12)
    assert layer.programs(x, control=z).u.shape == (2, 6, 6)


CONVOLUTIONS = {
    "1d": (nc.Conv1d, (3,), {}),
    "1d, strided, dilated": (nc.Conv1d, (3,), {"stride": 2, "padding": 2, "dilation": 2}),
    "2d": (nc.Conv2d, (3, 3), {}),
    "2d, uneven": (nc.Conv2d, (3, 2), {"stride": (1, 2), "padding": (0, 1), "dilation": (2, 1)}),
    "2d, same": (nc.Conv2d, (3, 3), {"padding": "same"}),
    "2d, 1x1": (nc.Conv2d, (1, 1), {}),
}


@pytest.mark.parametrize("residual", [True, False, "plain"])
@pytest.mark.parametrize("case", CONVOLUTIONS)
def test_convolution_agrees_with_the_reference(case, residual):
    kind, kernel, geometry = CONVOLUTIONS[case]
    config = small(residual=residual)
    layer = randomised(kind(2, 3, kernel, program=config, dtype=torch.float64, **geometry))
    x = torch.randn(4, 2, *(7, 6)[: len(kernel)], dtype=torch.float64, requires_grad=True)
    slow = nc.reference.conv(dict(layer.named_parameters()), config, x, kernel, **geometry)
    assert_same(layer, layer(x), slow, x)


def test_convolution_with_control_and_without_batch():
    layer = randomised(nc.Conv2d(2, 3, 3, program=small(), control_dim=4, dtype=torch.float64))
    x, z = torch.randn(4, 2, 6, 6, dtype=torch.float64), torch.randn(4, 4, dtype=torch.float64)
    slow = nc.reference.conv(dict(layer.named_parameters()), layer.config, x, (3, 3), control=z)
    torch.testing.assert_close(layer(x, control=z), slow, rtol=0, atol=1e-10)
    torch.testing.assert_close(layer(x[0], control=z[0]), slow[0], rtol=0, atol=1e-10)


@pytest.mark.parametrize("mode", ["reflect", "replicate", "circular"])
@pytest.mark.parametrize("padding", [(2, 1), "same"])
def test_padding_modes_follow_torch(mode, padding):
    """With the programs silenced and R as the weight, the layer is torch's convolution."""
    plain = torch.nn.Conv2d(2, 3, (3, 4), padding=padding, padding_mode=mode, dtype=torch.float64)
    layer = nc.Conv2d.from_plain(plain, small(residual="plain"))
    x = torch.randn(4, 2, 7, 8, dtype=torch.float64)
    torch.testing.assert_close(layer(x), plain(x), rtol=0, atol=1e-10)


@pytest.mark.parametrize("residual", [True, False, "plain"])
def test_programs_and_materialize_agree_with_the_reference(residual):
    config = small(residual=residual)
    layer = randomised(nc.Linear(7, 3, program=config, dtype=torch.float64))
    x = torch.randn(2, 3, 7, dtype=torch.float64)
    programs, weights = layer.programs(x), layer.materialize(x)
    assert weights.shape == (2, 3, 7, 3)
    for i, j in torch.cartesian_prod(torch.arange(2), torch.arange(3)):
        slow = nc.reference.compose(dict(layer.named_parameters()), config, x[i, j])
        fast = {
            "attention": torch.stack([programs.u[i, j], programs.v[i, j], programs.s[i, j]]),
            "content": programs.content[i, j],
            "least_used": programs.least_used[i, j],
            "interpolation": programs.interpolation[i, j],
            "sigma": programs.sigma[i, j],
            "weight": weights[i, j],
        }
        for name, value in fast.items():
            torch.testing.assert_close(value, getattr(slow, name), rtol=0, atol=1e-10)
        if residual is True:
            torch.testing.assert_close(programs.gate[i, j], slow.gate, rtol=0, atol=1e-10)
        else:
            assert programs.gate is None
            assert slow.gate is None


def test_convolution_materializes_torch_kernels():
    layer = randomised(nc.Conv2d(2, 3, (3, 2), program=small(), dtype=torch.float64))
    x = torch.randn(4, 2, 6, 6, dtype=torch.float64)
    kernels = layer.materialize(x)
    assert kernels.shape == (4, 3, 2, 3, 2)
    for image, kernel, y in zip(x, kernels, layer(x), strict=True):
        torch.testing.assert_close(torch.nn.functional.conv2d(image, kernel, layer.bias), y, rtol=0, atol=1e-10)


@pytest.mark.usefixtures("path")
@pytest.mark.parametrize("residual", [True, False, "plain"])
def test_gradcheck(residual):
    layer = randomised(nc.Linear(4, 3, program=small(residual=residual), dtype=torch.float64))
    x = torch.randn(2, 4, dtype=torch.float64, requires_grad=True)
    names, parameters = zip(*layer.named_parameters(), strict=True)

    def function(x, *values):
        return torch.func.functional_call(layer, dict(zip(names, values, strict=True)), (x,))

    assert torch.autograd.gradcheck(function, (x, *parameters))


def test_gradcheck_convolution():
    layer = randomised(nc.Conv2d(2, 2, 2, program=small(), dtype=torch.float64))
    x = torch.randn(2, 2, 3, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(layer, (x,))
