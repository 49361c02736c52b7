"""The learners that are compared: exact layers with each kind of features, and what the field uses beside them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import neurocoder as nc

from ... import continual as cl

LEARNERS = {
    "local": "local programs, rank 32",
    "local16": "local programs, rank 16",
    "rbf": "Gaussians (GKEAL)",
    "novel": "Gaussians, keys by novelty",
    "relu": "random ReLU (ACIL, RanPAC)",
    "fourier": "random Fourier features",
    "randumb": "LDA of Fourier features (RanDumb)",
    "ridge": "ridge regression",
    "slda": "streaming LDA",
    "mean": "nearest class mean",
    "fecam": "FeCAM",
    "fecam1": "FeCAM without Tukey's power",
    "air": "AIR",
    "replay": "experience replay",
    "derpp": "DER++",
    "gdumb": "GDumb",
    "1nn": "1-NN over a reservoir",
    "1nn-all": "1-NN over all samples",
    "offline": "MLP, all samples at once",
}
"""Names in variants, and in tables."""
SIZED = ("local", "local16", "rbf", "relu", "fourier", "randumb")
"""Learners with a number of features, of which variants may name another: `mnist-local-500`."""
STORING = ("replay", "derpp", "gdumb", "1nn")
"""Learners that store samples. Variants may name how many: `mnist-gdumb-4000`; else as many numbers as `local`."""
EXACT = ("local", "local16", "rbf", "relu", "fourier", "ridge")
RANKS = {"local": 32, "local16": 16}
WIDTH = 1.0
"""Of the Gaussians around keys that are chosen by novelty."""
VALUES = {"randumb": "width", "slda": "shrinkage", "air": "gamma", "novel": "reach"}
VALUES |= {"fecam": "shrinkage", "fecam1": "shrinkage"}
"""What a setting of a learner is called; else it is a rate of SGD."""
HIDDEN = 256
"""Units of the MLP that the learners with a replay memory train."""
OFFLINE_EPOCHS = 10
"""Over all samples so far."""

SETTINGS: dict[str, dict[str, float]] = {
    "mnist": {
        "local": 1.0,
        "local16": 1.0,
        "rbf": 1.0,
        "fourier": 1.4,
        "randumb": 1.0,
        "novel": 0.5,
        "slda": 1e-4,
        "replay": 0.5,
        "derpp": 0.5,
        "gdumb": 0.2,
        "offline": 0.2,
    },
    "permuted": {
        "local": 2.8,
        "local16": 2.8,
        "rbf": 1.0,
        "fourier": 0.7,
        "randumb": 0.7,
        "slda": 1e-4,
        "replay": 1.0,
        "derpp": 1.0,
        "gdumb": 0.5,
    },
    "clinc150": {
        "local": 2.0,
        "local16": 1.0,
        "rbf": 1.0,
        "fourier": 5.6,
        "randumb": 2.8,
        "slda": 1e-6,
        "fecam": 20.0,
        "fecam1": 20.0,
        "replay": 1.0,
        "derpp": 1.0,
        "gdumb": 0.2,
        "offline": 0.2,
    },
    "banking77": {
        "local": 1.0,
        "local16": 1.0,
        "rbf": 1.4,
        "fourier": 2.0,
        "randumb": 2.8,
        "slda": 1e-6,
        "replay": 1.0,
        "derpp": 1.0,
        "gdumb": 0.2,
        "offline": 0.2,
    },
    "cifar10": {
        "local": 2,
        "local16": 1,
        "rbf": 1,
        "fourier": 4,
        "randumb": 4,
        "slda": 0.0001,
        "fecam": 1,
        "replay": 0.01,
        "derpp": 0.01,
        "gdumb": 0.003,
        "offline": 0.003,
    },
    "cifar10-224": {
        "local": 1,
        "local16": 1.4,
        "rbf": 1.4,
        "fourier": 2,
        "randumb": 4,
        "slda": 0.01,
        "fecam": 1,
        "replay": 0.01,
        "derpp": 0.03,
        "gdumb": 0.001,
        "offline": 0.003,
    },
    "cifar100": {
        "local": 1.4,
        "local16": 1.4,
        "rbf": 0.7,
        "fourier": 4,
        "randumb": 4,
        "slda": 0.0001,
        "fecam": 1,
        "replay": 0.03,
        "derpp": 0.03,
        "gdumb": 0.003,
        "offline": 0.003,
    },
    "cifar100-224": {
        "local": 2,
        "local16": 1.4,
        "rbf": 1.4,
        "fourier": 5.6,
        "randumb": 5.6,
        "slda": 0.01,
        "fecam": 1,
        "replay": 0.03,
        "derpp": 0.03,
        "gdumb": 0.01,
        "offline": 0.003,
    },
}
"""What was best on validation data, by data set and learner: widths of Gaussians and of the kernel of Fourier features;
shrinkage of discriminants; the ridge of AIR; rates of SGD. None: the learner's default."""


def setting(data: str, learner: str, size: int = 32) -> float | None:
    """The width, shrinkage, ridge or rate of a learner; None: it has none. Size: of Split CIFAR's images."""
    return SETTINGS.get(data if size == 32 else f"{data}-{size}", {}).get(learner)


def exact(
    name: str, d: int, classes: int, features: int, residual: bool, width: float | None, seed: int, device: Any
) -> nc.ExactLinear:
    """An exact layer with so many features, or a little fewer, beside the input."""
    kind = {"ridge": "none", "local16": "local"}.get(name, name)
    rank = min(RANKS.get(name, 1), d)
    config = nc.ExactConfig(
        features=kind,
        slots=max(1, features // (rank + 1)) if kind == "local" else features,
        rank=rank,
        width=width or nc.ExactConfig.width,
        residual=residual or kind == "none",
        seed=seed,
    )
    return nc.ExactLinear(d, classes, exact=config, device=device)


def make(
    name: str,
    d: int,
    classes: int,
    features: int,
    residual: bool,
    value: float | None = None,
    seed: int = 0,
    device: Any = None,
    samples: int | None = None,
) -> Any:
    """A learner of inputs (N, d) with so many features; one that stores samples stores as many numbers as `local`.

    Args:
        name: See `LEARNERS`.
        d: Width of the inputs.
        classes: How many there are.
        features: Of the learners that have any, besides the input.
        residual: Whether the input stands beside the features of exact layers.
        value: See `SETTINGS`; None: the learner's default.
        seed: Of all that is random.
        device: Of all tensors.
        samples: Stored, of the learners in `STORING`; None: as many numbers as `local` needs to go on learning.
    """
    if name in EXACT:
        return exact(name, d, classes, features, residual, value, seed, device)
    budget = exact("local", d, classes, features, residual, None, seed, device).numbers()["learn"]

    def network() -> nn.Module:
        return nn.Sequential(nn.Linear(d, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, classes)).to(device)

    def capacity(each: int, beside: int = 0) -> int:
        return samples or max(classes, (budget - beside) // each)

    given: dict[str, Any] = {}
    if value is not None:
        given = {VALUES.get(name, "rate"): value}
    weights = (d + 1) * HIDDEN + (HIDDEN + 1) * classes
    makers: dict[str, Callable[[], Any]] = {
        "novel": lambda: ByNovelty(exact("rbf", d, classes, features, residual, WIDTH, seed, device), **given),
        "randumb": lambda: cl.RanDumb(d, classes, features, seed=seed, device=device, **given),
        "slda": lambda: cl.StreamingLDA(d, classes, device=device, **given),
        "mean": lambda: cl.NearestMean(d, classes, device),
        "fecam": lambda: cl.FeCAM(d, classes, device=device, **given),
        "fecam1": lambda: cl.FeCAM(d, classes, power=1.0, device=device, **given),
        "air": lambda: cl.AIR(d, classes, features, seed=seed, device=device, **given),
        "replay": lambda: cl.Replay(network(), capacity(d + 1, weights), seed=seed, **given),
        "derpp": lambda: cl.DERpp(network(), capacity(d + 1 + classes, weights), seed=seed, **given),
        "gdumb": lambda: cl.GDumb(network, capacity(d + 1), seed=seed, **given),
        "1nn": lambda: cl.NearestNeighbours(classes, capacity=capacity(d + 1), seed=seed),
        "1nn-all": lambda: cl.NearestNeighbours(classes),
        "offline": lambda: cl.GDumb(network, sys.maxsize, epochs=OFFLINE_EPOCHS, seed=seed, **given),
    }
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return makers[name]()


def stored(learner: Any, first: int, d: int) -> dict[str, int]:
    """How many numbers a learner stores, to `answer` and to `learn`.

    A basis is counted as what is less: itself, or the inputs (`first`, d) that fixed it, which give it again with the
    seed.
    """
    found: dict[str, int] = learner.numbers()
    if not isinstance(learner, nc.ExactLinear):
        return found
    saved = max(0, learner.memory.numbers() - first * d)
    return {what: count - saved for what, count in found.items()}


class ByNovelty:
    """An exact layer whose keys are written while it learns, as those of growing memory are: an input that is further
    than `reach` median distances from every key becomes the next one.

    Samples that came before a key count as if they had not used it, so the order of the data matters.
    """

    def __init__(self, layer: nc.ExactLinear, reach: float = 0.6) -> None:
        self.layer, self.reach, self.written = layer, reach, 0

    def basis(self, x: Tensor) -> None:
        """Fix the width of the Gaussians, and put all keys where no input is."""
        self.layer.basis(x)
        width = self.layer.memory.bandwidth
        self.reach *= float(width) / self.layer.config.width
        self.layer.memory.keys.copy_(x.mean(0) + (x.norm(dim=1).max() + 12 * width) / x.shape[1] ** 0.5)

    def observe(self, x: Tensor, y: Tensor) -> None:
        """Write keys, then observe."""
        keys, nearest = self.layer.memory.keys, x.new_full((len(x),), torch.inf)
        if self.written:
            nearest = torch.cdist(x, keys[: self.written]).amin(1)
        while self.written < len(keys) and (nearest > self.reach).any():
            keys[self.written] = x[int((nearest > self.reach).int().argmax())]
            nearest = nearest.minimum((x - keys[self.written]).norm(dim=1))
            self.written += 1
        self.layer.observe(x, y)

    def __call__(self, x: Tensor) -> Tensor:
        """The scores of the layer."""
        return self.layer(x)

    def numbers(self) -> dict[str, int]:
        """Those of the layer."""
        return self.layer.numbers()
