"""The images of object recognition on the device: classes in words, training batches, the validation split,
predictions."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from ...data import cifar
from ...train.spec import Batch
from ..supervised import Shuffled
from .augmentation import Draws, Kind, identity, normalised, pictures, redraw
from .models import DATASETS

TITLES = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100"}
HUNDRED = """
apple aquarium-fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can castle
caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin elephant flatfish
forest fox girl hamster house kangaroo keyboard lamp lawn-mower leopard lion lizard lobster man maple-tree motorcycle
mountain mouse mushroom oak-tree orange orchid otter palm-tree pear pickup-truck pine-tree plain plate poppy porcupine
possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk skyscraper snail snake spider squirrel streetcar
sunflower sweet-pepper table tank telephone television tiger tractor train trout tulip turtle wardrobe whale
willow-tree wolf woman worm
"""
CLASSES: dict[str, tuple[str, ...]] = {
    "cifar10": ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
    "cifar100": tuple(HUNDRED.split()),
}
"""In words, by label; of CIFAR-100 the fine ones."""
STATISTICS = {
    "cifar10": ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
    "cifar100": ((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),
}
"""Mean and standard deviation of each channel over the training images."""
HELD_OUT = 10
"""One of this many training images is held out for validation: 5,000 of CIFAR's."""
AT_ONCE = 500
"""Images in one evaluation step."""
SYNTHETIC = 1_000
"""Synthetic training images; a fifth as many test images."""


class Labelled(NamedTuple):
    """Images, bytes (N, 32, 32, 3), and their labels (N,), with the mean and std (3,) of the training images."""

    images: Tensor
    labels: Tensor
    mean: Tensor
    std: Tensor

    def take(self, rows: Tensor) -> Labelled:
        """Only these."""
        rows = rows.to(self.labels.device)
        return self._replace(images=self.images[rows], labels=self.labels[rows])

    def first(self, count: int | None) -> Labelled:
        """The first ones; None: all."""
        return self._replace(images=self.images[:count], labels=self.labels[:count])


def load(dataset: str, source: str, train: bool, device: torch.device) -> Labelled:
    """The training or test images of `cifar10` or `cifar100`, loaded once per process.

    `source` is `cifar`, or `synthetic` for coloured noise around a picture of each class, which needs no files.
    """
    return _load(dataset, train, device, cifar.folder(dataset) if source == "cifar" else None)


@lru_cache(maxsize=4)
def _load(dataset: str, train: bool, device: torch.device, folder: Path | None) -> Labelled:
    """`folder`, where `cifar.load` finds them, is part of the cache key; None: synthetic."""
    images, labels = synthetic(DATASETS[dataset], train) if folder is None else cifar.load(dataset, train)
    mean, std = (torch.tensor(values, device=device) for values in STATISTICS[dataset])
    return Labelled(images.permute(0, 2, 3, 1).contiguous().to(device), labels.to(device), mean, std)


def synthetic(classes: int, train: bool) -> cifar.Images:
    """Images that a network can learn to tell apart, in the form of `cifar.load`."""
    generator = torch.Generator().manual_seed(0)
    means = 255 * torch.rand(classes, 3, 8, 8, generator=generator)
    labels = torch.arange(SYNTHETIC if train else SYNTHETIC // 5) % classes
    generator.manual_seed(1 + train)
    pixels = means.repeat_interleave(4, 2).repeat_interleave(4, 3)[labels]
    pixels = pixels + 64 * torch.randn(pixels.shape, generator=generator)
    return cifar.Images(pixels.clamp(0, 255).to(torch.uint8), labels)


def read_folder(path: str | Path) -> tuple[Labelled, list[str]]:
    """Your own images, CLASS/FILE in a folder, scaled to 32 x 32 pixels; and the classes by label."""
    from PIL import Image  # comes with matplotlib

    files = sorted(file for file in Path(path).glob("*/*") if file.suffix.lower() in Image.registered_extensions())
    if not files:
        raise FileNotFoundError(f"path must be a folder with a folder of images for each class, got {path}")
    classes = sorted({file.parent.name for file in files})
    labels = torch.tensor([classes.index(file.parent.name) for file in files])
    images = torch.tensor(np.stack([np.asarray(Image.open(file).convert("RGB").resize((32, 32))) for file in files]))
    pixels = images.flatten(0, 2).float() / 255
    return Labelled(images, labels, pixels.mean(0), pixels.std(0)), classes


def division(count: int) -> tuple[Tensor, Tensor]:
    """Rows to train on and rows to validate on, in a random order that is the same for all runs."""
    order = torch.from_numpy(np.random.default_rng(0).permutation(count))
    held_out = count // HELD_OUT
    return order[held_out:], order[:held_out]


class ImageStream(Shuffled):
    """Augmented images and labels in batches; each epoch has its own order, crops and flips."""

    def __init__(self, data: Labelled, batch: int, seed: int, kind: Kind) -> None:
        super().__init__(len(data.labels), batch, seed, data.images.device)
        self.data, self.kind = data, kind
        self.draws = identity((self.steps, batch), data.images.device)
        self.begun = time.monotonic()
        """When the current block was filled."""

    def fill(self, block: int) -> None:
        """Shuffle and draw, from only the seed and the block number."""
        self.begun = time.monotonic()
        redraw(self.draws, self.kind, self.shuffle(block))

    def batch(self, step: Tensor) -> Batch:
        """Images (batch, 3, 32, 32), channels last, and labels (batch,)."""
        rows, images = self.rows(step), self.data.images
        if self.kind == "none":
            found = images.index_select(0, rows)
        else:
            found = pictures(images, rows, Draws(*(draw.index_select(0, step.view(1)).view(-1) for draw in self.draws)))
        return normalised(found, self.data.mean, self.data.std), self.data.labels.index_select(0, rows)


def inputs(data: Labelled) -> Iterator[Tensor]:
    """All images as the network takes them, (B, 3, 32, 32) at a time."""
    return (normalised(part, data.mean, data.std) for part in data.images.split(AT_ONCE))


def predictions(model: nn.Module, data: Labelled) -> Tensor:
    """The class that the model gives to each image (N,)."""
    return torch.cat([model(part).argmax(1) for part in inputs(data)])


def accuracy(model: nn.Module, data: Labelled) -> float:
    """In percent."""
    return 100 * int((predictions(model, data) == data.labels).sum()) / len(data.labels)
