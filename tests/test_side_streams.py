"""The branches of CUDA graphs, without a GPU: no two that may run at the same time disturb each other."""

import pytest
import torch

import neurocoder as nc
from conftest import randomised, small

pytest.importorskip("triton")
pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="streams are made up here")


@pytest.fixture
def watch(monkeypatch):
    from races import watching

    with watching(monkeypatch, "neurocoder.program.dispatch.is_traced") as found:
        yield found


def forward_and_backward(watch, *layers, wants_x=True):
    """Through all layers, and a look at every gradient afterwards."""
    from races import look_at

    x = torch.randn(5, layers[0].in_features, requires_grad=wants_x)
    with watch:
        y = x
        for layer in layers:
            y = layer(y).sin()
        y.sum().backward()
        look_at((x, *(parameter for layer in layers for parameter in layer.parameters())))


@pytest.mark.parametrize("wants_x", [True, False])
@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("residual", [True, "plain", False])
def test_no_races_in_a_layer(watch, residual, steps, wants_x):
    program = small(residual=residual, steps=steps)
    layers = [randomised(nc.Linear(*size, program=program)) for size in ((7, 5), (5, 6))]
    forward_and_backward(watch, *layers, wants_x=wants_x)


def test_no_races_in_bfloat16(watch):
    layer = randomised(nc.Linear(7, 5, program=small(), dtype=torch.bfloat16))
    x = torch.randn(4, 7, dtype=torch.bfloat16, requires_grad=True)
    with watch:
        layer(x).sum().backward()
        for tensor in (x, *layer.parameters()):
            tensor.grad.add(1)


def test_no_races_in_the_orthogonal_losses(watch):
    from neurocoder.program.kernels.orthogonality import OrthogonalLoss

    slots = [torch.randn(4, width, requires_grad=True) for width in (7, 5, 6, 3, 9, 8, 5, 5, 2, 4, 6, 7)]
    with watch:
        OrthogonalLoss.apply([0.1] * 6, *slots).mul(2).backward()
        for tensor in slots:
            tensor.grad.add(1)


@pytest.mark.parametrize("method", ["join", "await_mark"])
@pytest.mark.parametrize("steps", [1, 3])
def test_a_missing_wait_is_found(monkeypatch, watch, method, steps):
    from neurocoder.ops.launch import SideStream
    from races import Race

    monkeypatch.setattr(SideStream, method, lambda *args: None)
    with pytest.raises(Race):
        forward_and_backward(watch, randomised(nc.Linear(7, 5, program=small(steps=steps))))


@pytest.mark.parametrize("steps", [1, 3])
def test_memory_that_is_given_back_too_early_is_found(monkeypatch, watch, steps):
    from neurocoder.program.kernels import gpu
    from races import Race

    gradients = gpu.Gradients
    monkeypatch.setattr(gpu, "Gradients", lambda *args, alive, **named: gradients(*args, **named))
    with pytest.raises(Race):
        forward_and_backward(watch, randomised(nc.Linear(7, 5, program=small(steps=steps))))
