"""The demo model of the explorer: a Neurocoder on digits, and what the page shows beside its answer.

As in the paper's section 4.1, the layer reads a fixed projection of the image to about 200 numbers. Here the projection
is the mean of 2 x 2 pixels, so that the weight of a class is again an image, of 14 x 14 pixels.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d

import neurocoder as nc

from . import packaged

SIDE = 14
"""Width and height of what the layer reads."""
CLASSES = 10
PROGRAM = nc.ProgramConfig(
    slots=10, key_dim=2, steps=3, heads=2, least_used=2, hidden=8, orthogonality=0.1, residual=False
)
"""K, l_I, a and the LSTM's size as in the paper; two heads, so that the page can show what a head is."""
FILE = Path(__file__).parent / "demo.safetensors"
_KEY = "neurocoder.explorer"
_LAYER = "layer."


class Demo(NamedTuple):
    """A trained layer, and what was measured with it on the 10,000 test digits."""

    layer: nc.Linear
    average: Tensor
    """The mean of W_t (196, 10)."""
    centres: Tensor
    """Two attention patterns over M_U in each of the first components (3, 2, P), the more frequent one first."""
    paths: Tensor
    """How many images of each digit take each path through these patterns (10, 8), the first choice being the highest
    bit."""
    facts: Mapping[str, Any]
    """`error`, the test error in percent, and the options of the training."""


def pooled(images: Tensor) -> Tensor:
    """What the layer reads of images (N, 28, 28) of bytes: means of 2 x 2 pixels, scaled as in `digits` (N, 196)."""
    return (avg_pool2d(images.unsqueeze(1).float(), 2).flatten(1) / 255 - 0.1307) / 0.3081


def build() -> nc.Linear:
    """The untrained layer, from torch's generator."""
    return nc.Linear(SIDE * SIDE, CLASSES, program=PROGRAM)


def follow(attention: Tensor, centres: Tensor) -> Tensor:
    """The path of each input through the decision tree (N,): in each component the nearest of two patterns.

    Args:
        attention: w^u (N, r, P).
        centres: (components, 2, P).
    """
    chosen = torch.cdist(attention[:, : len(centres)].transpose(0, 1), centres).argmin(-1)  # (components, N)
    path = torch.zeros_like(chosen[0])
    for choice in chosen:
        path = 2 * path + choice
    return path


def write(demo: Demo, target: Path = FILE) -> None:
    """Atomic write; the program's configuration and the facts are in the metadata."""
    parameters = {_LAYER + name: value for name, value in demo.layer.named_parameters()}
    tensors = {"average": demo.average, "centres": demo.centres, "paths": demo.paths, **parameters}
    packaged.write(target, _KEY, tensors, {"program": demo.layer.config.to_dict(), "facts": dict(demo.facts)})


def load(source: Path = FILE) -> Demo:
    """The trained demo model."""

    def build(tensors: dict[str, Tensor], metadata: dict[str, Any]) -> Demo:
        layer = nc.Linear(SIDE * SIDE, CLASSES, program=nc.ProgramConfig.from_dict(metadata["program"]))
        layer.load_state_dict({name.removeprefix(_LAYER): it for name, it in tensors.items() if _LAYER in name})
        return Demo(layer.eval(), tensors["average"], tensors["centres"], tensors["paths"], metadata["facts"])

    return packaged.read(source, _KEY, "demo model of the explorer", build)


@torch.no_grad()
def measured(layer: nc.Linear, images: Tensor, labels: Tensor, centres: Tensor, facts: Mapping[str, Any]) -> Demo:
    """The layer with what the page needs, measured on images (N, 28, 28) and labels (N,)."""
    x = pooled(images)
    programs = layer.programs(x)
    average = layer.materialize(x).mean(0)
    path = follow(programs.u, centres)
    paths = torch.stack(
        [torch.bincount(path[labels == digit], minlength=1 << len(centres)) for digit in range(CLASSES)]
    )
    error = round(100 * float((layer(x).argmax(1) != labels).float().mean()), 2)
    return Demo(layer, average, centres, paths, {**facts, "error": error})
