"""StoredProgramLinear against a reference that builds every weight."""

import math

import torch
from baseline_helpers import assert_agrees_with_reference, build_random
from torch import nn
from torch.nn.functional import cosine_similarity, linear, softplus

import neurocoder as nc


def reference(layer, x, control):
    """Attend to each program by its key, sum the programs, multiply."""
    outputs = []
    for n in range(len(x)):
        signal = linear(x[n] if control is None else control[n], layer.query_weight, layer.query_bias)
        query, strength = signal[:-1], softplus(signal[-1])
        scores = torch.stack([strength * cosine_similarity(query, key, dim=0) for key in layer.keys])
        attention = scores.exp() / scores.exp().sum()
        weight = sum(share * program for share, program in zip(attention, layer.bank, strict=True))
        outputs.append(weight @ x[n] + layer.bias)
    return torch.stack(outputs), torch.zeros((), dtype=x.dtype)


def test_agrees_with_the_reference():
    layer, x = build_random("stored program", 7, 3, dtype=torch.float64), torch.randn(5, 7, dtype=torch.float64)
    assert_agrees_with_reference(layer, reference, x)


def test_agrees_with_the_reference_under_a_control():
    layer = build_random("stored program", 7, 3, control_dim=2, dtype=torch.float64)
    x, z = torch.randn(5, 7, dtype=torch.float64), torch.randn(5, 2, dtype=torch.float64)
    assert_agrees_with_reference(layer, reference, x, z)


def test_attention_by_hand():
    layer = nc.StoredProgramLinear(2, 3, stored_program=nc.StoredProgramConfig(programs=3, key_dim=2))
    with torch.no_grad():
        layer.keys.copy_(torch.tensor([[5.0, 0.0], [0.0, 1.0], [-1.0, 0.0]]))  # cosines 1, 0, -1
        layer.query_weight.copy_(torch.tensor([[3.0, 0.0], [0.0, 0.0], [0.0, 1.0]]))
        layer.query_bias.zero_()
    beta = math.log(1 + math.exp(2.0))
    expected = torch.tensor([beta, 0.0, -beta]).exp()
    torch.testing.assert_close(layer.code(torch.tensor([[0.7, 2.0]]))[0], expected / expected.sum())


def test_only_the_direction_of_query_and_key_matters():
    layer, x = build_random("stored program"), torch.randn(5, 6)
    before = layer.code(x)
    with torch.no_grad():
        layer.keys.mul_(3.0)
        layer.query_weight[:-1].mul_(7.0)
        layer.query_bias[:-1].mul_(7.0)
    torch.testing.assert_close(layer.code(x), before)
    with torch.no_grad():
        layer.query_bias[-1].add_(2.0)  # the strength does matter
    assert not torch.allclose(layer.code(x), before, atol=0.01)


def test_recoding_starts_with_one_share_for_every_input():
    layer = nc.StoredProgramLinear.from_plain(nn.Linear(6, 4), nc.StoredProgramConfig(programs=4))
    share = layer.code(torch.randn(9, 6))
    torch.testing.assert_close(share, share[:1].expand(9, 4))
    torch.testing.assert_close(share.sum(-1), torch.ones(9))
    assert not torch.allclose(layer.bank[0], layer.bank[1])


def test_keys_are_memory_and_do_not_decay():
    layer = nc.StoredProgramLinear(6, 4, stored_program=nc.StoredProgramConfig(programs=4, key_dim=3))
    assert nc.count_parameters(layer) == {"memory": 108, "controller": 28, "residual": 0, "main": 4, "total": 140}
    groups = nc.parameter_groups(layer, lr=1e-3, weight_decay=0.1)
    decayed = {id(p) for group in groups if group["weight_decay"] for p in group["params"]}
    assert decayed == {id(layer.bank), id(layer.query_weight)}
