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
        size: int | None = None,
    ) -> None:
        super().__init__()
        self.sine, self.frequency = features == "siren", frequency
        self.features = nn.Identity() if self.sine else Fourier()
        widths = [2 if self.sine else Fourier.width, *hidden]
        chosen = CONTENDERS[contender]
        size = chosen.size and (size or chosen.size)
        self.layers = nn.ModuleList()
        for place, (d_in, d_out) in enumerate(pairwise(widths)):
            scale = 1.0
            if self.sine:  # the usual start: weights uniform within 1/d_in first, then within sqrt(6/d_in)/w0
                scale = math.sqrt(1 / (3 * d_in)) if place == 0 else math.sqrt(2) / frequency
            self.layers.append(chosen.build(d_in, d_out, latent, scale, place, size))
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
    build: Callable[[int, int, int, float, int, int | None], nn.Module]
    """Called with d_in, d_out, the latent's width, the scale of the outputs, the layer's place, and the size; the
    layer."""
    size: int | None = None
    """Slots, rank or members, unless a better number was found; None: the form has none."""
    constant: bool = False
    """Every image has the same latent."""


def everywhere(kind: Callable[..., nn.Module], **fixed: Any) -> Callable[..., nn.Module]:
    """The same kind of layer at all places."""

    def build(d_in: int, d_out: int, latent: int, scale: float, place: int, size: int | None = None) -> nn.Module:
        return kind(d_in, d_out, latent, scale, *([] if size is None else [size]), **fixed)

    return build


def at(steered: int, kind: type[nn.Module]) -> Callable[..., nn.Module]:
    """This kind of layer at one place, unsteered ones elsewhere."""
    one = everywhere(kind)

    def build(d_in: int, d_out: int, latent: int, scale: float, place: int, size: int | None = None) -> nn.Module:
        if place != steered:
            return layers.Unsteered(d_in, d_out, latent, scale)
        return one(d_in, d_out, latent, scale, place, size)

    return build


def core(
    d_in: int, d_out: int, latent: int, scale: float, slots: int = 12, softmax: bool = False, **settings: Any
) -> nn.Module:
    """A core layer whose residual starts as every other contender's weight. A softmax gives each program a share of
    1 / K: there, they start K times as large."""
    slots = slots if settings.get("diagonal") else min(slots, d_in)
    layer = nc.CoreLinear(d_in, d_out, core=nc.CoreConfig(slots=slots, **settings), control_dim=latent)
    plain_start(layer, scale)
    if softmax and layer.memory is not None:
        with torch.no_grad():
            layer.memory.cores.mul_(latent)
    return layers.Coded(layer, latent, softmax)


def attention(
    d_in: int, d_out: int, latent: int, scale: float, slots: int = 12, heads: int = 3, hidden: int = 8
) -> nn.Module:
    """The paper's programs, composed by attention. Sharper than the paper's, and without the orthogonal loss, which
    would be most of the gradient."""
    sizes: dict[str, Any] = {"slots": slots, "key_dim": 3, "heads": heads, "hidden": hidden}
    program = nc.ProgramConfig(**sizes, steps=2, least_used=4, orthogonality=0.0, sharpness=10.0)
    layer = nc.Linear(d_in, d_out, program=program, control_dim=latent)
    plain_start(layer, scale)
    with torch.no_grad():
        layer.memory.V.mul_(scale)
    return layers.Coded(layer, latent)


def plain_start(layer: nc.CodedLinear, scale: float) -> None:
    """Start residual and bias as every other contender's weight and bias."""
    assert layer.R is not None
    assert layer.bias is not None
    nn.init.normal_(layer.R, std=scale / math.sqrt(layer.in_features))
    nn.init.zeros_(layer.bias)


CONTENDERS: dict[str, Contender] = {
    "core": Contender("core, linear in z", everywhere(core), 12),
    "core-shift": Contender("core with shift", everywhere(core, shift=True), 12),
    "diagonal": Contender("diagonal core", everywhere(core, diagonal=True), 48),
    "softmax": Contender("softmax core", everywhere(core, softmax=True), 12),
    "attention": Contender("attention programs", everywhere(attention), 12),
    "hyper": Contender("full hypernetwork", everywhere(layers.FullHyper)),
    "low-rank": Contender("low-rank hypernetwork", everywhere(layers.LowRankHyper), 4),
    "basis": Contender("basis mixing (mNIF)", everywhere(layers.Basis), 16),
    "patterns": Contender("Instance Pattern Composers", at(1, layers.Pattern), 8),
    "film": Contender("FiLM", everywhere(layers.FiLM)),
    "shift": Contender("shift (COIN++, functa)", everywhere(layers.Shift)),
    "concatenated": Contender("concatenated latent", at(0, layers.Shift)),
    "core-constant": Contender("core, one latent for all", everywhere(core), 12, constant=True),
    "attention-constant": Contender("attention, one latent for all", everywhere(attention), 12, constant=True),
}
"""By their names in variants; the last ones are controls."""


def awaken(network: nn.Module) -> None:
    """For latents that start at zero: V of core layers as large as the residual's weights, since it has no gradient if
    it is zero too, and shifts as COIN++ starts them."""
    for module in network.modules():
        if isinstance(module, layers.Shift):
            nn.init.normal_(module.S, std=layers.SHIFT / math.sqrt(module.S.shape[1]))
    for layer in nc.coded_layers(network).values():
        if isinstance(layer, nc.CoreLinear) and layer.memory is not None and layer.R is not None:
            nn.init.orthogonal_(layer.memory.V, float(layer.R.detach().std()) * math.sqrt(layer.in_features))


def parameters(network: nn.Module) -> int:
    """How many numbers a network has."""
    return sum(entry.numel() for entry in network.parameters())


def hidden_widths(
    contender: str, features: str, depth: int, channels: int, latent: int, target: int, size: int | None = None
) -> list[int]:
    """Widths of the hidden layers, equal within one, with which a network comes closest to a number of parameters."""

    def widths(total: int) -> list[int]:
        return [(total + place) // depth for place in range(depth)]

    def count(total: int) -> int:
        with torch.device("meta"):
            return parameters(FieldNetwork(contender, features, widths(total), channels, latent, size=size))

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
