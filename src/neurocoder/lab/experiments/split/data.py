"""The tasks: pairs of digits, padded to 32 x 32 pixels as in Hsu et al. (2018), or CIFAR's classes as features of a
frozen ResNet-18."""

from __future__ import annotations

import os
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import pad

from ... import continual as cl
from ...data import cifar, mnist, sources
from . import features
from .features import Progress
from .variants import DATASETS, Variant

HELD_OUT = 10
"""One of this many training samples is held out for validation."""


@lru_cache(maxsize=2)
def _digits(train: bool, device: torch.device, folder: Path) -> tuple[Tensor, Tensor]:
    """Images (N, 1024) and labels (N,); `folder`, where `mnist.load` finds them, is part of the cache key."""
    digits = mnist.load(train)
    pixels = pad(digits.images, (2, 2, 2, 2)).flatten(1).to(device).float() / 255
    return (pixels - 0.1) / 0.2752, digits.labels.to(device)


def backbone() -> Path:
    """The file with ResNet-18's weights: `NEUROCODER_BACKBONE` (`--backbone`), else the one that was downloaded."""
    if file := os.environ.get("NEUROCODER_BACKBONE"):
        return Path(file)
    source = sources.SOURCES["resnet18"]
    place = sources.root() / source.stored
    if not place.is_file():
        raise FileNotFoundError(
            f"Split CIFAR needs the weights of a ResNet-18, there are none in {place}; {source.remedy}"
        )
    return place


def prepare(datasets: Iterable[str]) -> None:
    """See that these are there, or download them; of CIFAR the weights of the ResNet too."""
    for name in sorted(set(datasets)):
        if name not in cifar.SETS:
            mnist.folder()
            continue
        cifar.prepare(name)
        try:
            backbone()
        except FileNotFoundError:
            sources.download("resnet18")


def tasks_of(
    variant: Variant,
    device: torch.device,
    *,
    validation: bool = False,
    samples: int | None = None,
    size: int = 32,
    progress: Progress | None = None,
) -> list[cl.Task]:
    """The tasks of a variant, on the device.

    Args:
        variant: Data set and scenario.
        device: Where the data are kept.
        validation: Hold out a tenth of the training data instead of reading the test set.
        samples: Only this many of each task.
        size: Pixels to a side of the images that the ResNet sees.
        progress: Told how many features are computed, if they are not in the cache.
    """
    count, classes_each = DATASETS[variant.dataset]
    classes = [tuple(range(first, first + classes_each)) for first in range(0, count * classes_each, classes_each)]
    if variant.dataset in ("mnist", "permuted"):
        x, y = _digits(True, device, mnist.folder())
    else:
        x, y = features.features(variant.dataset, True, size, backbone(), device, progress)
        test_x, test_y = features.features(variant.dataset, False, size, backbone(), device, progress)
        x, test_x = features.standardised(x, test_x)
        test = test_x, test_y
    if validation:
        held_out = torch.arange(len(y), device=device) % HELD_OUT == 0
        (x, y), test = (x[~held_out], y[~held_out]), (x[held_out], y[held_out])
    elif variant.dataset in ("mnist", "permuted"):
        test = _digits(False, device, mnist.folder())
    if variant.dataset == "permuted":
        tasks = permuted((x, y), test, count, variant.scenario)
    else:
        tasks = cl.split((x, y), test, classes, variant.scenario)
    if samples is None:
        return tasks
    return [
        cl.Task(_first(task.train, samples), _first(task.test, samples), task.head, task.classes, task.width)
        for task in tasks
    ]


def permuted(train: tuple[Tensor, Tensor], test: tuple[Tensor, Tensor], count: int, scenario: str) -> list[cl.Task]:
    """Tasks of all ten digits, each with its own fixed order of the pixels; the first keeps the images as they are."""
    tasks = []
    for index in range(count):
        generator = torch.Generator().manual_seed(index)
        order = torch.randperm(train[0].shape[1], generator=generator) if index else torch.arange(train[0].shape[1])
        order = order.to(train[0].device)
        first, width = (10 * index, 10 * count) if scenario == "class" else (0, 10)
        own, held_out = ((x[:, order], y + first) for x, y in (train, test))
        head = index if scenario == "task" else None
        tasks.append(cl.Task(own, held_out, head, tuple(range(first, first + 10)), width))
    return tasks


def _first(data: tuple[Tensor, Tensor], samples: int) -> tuple[Tensor, Tensor]:
    return data[0][:samples], data[1][:samples]
