"""HyperLinear against a reference that builds every weight."""

import torch
from baseline_helpers import assert_agrees_with_reference, build_random

import neurocoder as nc


def reference(layer, x, control):
    """Generate the scales of each input, scale the rows of the weight, multiply."""
    outputs = []
    for n in range(len(x)):
        z = x[n] if control is None else control[n]
        hidden = torch.tanh(layer.hidden_weight @ z + layer.hidden_bias)
        scales = layer.scale_weight @ hidden + layer.scale_bias + 1
        weight = torch.diag(scales) @ layer.base
        outputs.append(x[n] @ weight.T + layer.bias)
    return torch.stack(outputs), torch.zeros((), dtype=x.dtype)


def test_agrees_with_the_reference():
    layer, x = build_random("hyper", 7, 3, dtype=torch.float64), torch.randn(5, 7, dtype=torch.float64)
    assert_agrees_with_reference(layer, reference, x)


def test_agrees_with_the_reference_under_a_control():
    layer = build_random("hyper", 7, 3, control_dim=2, dtype=torch.float64)
    x, z = torch.randn(5, 7, dtype=torch.float64), torch.randn(5, 2, dtype=torch.float64)
    assert_agrees_with_reference(layer, reference, x, z)


def test_starts_as_a_plain_layer():
    layer, x = nc.HyperLinear(7, 3), torch.randn(5, 7)
    torch.testing.assert_close(layer.code(x), torch.ones(5, 3))
    torch.testing.assert_close(layer(x), torch.nn.functional.linear(x, layer.base, layer.bias))
