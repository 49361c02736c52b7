"""The tasks of Split MNIST: pairs of digits, padded to 32 x 32 pixels as in Hsu et al. (2018)."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import pad

from .. import continual as cl
from ..data import mnist
from .split_variants import DATASETS, Variant

HELD_OUT = 10
"""One of this many training samples is held out for validation."""


@lru_cache(maxsize=2)
def _digits(train: bool, device: torch.device, folder: Path) -> tuple[Tensor, Tensor]:
    """Images (N, 1024) and labels (N,); `folder`, where `mnist.load` finds them, is part of the cache key."""
    digits = mnist.load(train)
    pixels = pad(digits.images, (2, 2, 2, 2)).flatten(1).to(device).float() / 255
    return (pixels - 0.1) / 0.2752, digits.labels.to(device)


def tasks_of(variant: Variant, validation: bool, samples: int | None, device: torch.device) -> list[cl.Task]:
    """The tasks of a variant, on the device."""
    count, size = DATASETS[variant.dataset]
    classes = [tuple(range(first, first + size)) for first in range(0, count * size, size)]
    x, y = _digits(True, device, mnist.folder())
    if validation:
        held_out = torch.arange(len(y), device=device) % HELD_OUT == 0
        (x, y), test = (x[~held_out], y[~held_out]), (x[held_out], y[held_out])
    else:
        test = _digits(False, device, mnist.folder())
    tasks = cl.split((x, y), test, classes, variant.scenario)
    if samples is None:
        return tasks
    return [
        cl.Task(_first(task.train, samples), _first(task.test, samples), task.head, task.classes, task.width)
        for task in tasks
    ]


def _first(data: tuple[Tensor, Tensor], samples: int) -> tuple[Tensor, Tensor]:
    return data[0][:samples], data[1][:samples]
