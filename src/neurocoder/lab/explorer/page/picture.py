"""The steered picture on the explorer's page: a small network draws digits, and two numbers decide its weights."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

import neurocoder as nc

from . import packaged

FILE = Path(__file__).parent / "picture.safetensors"
_KEY = "neurocoder.explorer.picture"
CORE = nc.CoreConfig(slots=12)
WAVES, WIDTH, PROGRAMS, ENCODER = 16, 40, 8, 32
"""Frequencies, units of a layer, programs of a layer, and units of the network that blends them."""


class Waves(nn.Module):
    """Sines and cosines of a point: (..., 2) -> (..., 2 * WAVES)."""

    frequencies: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("frequencies", 1.5 * torch.randn(2, WAVES))

    def forward(self, points: Tensor) -> Tensor:
        turns = points @ self.frequencies
        return torch.cat([turns.sin(), turns.cos()], -1)


class Picture(NamedTuple):
    """A trained network, and the digits that it draws."""

    steered: nc.Steered
    """Points (N, T, 2) by latents (N, 2) to logits of brightness (N, T, 1)."""
    latents: Tensor
    """Of the digits, from -1 to 1 (N, 2)."""
    images: Tensor
    """The digits, as bytes (N, 28, 28)."""
    labels: Tensor
    """Bytes (N,)."""
    facts: Mapping[str, Any]
    """`psnr` of the digits as they are drawn, in dB; and the options of the training."""


def build() -> nc.Steered:
    """The untrained network, from torch's generator: two layers are composed, for a blend of eight programs."""
    model = nn.Sequential(
        Waves(),
        nc.CoreLinear(2 * WAVES, WIDTH, core=CORE, control_dim=PROGRAMS),
        nn.SiLU(),
        nc.CoreLinear(WIDTH, WIDTH, core=CORE, control_dim=PROGRAMS),
        nn.SiLU(),
        nn.Linear(WIDTH, 1),
    )
    encoder = nn.Sequential(nn.Linear(2, ENCODER), nn.Tanh(), nn.Linear(ENCODER, PROGRAMS))
    return nc.steer(model, encoder)


def points(side: int) -> Tensor:
    """The centres of pixels (side * side, 2), from -1 to 1, row by row: x to the right, y down."""
    line = (torch.arange(side) + 0.5) * 2 / side - 1
    down, right = torch.meshgrid(line, line, indexing="ij")
    return torch.stack([right, down], -1).flatten(0, 1)


def drawn(steered: nc.Steered, latents: Tensor, side: int = 28) -> Tensor:
    """Brightness from 0 to 1 (N, side * side) of the pictures of latents (N, 2)."""
    grid = points(side).to(latents)
    return steered(grid.expand(len(latents), -1, -1), by=latents).squeeze(-1).sigmoid()


def write(picture: Picture, target: Path = FILE) -> None:
    """Atomic write; the facts are in the metadata."""
    kept = {"latents": picture.latents, "images": picture.images, "labels": picture.labels}
    packaged.write(target, _KEY, {**kept, **picture.steered.state_dict()}, picture.facts)


def load(source: Path = FILE) -> Picture:
    """The packaged picture, or another."""

    def made(tensors: dict[str, Tensor], facts: dict[str, Any]) -> Picture:
        latents, images, labels = (tensors.pop(name) for name in ("latents", "images", "labels"))
        steered = build()
        steered.load_state_dict(tensors)
        return Picture(steered.eval(), latents, images, labels, facts)

    return packaged.read(source, _KEY, "steered picture", made)


def data(picture: Picture) -> dict[str, Any]:
    """What the page gets."""
    return {
        "tensors": {name: packaged.packed(value) for name, value in picture.steered.state_dict().items()},
        "latents": picture.latents.tolist(),
        "images": packaged.encoded(picture.images),
        "labels": picture.labels.tolist(),
        "facts": {
            "psnr": picture.facts["psnr"],
            "digits": len(picture.labels),
            "parameters": sum(value.numel() for value in picture.steered.parameters()),
        },
    }
