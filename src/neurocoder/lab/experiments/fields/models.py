"""The contenders: networks from places to colours that a latent steers, at equal numbers of parameters."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu

import neurocoder as nc

from . import layers

Features = Literal["fourier", "siren"]
FEATURES: dict[str, str] = {"fourier": "Fourier features", "siren": "SIREN"}
OCTAVES = 4
"""Frequencies pi, 2 pi, ... of the Fourier features, in x and in y."""
DEPTHS = {"fourier": 2, "siren": 3}
"""Hidden layers, unless a config says otherwise; all can be steered, the output layer is not."""
SLOTS, DIAGONAL_SLOTS = 12, 48
TOLERANCE = 0.03
"""Numbers of parameters are equal within so much."""


class Fourier(nn.Module):
    """x, y, and sin and cos of their multiples (T, 2) -> (T, 2 + 4 OCTAVES)."""

    width = 2 + 4 * OCTAVES

    def forward(self, places: Tensor) -> Tensor:
        turns = torch.cat([places * (math.pi * 2**octave) for octave in range(OCTAVES)], -1)
        return torch.cat([places, turns.sin(), turns.cos()], -1)


class FieldNetwork(nn.Module):
    """`colours = out(layers(features(place), z))`: steered layers with GELU, or with `sin(w0 y)` (SIREN)."""

    def __init__(
        self,
        contender: str,
        features: str,
        hidden: Sequence[int],
        channels: int,
        latent: int,
        frequency: float = 30.0,
    ) -> None:
        super().__init__()
        self.sine, self.frequency = features == "siren", frequency
        self.features = nn.Identity() if self.sine else Fourier()
        widths = [2 if self.sine else Fourier.width, *hidden]
        build = CONTENDERS[contender].build
        self.layers = nn.ModuleList()
        for place, (d_in, d_out) in enumerate(pairwise(widths)):
            scale = 1.0
            if self.sine:  # the usual start: weights uniform within 1/d_in first, then within sqrt(6/d_in)/w0
                scale = math.sqrt(1 / (3 * d_in)) if place == 0 else math.sqrt(2) / frequency
            self.layers.append(build(d_in, d_out, latent, scale, place))
        self.output = nn.Linear(widths[-1], channels)
        if self.sine:
            bound = math.sqrt(6 / widths[-1]) / frequency
            nn.init.uniform_(self.output.weight, -bound, bound)
        nn.init.constant_(self.output.bias, 0.5)

    def forward(self, places: Tensor, z: Tensor) -> Tensor:
        """Places (T, 2) and latents (N, L) -> colours (N, T, C)."""
        x = self.features(places).unsqueeze(0)
        for layer in self.layers:
            y = layer(x, z)
            x = torch.sin(self.frequency * y) if self.sine else gelu(y, approximate="tanh")
        return self.output(x.expand(len(z), -1, -1))


class Contender(NamedTuple):
    """A way to steer."""

    title: str
    build: Callable[[int, int, int, float, int], nn.Module]
    """Called with d_in, d_out, the latent's width, the scale of the outputs and the layer's place; the layer."""
    constant: bool = False
    """Every image has the same latent."""


def everywhere(kind: Callable[..., nn.Module], **sizes: Any) -> Callable[..., nn.Module]:
    """The same kind of layer at all places."""
    return lambda d_in, d_out, latent, scale, place: kind(d_in, d_out, latent, scale, **sizes)


def at(steered: int, kind: type[nn.Module]) -> Callable[..., nn.Module]:
    """This kind of layer at one place, unsteered ones elsewhere."""
    return lambda d_in, d_out, latent, scale, place: (kind if place == steered else layers.Unsteered)(
        d_in, d_out, latent, scale
    )


def core(
    d_in: int, d_out: int, latent: int, scale: float, slots: int = SLOTS, softmax: bool = False, **settings: Any
) -> nn.Module:
    """A core layer whose residual starts as every other contender's weight."""
    slots = slots if settings.get("diagonal") else min(slots, d_in)
    layer = nc.CoreLinear(d_in, d_out, core=nc.CoreConfig(slots=slots, **settings), control_dim=latent)
    assert layer.R is not None
    assert layer.bias is not None
    nn.init.normal_(layer.R, std=scale / math.sqrt(d_in))
    nn.init.zeros_(layer.bias)
    return layers.Coded(layer, latent, softmax)


def attention(
    d_in: int, d_out: int, latent: int, scale: float, slots: int = SLOTS, heads: int = 3, hidden: int = 8
) -> nn.Module:
    """The paper's programs, composed by attention. Sharper than the paper's, and without the orthogonal loss, which
    would be most of the gradient."""
    sizes: dict[str, Any] = {"slots": slots, "key_dim": 3, "heads": heads, "hidden": hidden}
    program = nc.ProgramConfig(**sizes, steps=2, least_used=4, orthogonality=0.0, sharpness=10.0)
    layer = nc.Linear(d_in, d_out, program=program, control_dim=latent)
    if scale != 1:
        with torch.no_grad():
            assert layer.R is not None
            layer.R.mul_(scale)
            layer.memory.V.mul_(scale)
    return layers.Coded(layer, latent)


CONTENDERS: dict[str, Contender] = {
    "core": Contender("core, linear in z", everywhere(core)),
    "core-shift": Contender("core with shift", everywhere(core, shift=True)),
    "diagonal": Contender("diagonal core", everywhere(core, slots=DIAGONAL_SLOTS, diagonal=True)),
    "softmax": Contender("softmax core", everywhere(core, softmax=True)),
    "attention": Contender("attention programs", everywhere(attention)),
    "hyper": Contender("full hypernetwork", everywhere(layers.FullHyper)),
    "low-rank": Contender("low-rank hypernetwork", everywhere(layers.LowRankHyper)),
    "basis": Contender("basis mixing (mNIF)", everywhere(layers.Basis)),
    "patterns": Contender("Instance Pattern Composers", at(1, layers.Pattern)),
    "film": Contender("FiLM", everywhere(layers.FiLM)),
    "shift": Contender("shift (COIN++, functa)", everywhere(layers.Shift)),
    "concatenated": Contender("concatenated latent", at(0, layers.Shift)),
    "core-constant": Contender("core, one latent for all", everywhere(core), constant=True),
    "attention-constant": Contender("attention, one latent for all", everywhere(attention), constant=True),
}
"""By their names in variants; the last ones are controls."""


def awaken(network: nn.Module) -> None:
    """Start V of core layers as the residual's weights are: where all latents are zero, those have no gradient if V is
    zero too."""
    for layer in nc.coded_layers(network).values():
        if isinstance(layer, nc.CoreLinear) and layer.memory is not None and layer.R is not None:
            nn.init.orthogonal_(layer.memory.V, float(layer.R.detach().std()) * math.sqrt(layer.in_features))


def parameters(network: nn.Module) -> int:
    """How many numbers a network has."""
    return sum(entry.numel() for entry in network.parameters())


def hidden_widths(contender: str, features: str, depth: int, channels: int, latent: int, target: int) -> list[int]:
    """Widths of the hidden layers, equal within one, with which a network comes closest to a number of parameters."""

    def widths(total: int) -> list[int]:
        return [(total + place) // depth for place in range(depth)]

    def count(total: int) -> int:
        with torch.device("meta"):
            return parameters(FieldNetwork(contender, features, widths(total), channels, latent))

    low, high = 2 * depth, 4 * depth
    while count(high) < target:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if count(middle) < target else (low, middle)
    total = min((low, high), key=lambda total: abs(count(total) - target))
    found = count(total)
    if abs(found - target) > TOLERANCE * target:
        raise ValueError(f"parameters must be a number that {contender} can have, got {target:,}: {found:,} is nearest")
    return widths(total)
