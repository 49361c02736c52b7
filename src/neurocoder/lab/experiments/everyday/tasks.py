"""Twenty small tasks, from MNIST or made by a seed: data, the size of the network, and how a test error is measured."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Generator, Tensor
from torch.nn.functional import avg_pool2d, one_hot

from ...data import mnist

TEST = 1_000
"""Test samples of each task."""
WORST = 10.0
"""A normalised squared error is cut off there; a network that diverged has it."""


class Data(NamedTuple):
    """Inputs (N, d) and targets: classes (N,) or values (N, outputs)."""

    x: Tensor
    y: Tensor
    test_x: Tensor
    test_y: Tensor


@dataclass(frozen=True)
class Task:
    """A task, and the network that learns it."""

    title: str
    make: Callable[[int, Generator], tuple[Tensor, Tensor]]
    """Inputs and targets of so many samples, training samples first."""
    samples: int
    """To train on."""
    hidden: Sequence[int] = (32,)
    activation: str = "relu"
    raw: bool = False
    """Inputs stay as they are made, instead of zero mean and unit variance over the training samples."""


@lru_cache(maxsize=1)
def digits(folder: Path) -> tuple[mnist.Digits, mnist.Digits]:
    """MNIST for training and for the test; `folder`, where it is found, is the cache's key."""
    return mnist.load(train=True), mnist.load(train=False)


def images(count: int, generator: Generator, *, raw: bool = False) -> tuple[Tensor, Tensor]:
    """MNIST at 14 x 14 (N, 196): training images, then test images."""
    found = []
    for part, take in zip(digits(mnist.folder()), (count - TEST, TEST), strict=True):
        rows = torch.randperm(len(part.labels), generator=generator)[:take]
        pixels = avg_pool2d(part.images[rows].float().unsqueeze(1), 2).flatten(1)
        found.append((pixels if raw else pixels / 255, part.labels[rows].long()))
    return torch.cat([x for x, _ in found]), torch.cat([y for _, y in found])


def noisy_images(count: int, generator: Generator) -> tuple[Tensor, Tensor]:
    """A fifth of the training labels is wrong."""
    x, y = images(count, generator)
    wrong = torch.rand(count, generator=generator) < 0.2
    wrong[-TEST:] = False
    return x, torch.where(wrong, (y + torch.randint(1, 10, (count,), generator=generator)) % 10, y)


def reconstruction(count: int, generator: Generator) -> tuple[Tensor, Tensor]:
    """The image from itself, through a narrow layer."""
    x, _ = images(count, generator)
    return x, x


def picture(count: int, generator: Generator) -> tuple[Tensor, Tensor]:
    """A smooth picture as a function of the place (N, 2), by random waves."""
    x = 2 * torch.rand(count, 2, generator=generator) - 1
    waves, phase = 4 * torch.randn(2, 12, generator=generator), 6.3 * torch.rand(12, generator=generator)
    return x, torch.sin(x @ waves + phase) @ torch.randn(12, 3, generator=generator) / 3


def friedman(count: int, generator: Generator) -> tuple[Tensor, Tensor]:
    """Friedman's first function of five of ten numbers, with noise."""
    x = torch.rand(count, 10, generator=generator)
    y = 10 * torch.sin(math.pi * x[:, 0] * x[:, 1]) + 20 * (x[:, 2] - 0.5) ** 2 + 10 * x[:, 3] + 5 * x[:, 4]
    return x, (y + torch.randn(count, generator=generator)).unsqueeze(1)


def impedance(count: int, generator: Generator) -> tuple[Tensor, Tensor]:
    """Friedman's second and third function, of numbers whose scales differ by a thousand; kept as they are over 100."""
    u = torch.rand(count, 4, generator=generator)
    x = torch.stack([100 * u[:, 0], 40 * math.pi + 520 * math.pi * u[:, 1], u[:, 2], 1 + 10 * u[:, 3]], 1)
    inner = x[:, 1] * x[:, 2] - 1 / (x[:, 1] * x[:, 3])
    return x / 100, torch.stack([torch.hypot(x[:, 0], inner), torch.atan(inner / x[:, 0].clamp_min(1e-3))], 1)


def few_linear(count: int, generator: Generator) -> tuple[Tensor, Tensor]:
    """A linear target of 24 numbers, with noise."""
    x = torch.randn(count, 24, generator=generator)
    y = x @ torch.randn(24, 4, generator=generator) / math.sqrt(24)
    return x, y + 0.1 * torch.randn(count, 4, generator=generator)


def heavy_tails(count: int, generator: Generator) -> tuple[Tensor, Tensor]:
    """Inputs with heavy tails (Student's t, two degrees of freedom) and a bounded target."""
    normal = torch.randn(count, 12, 3, generator=generator)
    x = normal[..., 0] / (normal[..., 1:].square().sum(2) / 2).sqrt()
    y = torch.tanh(x @ torch.randn(12, 3, generator=generator) / 4)
    return x, y + 0.05 * torch.randn(count, 3, generator=generator)


def clusters(count: int, generator: Generator) -> tuple[Tensor, Tensor]:
    """Eight classes of four Gaussian clusters each, in 16 dimensions."""
    centres = torch.randn(32, 16, generator=generator)
    which = torch.randint(32, (count,), generator=generator)
    return centres[which] + 0.7 * torch.randn(count, 16, generator=generator), which % 8


def imbalanced(count: int, generator: Generator) -> tuple[Tensor, Tensor]:
    """Five classes on rings, each half as frequent as the one before."""
    shares = 2.0 ** -torch.arange(5)
    y = torch.multinomial(shares, count, replacement=True, generator=generator)
    direction = torch.nn.functional.normalize(torch.randn(count, 6, generator=generator), dim=1)
    return direction * (1 + 0.5 * y + 0.15 * torch.randn(count, generator=generator)).unsqueeze(1), y


def spirals(count: int, generator: Generator) -> tuple[Tensor, Tensor]:
    """Three arms of a spiral."""
    y = torch.randint(3, (count,), generator=generator)
    radius = torch.rand(count, generator=generator)
    angle = 5 * radius + 2 * math.pi / 3 * y + 0.2 * torch.randn(count, generator=generator)
    return torch.stack([radius * angle.cos(), radius * angle.sin()], 1), y


def chessboard(count: int, generator: Generator) -> tuple[Tensor, Tensor]:
    """The colour of a field of a 4 x 4 board."""
    x = torch.rand(count, 2, generator=generator)
    return x, (4 * x).long().sum(1) % 2


def rules(count: int, generator: Generator) -> tuple[Tensor, Tensor]:
    """A table of four numbers and four categories; nested rules give one of four classes, a tenth is random."""
    numbers, kinds = torch.rand(count, 4, generator=generator), torch.randint(5, (count, 4), generator=generator)
    first = torch.where(kinds[:, 0] < 2, (numbers[:, 0] > 0.6).long(), 2 + (kinds[:, 1] == kinds[:, 2]).long())
    y = torch.where((numbers[:, 1] > 0.8) & (kinds[:, 3] > 2), 3 - first, first)
    random = torch.randint(4, (count,), generator=generator)
    y = torch.where(torch.rand(count, generator=generator) < 0.1, random, y)
    return torch.cat([numbers, one_hot(kinds, 5).flatten(1)], 1), y


def sums(count: int, generator: Generator) -> tuple[Tensor, Tensor]:
    """The last character of a sum in text, as in `47+8=55`, from the five before: one-hot characters."""
    a, b = (torch.randint(high, (count,), generator=generator) for high in (100, 10))
    characters = torch.stack([a // 10, a % 10, torch.full_like(a, 10), b, torch.full_like(a, 11)], 1)
    return one_hot(characters, 12).flatten(1).float(), (a + b) % 10


def languages(count: int, generator: Generator) -> tuple[Tensor, Tensor]:
    """Which of six languages, Markov chains over twelve letters, wrote these 20 letters? Counts of pairs."""
    chains = torch.distributions.Dirichlet(torch.full((12,), 0.5))
    with torch.random.fork_rng():
        torch.manual_seed(int(torch.randint(1 << 30, (1,), generator=generator)))
        steps = chains.sample((6, 12))
    steps = 0.25 * steps + 0.75 * steps.mean(0)
    y = torch.randint(6, (count,), generator=generator)
    letter, pairs = torch.randint(12, (count,), generator=generator), torch.zeros(count, 144)
    for _ in range(19):
        following = torch.multinomial(steps[y, letter], 1, generator=generator).squeeze(1)
        pairs[torch.arange(count), 12 * letter + following] += 1
        letter = following
    return pairs, y


def next_byte(count: int, generator: Generator) -> tuple[Tensor, Tensor]:
    """The next letter of a text without end, made of 40 random words, from the four letters before."""
    lengths = torch.randint(2, 7, (40,), generator=generator).tolist()
    words = [[*torch.randint(1, 16, (length,), generator=generator).tolist(), 0] for length in lengths]
    chosen = torch.multinomial(1 / torch.arange(1, 41), count, replacement=True, generator=generator).tolist()
    text = torch.tensor([letter for index in chosen for letter in words[index]])[: count + 4]
    return one_hot(text.unfold(0, 4, 1)[:count], 16).flatten(1).float(), text[4 : count + 4]


def series(count: int, generator: Generator) -> tuple[Tensor, Tensor]:
    """Six steps ahead in the series of Mackey and Glass, from sixteen values before."""
    values = [1.2 + 0.1 * float(torch.rand(1, generator=generator))] * 18
    for _ in range(count + 200):
        values.append(0.9 * values[-1] + 0.2 * values[-18] / (1 + values[-18] ** 10))
    found = torch.tensor(values[-(count + 22) :])
    return found.unfold(0, 16, 1)[:count], found[21 : count + 21].unsqueeze(1)


def pendulum(count: int, generator: Generator) -> tuple[Tensor, Tensor]:
    """The state of a double well with friction and a push, half a second later."""
    state = 2 * torch.randn(count, 2, generator=generator)
    push = torch.randn(count, 1, generator=generator)
    x, v = state.split(1, 1)
    for _ in range(50):
        v = v + 0.01 * (x - x**3 - 0.3 * v + push)
        x = x + 0.01 * v
    return torch.cat([state, push], 1), torch.cat([x, v], 1)


TASKS: dict[str, Task] = {
    "mnist-300": Task("MNIST, 300 images", images, 300),
    "mnist-2000": Task("MNIST, 2,000 images", images, 2_000, (64,)),
    "mnist-raw": Task("MNIST, pixels 0 to 255", lambda n, g: images(n, g, raw=True), 2_000, raw=True),
    "mnist-noisy": Task("MNIST, a fifth of the labels wrong", noisy_images, 2_000),
    "autoencoder": Task("MNIST through 16 numbers", reconstruction, 2_000, (48, 16, 48), "gelu"),
    "picture": Task("a picture as a function", picture, 2_000, (48, 48), "gelu"),
    "friedman": Task("Friedman's first function", friedman, 500),
    "impedance": Task("impedance, raw scales", impedance, 1_000, (24, 24), "relu", raw=True),
    "few-linear": Task("linear, 60 samples", few_linear, 60),
    "heavy-tails": Task("heavy-tailed inputs", heavy_tails, 1_000),
    "clusters": Task("8 classes, 32 clusters", clusters, 1_500),
    "imbalanced": Task("imbalanced rings", imbalanced, 1_500, (24, 24), "gelu"),
    "spirals": Task("three spirals", spirals, 600, (24, 24), "tanh"),
    "chessboard": Task("chessboard", chessboard, 1_500, (40, 40)),
    "rules": Task("rules over a table", rules, 1_500),
    "sums": Task("last digit of a sum", sums, 700, (64,), "gelu"),
    "languages": Task("six languages", languages, 1_000),
    "next-byte": Task("next letter", next_byte, 2_000, (48,)),
    "series": Task("Mackey-Glass series", series, 1_000, (24,), "tanh"),
    "pendulum": Task("double well", pendulum, 1_000, (32, 32), "tanh"),
}
"""By the name in variants."""


@lru_cache(maxsize=4)
def samples(name: str) -> tuple[Tensor, Tensor]:
    """The task's inputs and targets, the same for every run, normalised by the training samples."""
    task = TASKS[name]
    generator = torch.Generator().manual_seed(sum(map(ord, name)))
    x, y = task.make(task.samples + TEST, generator)
    train = task.samples
    if not task.raw:
        x = (x - x[:train].mean(0)) / x[:train].std(0).clamp_min(1e-3)
    if y.is_floating_point():
        y = (y - y[:train].mean(0)) / y[:train].std(0).clamp_min(1e-3)
    return x, y


def load(name: str, validation: bool) -> Data:
    """The task's data; with `validation` the last fifth of the training samples is the test."""
    (x, y), train = samples(name), TASKS[name].samples
    test = slice(train, None)
    if validation:
        train, test = train - train // 5, slice(train - train // 5, train)
    return Data(x[:train], y[:train], x[test], y[test])


def errors(outputs: Tensor, targets: Tensor) -> Tensor:
    """Of S models: the share of wrong classes, or the squared error over the targets' variance (S,).

    Args:
        outputs: (S, N, classes or values).
        targets: (N,) classes, or (N, values).
    """
    diverged = ~outputs.isfinite().flatten(1).all(1)
    if targets.is_floating_point():
        found = (outputs - targets).square().flatten(1).mean(1) / (targets - targets.mean(0)).square().mean()
        return torch.where(diverged, WORST, found.nan_to_num(WORST).clamp_max(WORST))
    found = (outputs.argmax(2) != targets).double().mean(1)
    commonest = targets.bincount().max() / len(targets)
    return torch.where(diverged, 1 - commonest.double(), found)
