"""The recorded episode on the explorer's page: Acrobot, and the programs that the actor composed at each step."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from . import packaged

FILE = Path(__file__).parent / "episode.safetensors"
_KEY = "neurocoder.explorer.episode"


class Episode(NamedTuple):
    """T steps of Acrobot: two links hang from a hinge, and a torque between them must swing the end above a line."""

    angles: Tensor
    """Of the upper link, 0 if it hangs, and of the lower one against it (T, 2)."""
    speeds: Tensor
    """Their angular velocities (T, 2)."""
    actions: Tensor
    """0, 1, 2: torque of -1, 0, 1 (T,)."""
    policy: Tensor
    """Probabilities of the actions (T, 3)."""
    attention: Tensor
    """Of the actor, over the slots of U and of V (T, 2, r, P), from 0 to 1."""
    weights: Tensor
    """The actor's weight for this state (T, 6, 3)."""
    facts: Mapping[str, Any]
    """`score`: the mean of `episodes` after training; `steps` of training; `parameters` of the actor; `seed`."""


def write(episode: Episode, target: Path = FILE) -> None:
    """Atomic write; attention in 255 levels."""
    tensors = {name: value for name, value in episode._asdict().items() if name != "facts"}
    packaged.write(target, _KEY, tensors | {"attention": levels(episode)}, episode.facts)


def load(source: Path = FILE) -> Episode:
    """The packaged episode, or another."""

    def build(tensors: dict[str, Tensor], facts: dict[str, Any]) -> Episode:
        return Episode(**tensors | {"attention": tensors["attention"].float() / 255}, facts=facts)

    return packaged.read(source, _KEY, "recorded episode", build)


def levels(episode: Episode) -> Tensor:
    """Attention in 255 levels."""
    return (255 * episode.attention.clamp(0, 1)).round().to(torch.uint8)


def data(episode: Episode) -> dict[str, Any]:
    """What the page gets: rounded numbers, and attention as bytes in base64."""
    numbers = {
        name: [[round(value, 3) for value in row] for row in getattr(episode, name).flatten(1).tolist()]
        for name in ("angles", "speeds", "policy", "weights")
    }
    return {
        **numbers,
        "actions": episode.actions.tolist(),
        "shape": list(episode.attention.shape),
        "attention": packaged.encoded(levels(episode)),
        "facts": dict(episode.facts),
    }
