"""What the tests of the baselines share."""

import torch

import neurocoder as nc
from conftest import randomised

KINDS = {
    "mixture": (nc.MixtureLinear, nc.MixtureConfig(experts=5, active=2)),
    "stored program": (nc.StoredProgramLinear, nc.StoredProgramConfig(programs=4, key_dim=3)),
    "hyper": (nc.HyperLinear, nc.HyperConfig(hidden=5)),
}


def build(kind, d_in=6, d_out=4, bias=True, **options):
    """A layer with its starting values."""
    layer_type, config = KINDS[kind]
    return layer_type(d_in, d_out, bias, config, **options)


def build_random(kind, *sizes, **options):
    """A layer with every parameter random, the layer in training mode."""
    return randomised(build(kind, *sizes, **options))


def loss_gradients(layer, outputs, *others):
    """The gradients by parameter name, and those of other tensors, of a loss that weighs every output differently."""
    weight = torch.linspace(-1, 2, outputs.numel(), dtype=outputs.dtype).reshape(outputs.shape)
    loss = (weight * outputs).sum() + layer.auxiliary_loss()
    names, parameters = zip(*layer.named_parameters(), strict=True)
    grads = torch.autograd.grad(loss, [*parameters, *others], retain_graph=True)
    return dict(zip([*names, *map(str, range(len(others)))], grads, strict=True))


def assert_same(actual, expected, **tolerance):
    """The same gradients under the same names."""
    assert actual.keys() == expected.keys()
    for name, grad in actual.items():
        torch.testing.assert_close(grad, expected[name], msg=lambda m, n=name: f"{n}: {m}", **tolerance)


def assert_agrees_with_reference(layer, reference, x, control=None):
    """Outputs, and all gradients of them and of the auxiliary loss, as those of `reference(layer, x, control)`.

    The reference returns outputs and auxiliary loss; both it and the layer may draw random numbers.
    """
    leaves = [tensor.requires_grad_() for tensor in (x, control) if tensor is not None]
    torch.manual_seed(1)
    y = layer(x, control)
    grads = loss_gradients(layer, y, *leaves)
    torch.manual_seed(1)
    expected, auxiliary = reference(layer, x, control)
    weight = torch.linspace(-1, 2, y.numel(), dtype=y.dtype).reshape(y.shape)
    expected_grads = torch.autograd.grad(
        (weight * expected).sum() + auxiliary, [*layer.parameters(), *leaves], materialize_grads=True
    )
    torch.testing.assert_close(y, expected, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(layer.auxiliary_loss(), auxiliary, rtol=1e-10, atol=1e-10)
    assert_same(grads, dict(zip(grads, expected_grads, strict=True)), rtol=1e-10, atol=1e-10)
