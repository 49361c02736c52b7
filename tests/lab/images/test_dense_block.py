"""DenseNet's Triton kernels, through Triton's interpreter where there is no GPU, against torch's operations."""

import copy

import pytest
import torch
from torch import nn

import neurocoder as nc
from neurocoder.lab.experiments.images.densenet import Block, DenseNet

pytest.importorskip("triton")
dense_block = pytest.importorskip("neurocoder.lab.experiments.images.dense_block")

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def block(channels, growth, layers):
    """With parameters and statistics that hide nothing."""
    built = Block(channels, growth, layers, checkpointing=False)
    for parameter in built.parameters():
        nn.init.normal_(parameter, 0.1 if parameter.dim() == 1 else 0, 0.5)
    return built.to(DEVICE)


def results(model, x, upstream, backend):
    """Output, gradients and buffers by name."""
    x = x.detach().clone().requires_grad_()
    with nc.backend(backend):
        y = model(x)
        y.backward(upstream)
    grads = {name: parameter.grad for name, parameter in model.named_parameters()}
    return {"y": y.detach(), "x": x.grad, **grads, **dict(model.named_buffers())}


def assert_close(found, exact, tolerance):
    for name, value in exact.items():
        scale = value.double().abs().max().clamp_min(1e-2)
        off = (found[name].double() - value).abs().max() / scale
        assert off < tolerance, f"{name} is off by {off:.1e}"


@pytest.mark.parametrize(
    ("count", "size", "channels", "growth", "layers"),
    [
        (2, (4, 4), 16, 4, 3),  # one tile of pixels, which it does not fill
        (3, (8, 8), 20, 12, 3),  # several tiles, the last one not full; channels padded to 32
        (1, (6, 10), 64, 12, 2),  # more than one tile of channels in the last layer; not square
    ],
)
@pytest.mark.parametrize("grid", [1, dense_block.GRID])  # how many tiles of pixels are summed up in one loop
def test_kernels_compute_values_gradients_and_statistics(count, size, channels, growth, layers, grid, monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    monkeypatch.setattr(dense_block, "GRID", grid)
    monkeypatch.setattr(dense_block, "FEW", 0 if grid == 1 else dense_block.FEW)  # whole tiles, and halves
    model = block(channels, growth, layers)
    x = 2 * torch.randn(count, channels, *size, device=DEVICE) + 1
    upstream = torch.randn(count, channels + growth * layers, *size, device=DEVICE)
    exact = results(copy.deepcopy(model).double(), x.double(), upstream.double(), "torch")
    assert_close(results(model, x, upstream, "triton"), exact, 1e-5)


@pytest.mark.parametrize(("count", "size", "channels"), [(2, (4, 4), 16), (1, (6, 10), 64)])
def test_evaluation_uses_each_layers_running_statistics(count, size, channels, monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    model = block(channels, 12, 3).eval()
    for name, buffer in model.named_buffers():
        if "running" in name:
            buffer.uniform_(0.5, 2)
    x = torch.randn(count, channels, *size, device=DEVICE)
    with torch.no_grad(), nc.backend("torch"):
        exact = copy.deepcopy(model).double()(x.double())
    with torch.no_grad(), nc.backend("triton"):
        assert model.has_kernels(x)
        found = model(x)
    assert_close({"y": found}, {"y": exact}, 1e-5)


def test_what_is_not_a_number_stays_so():
    model = block(16, 4, 2).eval()
    model[0].norm.running_mean[3] = torch.nan
    x = torch.randn(2, 16, 4, 4, device=DEVICE)
    with torch.no_grad(), nc.backend("triton"):
        assert model(x)[:, 16:].isnan().all()


@pytest.mark.parametrize("shape", [(2, 20, 8, 8), (16, 8, 8)])
def test_wrong_shapes_are_torchs_to_refuse(shape):
    model, x = block(16, 4, 1), torch.randn(shape, device=DEVICE)
    with nc.backend("triton"), pytest.raises((RuntimeError, ValueError), match=r"running_mean|4D input"):
        model(x)


def test_float32_has_smaller_tiles():
    """Compiled for sm_86 and sm_90 they take at most 66 KB of shared memory; those of 16 bits would take up to 199."""
    features = torch.empty(dense_block.FEW + 1, 16)
    assert dense_block.forward_tile(features)["BM"] == 64
    assert dense_block.forward_tile(features[:9])["BM"] == 32
    assert dense_block.backward_tile(features)["BM"] == 32
    half = features.bfloat16()
    assert dense_block.forward_tile(half) == dense_block.FORWARD
    assert dense_block.backward_tile(half) == dense_block.BACKWARD


def test_statistics_of_features_far_from_zero():
    model = block(16, 4, 1)
    x = 1_000 + torch.randn(4, 16, 8, 8, device=DEVICE)
    with nc.backend("triton"):
        model(x)
    expected = 0.9 + 0.1 * x.double().var((0, 2, 3))
    torch.testing.assert_close(model[0].norm.running_var.double(), expected, rtol=1e-4, atol=0)


@pytest.mark.skipif(DEVICE == "cpu", reason="needs a GPU")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_kernels_under_autocast_are_as_near_as_torch_is(dtype):
    model = block(16, 12, 8)
    x = torch.randn(16, 16, 16, 16, device=DEVICE).to(dtype)
    upstream = torch.randn(16, 16 + 12 * 8, 16, 16, device=DEVICE).to(dtype)
    exact = results(copy.deepcopy(model).double(), x.double(), upstream.double(), "torch")
    off = {}
    for backend in ("torch", "triton"):
        with torch.autocast("cuda", dtype):
            found = results(copy.deepcopy(model), x, upstream, backend)
        assert found["y"].dtype == dtype
        relative = [
            (found[name].double() - value).norm() / value.double().norm()
            for name, value in exact.items()
            if "tracked" not in name
        ]
        assert max(relative) < 0.3
        off[backend] = torch.stack(relative).log().mean().exp()
    # A unit that rounding turns on or off moves many gradients, so a single one says little, and even the mean varies.
    assert off["triton"] < 2 * off["torch"]


def used(model, x):
    """Whether the first block ran as kernels."""
    with nc.backend("triton"):
        return model.blocks[0].has_kernels(x)


def test_layers_that_a_user_changed_are_called():
    def built():
        return DenseNet(10, depth=7, growth=4).to(DEVICE)

    x = torch.randn(2, 16, 8, 8, device=DEVICE)
    assert used(built(), x)
    model = built()
    model.blocks[0][0].convolution.register_forward_hook(lambda *_: None)
    assert not used(model, x)
    model = built()
    nc.recode(model, ["blocks.0.0.convolution"], nc.ProgramConfig())
    assert not used(model, x)
    model = built()
    model.blocks[0][0].norm.eval()
    assert not used(model, x)
    assert not used(built().double(), x.double())
    assert not used(built().eval(), x)
    with torch.no_grad():
        assert not used(built(), x)
        assert used(built().eval(), x)
        model = built().eval()
        model.blocks[0][0].norm.train()
        assert not used(model, x)
        model = built().eval()
        model.blocks[0][0].norm.running_mean = None
        assert not used(model, x)
    assert built().blocks[0].has_kernels(x) == (DEVICE == "cuda")


def test_second_derivatives_are_refused():
    model = block(16, 4, 1)
    with nc.backend("triton"):
        loss = model(torch.randn(2, 16, 4, 4, device=DEVICE)).square().sum()
        with pytest.raises(RuntimeError, match="cannot itself be differentiated"):
            torch.autograd.grad(loss, list(model.parameters()), create_graph=True)
