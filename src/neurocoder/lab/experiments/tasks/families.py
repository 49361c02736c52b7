"""Families of small tasks: functions, dynamical systems, and labels of images and sentences on frozen features."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import torch
from torch import Generator, Tensor
from torch.nn.functional import affine_grid, avg_pool2d, grid_sample

from ...data import mnist
from ..exact import sentences
from ..split import data as split
from ..split import features
from . import domains, kinds
from .samples import Pools, Tasks


@dataclass(frozen=True)
class Family:
    """A family of tasks."""

    title: str
    inputs: int
    outputs: int
    pools: Callable[[int, Generator], Pools]
    """Of so many tasks to train on."""
    sample: Callable[[Tensor, int, bool, Generator], Tasks]
    """So many samples of each task, of the training data or the test's."""
    parameters: int
    """Of each network."""
    latent: int = 8
    classes: bool = False
    most: int = 1_000
    """Tasks to train on that there are, at most."""
    measure: str = ""
    """What errors are, if not wrong classes or squared errors over the targets' variance, in percent."""
    each: int = 1
    """Samples in an example: as many as a task has classes, where they are its own."""


CHOSEN, NEW = 50, 100
"""Tasks to choose rates by, and new tasks, of families without end."""


def endless(draw: Callable[[int, Generator], Tensor]) -> Callable[[int, Generator], Pools]:
    """Pools of a family that draws its tasks."""

    def pools(count: int, generator: Generator) -> Pools:
        held_out = draw(CHOSEN + NEW, generator)
        return Pools(draw(count, generator), held_out[:CHOSEN], held_out[CHOSEN:])

    return pools


def sines(count: int, generator: Generator) -> Tensor:
    """Amplitude, frequency, phase and offset (count, 4)."""
    low, high = torch.tensor([0.5, 0.6, 0.0, -0.7]), torch.tensor([2.0, 1.6, 2 * math.pi, 0.7])
    return low + (high - low) * torch.rand(count, 4, generator=generator)


def sine_values(tasks: Tensor, count: int, train: bool, generator: Generator) -> Tasks:
    """`a sin(w x + p) + c` at points of [-3, 3]."""
    x = 6 * torch.rand(len(tasks), count, 1, generator=generator) - 3
    a, w, p, c = tasks.view(len(tasks), 4, 1, 1).unbind(1)
    return Tasks(x / math.sqrt(3), a * torch.sin(w * x + p) + c)


def springs(count: int, generator: Generator) -> Tensor:
    """Stiffness, cubic stiffness, friction and the strength and angle of a push (count, 5)."""
    low, high = torch.tensor([-1.0, 0.0, 0.0, -1.0, -1.0]), torch.tensor([3.0, 1.0, 1.0, 1.0, 1.0])
    return low + (high - low) * torch.rand(count, 5, generator=generator)


def spring_values(tasks: Tensor, count: int, train: bool, generator: Generator) -> Tasks:
    """How place and speed have changed after one second, from both at the start: a spring that differs by task."""
    x = torch.randn(len(tasks), count, 2, generator=generator)
    k, cubic, friction, push, slant = tasks.view(len(tasks), 5, 1, 1).unbind(1)
    place, speed = x.split(1, 2)
    for _ in range(50):
        speed = speed + 0.02 * (push + slant * torch.sin(2 * place) - k * place - cubic * place**3 - friction * speed)
        place = place + 0.02 * speed
    return Tasks(x, torch.cat([place, speed], 2) - x)


HELD_OUT = (150.0, 210.0)
"""Angles that no task has in training."""


def angles(count: int, generator: Generator) -> Pools:
    """Degrees; new tasks lie within the held-out angles."""
    low, high = HELD_OUT
    held_out = low + (high - low) * torch.rand(CHOSEN + NEW, generator=generator)
    trained = (high + (360 - high + low) * torch.rand(count, generator=generator)) % 360
    return Pools(trained, held_out[:CHOSEN], held_out[CHOSEN:])


@lru_cache(maxsize=1)
def digits(folder: Path) -> tuple[mnist.Digits, mnist.Digits]:
    """MNIST for training and for the test; `folder`, where it is found, is the cache's key."""
    return mnist.load(train=True), mnist.load(train=False)


def rotated(tasks: Tensor, count: int, train: bool, generator: Generator) -> Tasks:
    """MNIST at 14 x 14, turned by the task's angle."""
    images, labels = digits(mnist.folder())[not train]
    rows = torch.randint(len(labels), (len(tasks) * count,), generator=generator)
    turn = torch.deg2rad(tasks).repeat_interleave(count)
    flat = torch.zeros_like(turn)
    maps = torch.stack([turn.cos(), -turn.sin(), flat, turn.sin(), turn.cos(), flat], 1).view(-1, 2, 3)
    parts = []
    for row, matrix in zip(rows.split(10_000), maps.split(10_000), strict=True):
        whole = images[row].float().unsqueeze(1) / 255
        turned = grid_sample(whole, affine_grid(matrix, list(whole.shape), align_corners=False), align_corners=False)
        parts.append((avg_pool2d(turned, 2).flatten(1) - 0.13) / 0.27)
    return Tasks(torch.cat(parts).view(len(tasks), count, -1), labels[rows].view(len(tasks), count).long())


def groups(counts: tuple[int, int, int]) -> Callable[[int, Generator], Pools]:
    """Pools of a family with so many tasks in all, in an order that the seed draws."""

    def pools(count: int, generator: Generator) -> Pools:
        order = torch.randperm(sum(counts), generator=generator)
        trained, chosen, new = order.split(counts)
        return Pools(trained[:count], chosen, new)

    return pools


@lru_cache(maxsize=2)
def superclass_features(train: bool) -> tuple[Tensor, Tensor]:
    """Features of CIFAR-100 (N, 512) and for each image superclass and class within it (N, 2)."""
    backbone, device = split.backbone(), torch.device("cpu")
    both = [features.features("cifar100", part, 32, backbone, device) for part in (True, False)]
    x = features.standardised(both[0][0], both[1][0])[not train]
    return x, superclasses(both[not train][1])


def superclasses(fine: Tensor) -> Tensor:
    """Superclass and class within it (N, 2) of CIFAR-100's classes."""
    place = torch.empty(100, 2, dtype=torch.long)
    for index, members in enumerate(SUPERCLASSES):
        place[members] = torch.stack([torch.full((5,), index), torch.arange(5)], 1)
    return place[fine]


SUPERCLASSES = torch.tensor(
    [
        *([4, 30, 55, 72, 95], [1, 32, 67, 73, 91], [54, 62, 70, 82, 92], [9, 10, 16, 28, 61], [0, 51, 53, 57, 83]),
        *([22, 39, 40, 86, 87], [5, 20, 25, 84, 94], [6, 7, 14, 18, 24], [3, 42, 43, 88, 97], [12, 17, 37, 68, 76]),
        *([23, 33, 49, 60, 71], [15, 19, 21, 31, 38], [34, 63, 64, 66, 75], [26, 45, 77, 79, 99], [2, 11, 35, 46, 98]),
        *([27, 29, 44, 78, 93], [36, 50, 65, 74, 80], [47, 52, 56, 59, 96], [8, 13, 48, 58, 90], [41, 69, 81, 85, 89]),
    ]
)
"""Classes of each superclass, as published: aquatic mammals, fish, flowers, ..."""


@lru_cache(maxsize=2)
def domain_features(train: bool) -> tuple[Tensor, Tensor]:
    """Features of CLINC150's sentences (N, 384) and for each its domain and intent within it (N, 2)."""
    both = sentences.features("clinc150", "cpu", validation=False)
    intents = sorted(domains.PLACES)
    places = torch.tensor([domains.PLACES[intent] for intent in intents])
    x = features.standardised(both[0][0], both[1][0])[not train]
    return x, places[both[not train][1]]


def labelled(known: Callable[[bool], tuple[Tensor, Tensor]]) -> Callable[[Tensor, int, bool, Generator], Tasks]:
    """Samples of the task's group, of features (N, F) with group and class within it (N, 2)."""

    def sample(tasks: Tensor, count: int, train: bool, generator: Generator) -> Tasks:
        x, places = known(train)
        rows = []
        for task in tasks:
            own = (places[:, 0] == task).nonzero().squeeze(1)
            rows.append(own[torch.randperm(len(own), generator=generator)[:count]])
        chosen = torch.stack(rows)
        return Tasks(x[chosen], places[chosen, 1])

    return sample


def prepare(name: str) -> None:
    """See that the data are there."""
    if name == "superclasses":
        split.prepare(["cifar100"])
    elif name == "domains":
        sentences.prepare("clinc150")
    elif name == "text":
        kinds.prepare()
    elif name == "rotated":
        mnist.folder()


FAMILIES: dict[str, Family] = {
    "sines": Family("sinusoids", 1, 1, endless(sines), sine_values, 5_100),
    "springs": Family("springs", 2, 2, endless(springs), spring_values, 5_100),
    "rotated": Family("rotated MNIST", 196, 10, angles, rotated, 20_000, classes=True),
    "superclasses": Family(
        title="CIFAR-100's superclasses",
        inputs=features.resnet.FEATURES,
        outputs=5,
        pools=groups((12, 4, 4)),
        sample=labelled(superclass_features),
        parameters=62_000,
        classes=True,
        most=12,
        each=5,
    ),
    "domains": Family(
        title="CLINC150's domains",
        inputs=sentences.WIDTH,
        outputs=15,
        pools=groups((6, 2, 2)),
        sample=labelled(domain_features),
        parameters=62_000,
        classes=True,
        most=6,
        each=15,
    ),
    "text": Family(
        title="kinds of text",
        inputs=0,
        outputs=0,
        pools=groups((6, 2, 2)),
        sample=kinds.sequences,
        parameters=3_040_000,
        latent=16,
        most=6,
        measure="loss in nats a token",
    ),
}
"""By the name in variants."""
