"""The layers that are compared with core layers: each against its form for one image, weight by weight."""

import itertools
import math

import pytest
import torch

from neurocoder.lab.experiments import load
from neurocoder.lab.experiments.fields import layers
from neurocoder.lab.experiments.fields.models import (
    CONTENDERS,
    DEPTHS,
    TOLERANCE,
    FieldNetwork,
    Fourier,
    awaken,
    hidden_widths,
    parameters,
)

D_IN, D_OUT, LATENT = 5, 7, 3


def shift(own, z, n):
    return own["W"], own["b"] + own["S"] @ z[n]


def film(own, z, n):
    gain = torch.stack([1 + sum(own["G"][o, k] * z[n, k] for k in range(LATENT)) for o in range(D_OUT)])
    return torch.diag(gain) @ own["W"], gain * own["b"] + own["S"] @ z[n]


def hyper(own, z, n):
    return own["W"] + sum(z[n, k] * own["H"][k] for k in range(LATENT)), own["b"] + own["S"] @ z[n]


def low_rank(own, z, n):
    A = own["A_0"] + sum(z[n, k] * own["A"][k] for k in range(LATENT))
    B = own["B_0"] + sum(z[n, k] * own["B"][k] for k in range(LATENT))
    return own["W"] + (A @ B).mT, own["b"]


def basis(own, z, n):
    a = own["q"] + own["Q"] @ z[n]
    members = range(len(a))
    return sum(a[k] * own["M"][k].mT for k in members), sum(a[k] * own["m"][k] for k in members)


def pattern(own, z, n):
    V = own["V_0"] + sum(z[n, k] * own["V"][k] for k in range(LATENT))
    return (V @ own["U"]).mT, own["b"]


LITERAL = {
    layers.Shift: shift,
    layers.FiLM: film,
    layers.FullHyper: hyper,
    layers.LowRankHyper: low_rank,
    layers.Basis: basis,
    layers.Pattern: pattern,
}


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("kind", LITERAL)
def test_each_image_has_its_own_weight(kind, shared):
    torch.manual_seed(0)
    layer = kind(D_IN, D_OUT, LATENT).double()
    with torch.no_grad():
        for entry in layer.parameters():
            entry.normal_()  # zeros at the start would hide errors
    x, z = torch.randn(1 if shared else 4, 6, D_IN).double(), torch.randn(4, LATENT).double()
    y, own = layer(x, z), dict(layer.named_parameters())
    assert y.shape == (4, 6, D_OUT)
    for n in range(4):
        W, b = LITERAL[kind](own, z, n)
        torch.testing.assert_close(y[n], x[0 if shared else n] @ W.mT + b)


def test_a_softmax_core_blends_its_programs():
    torch.manual_seed(0)
    coded = CONTENDERS["softmax"].build(D_IN, D_OUT, LATENT, 1.0, 0).double()
    layer = coded.layer
    with torch.no_grad():
        layer.memory.V.normal_()
    x, z = torch.randn(1, 6, D_IN).double(), torch.randn(4, LATENT).double()
    h = torch.softmax(z @ coded.reads.weight.mT + coded.reads.bias, 1)
    for n in range(4):
        C = layer.memory.C_0 + sum(h[n, k] * layer.memory.cores[k] for k in range(LATENT))
        W = layer.R + layer.memory.V.mT @ C @ layer.memory.U
        torch.testing.assert_close(coded(x, z)[n], x[0] @ W.mT + layer.bias)


def test_fourier_features_by_hand():
    found = Fourier()(torch.tensor([[0.25, -1.0]]))
    assert found.shape == (1, Fourier.width)
    angles = [math.pi * 2**octave * place for octave in range(4) for place in (0.25, -1.0)]
    wanted = [0.25, -1.0, *map(math.sin, angles), *map(math.cos, angles)]
    torch.testing.assert_close(found, torch.tensor([wanted]), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("features", ["fourier", "siren"])
def test_contenders_have_equally_many_parameters(features):
    presets = load("fields").presets
    for name, channels, config in itertools.product(CONTENDERS, (1, 3), (presets["equal"], presets["smoke"])):
        sizes = channels, config.latent, config.parameters
        hidden = hidden_widths(name, features, DEPTHS[features], *sizes)
        assert len(hidden) == DEPTHS[features]
        assert max(hidden) - min(hidden) <= 1
        with torch.device("meta"):
            count = parameters(FieldNetwork(name, features, hidden, *sizes[:2]))
        assert abs(count - config.parameters) <= TOLERANCE * config.parameters, name
    with pytest.raises(ValueError, match="parameters must be a number that hyper can have, got 50"):
        hidden_widths("hyper", features, DEPTHS[features], 1, 24, 50)


def test_shifts_in_a_siren_have_the_size_of_coin():
    config = load("fields").presets["best"]
    sizes = config.depth, 3, config.latent, config.parameters
    assert hidden_widths("shift", "siren", *sizes) == [512] * 9
    for name in ("core", "film", "hyper"):
        assert hidden_widths(name, "siren", *sizes)


def test_awakened_core_layers_have_a_gradient_at_zero():
    torch.manual_seed(0)
    network, z = FieldNetwork("core", "siren", [8, 8, 8], 1, 3), torch.zeros(1, 3, requires_grad=True)
    x = torch.rand(10, 2)
    assert not torch.autograd.grad(network(x, z).square().mean(), z)[0].any()
    awaken(network)
    assert torch.autograd.grad(network(x, z).square().mean(), z)[0].all()
    shifts = FieldNetwork("shift", "siren", [200, 200], 1, 24, frequency=50.0)
    awaken(shifts)
    assert shifts.layers[1].S.std().item() == pytest.approx(0.5 / math.sqrt(24), rel=0.05)


@pytest.mark.parametrize("name", [name for name in CONTENDERS if name not in ("concatenated", "basis", "patterns")])
def test_the_layers_of_a_siren_start_in_the_range_of_the_sine(name):
    torch.manual_seed(0)
    network = FieldNetwork(name, "siren", [60, 60, 60], 1, 24)
    x, z = 2 * torch.rand(1, 500, 2) - 1, 0.1 * torch.randn(10, 24)  # latents as they start
    for layer in network.layers:
        y = 30 * layer(x, z)
        x = y.sin()
    spread = y.std(1).mean()
    assert 0.6 < spread < 1.5  # as in the SIREN paper: unit variance before each sine
    assert y.mean(1).abs().mean() < 0.4 * spread  # no latent moves all points of an image far


def test_contenders_differ_at_the_start_by_their_steering_alone():
    for name in CONTENDERS:
        torch.manual_seed(0)
        network = FieldNetwork(name, "fourier", [400, 400], 1, 24)
        x = torch.randn(1, 2000, 18)
        y = network.layers[0](x, torch.zeros(1, 24))
        assert 0.8 < y.std() < 1.25, name


def test_programs_of_a_softmax_core_matter_as_much_as_those_of_a_core():
    spreads = []
    for name in ("core", "softmax"):
        torch.manual_seed(0)
        layer = CONTENDERS[name].build(30, 30, 24, 1.0, 0, 12)
        z = torch.randn(500, 24)
        h = z if name == "core" else layer.reads(z).softmax(-1)
        spreads.append((h @ layer.layer.memory.cores.flatten(1)).std(0).mean().item())
    assert 0.3 < spreads[1] / spreads[0] < 3
