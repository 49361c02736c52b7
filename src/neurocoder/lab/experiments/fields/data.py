"""Images as points: places (x, y) in -1..1, and the colours there; which images are learned, and which are new."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from ...data import cifar, mnist
from ...train.spec import Batch
from ..supervised import Shuffled

CHANNELS = {"mnist": 1, "cifar10": 3}
TITLES = {"mnist": "MNIST digits", "cifar10": "CIFAR-10"}
TRAINED = {"mnist": 512, "cifar10": 256}
"""Images with a latent of their own, unless a config says otherwise."""
HELD_OUT = 5_000
"""The last training images, which are the new ones where settings are chosen."""
SPARE = 16
"""Training images on which the rates for new images are chosen."""


class Pictures(NamedTuple):
    """Images as bytes (N, T, C), pixel after pixel, row by row; and their height and width."""

    colours: Tensor
    size: tuple[int, int]


class Parts(NamedTuple):
    """The images of a run."""

    trained: Pictures
    new: Pictures
    spare: Pictures
    """Training images that are not learned, as many as there are up to `SPARE`: rates for new images are chosen on
    them."""


def load(dataset: str, trained: int, new: int, validation: bool, seed: int, device: torch.device) -> Parts:
    """The images that are learned and those that are new, drawn by the seed from the training and the test images.

    For validation, the new ones are among the last training images, and the others among those before.
    """
    images = _load(dataset, True)
    if validation:
        pools = [images.colours[:-HELD_OUT], images.colours[-HELD_OUT:]]
    else:
        pools = [images.colours, _load(dataset, False).colours]
    found, generator = [], torch.Generator().manual_seed(seed)
    for name, pool, count in zip(("images", "new"), pools, (trained, new), strict=True):
        if count > len(pool):
            raise ValueError(f"{name} must be in 1..{len(pool)} for {dataset}, got {count}")
        drawn = torch.randperm(len(pool), generator=generator)[: count + SPARE]
        found += [pool[part].to(device) for part in (drawn[:count], drawn[count:])]
    return Parts(*(images._replace(colours=colours) for colours in (found[0], found[2], found[1])))


@lru_cache(maxsize=4)
def _load(dataset: str, train: bool) -> Pictures:
    images = mnist.load(train).images.unsqueeze(1) if dataset == "mnist" else cifar.load(dataset, train).images
    return Pictures(images.flatten(2).mT.contiguous(), (images.shape[2], images.shape[3]))


def colours_of(pixels: Tensor) -> Tensor:
    """Bytes as numbers from 0 to 1."""
    return pixels.float() / 255


def places(size: tuple[int, int], device: torch.device | str = "cpu") -> Tensor:
    """(x, y) of each pixel (T, 2): the middle of the first is at -1, that of the last at 1."""
    down, across = (torch.linspace(-1, 1, count, device=device) for count in size)
    return torch.stack(torch.broadcast_tensors(across, down.unsqueeze(1)), -1).flatten(0, 1)


def psnr(found: Tensor, wanted: Tensor) -> Tensor:
    """Peak signal to noise ratio of each image in dB, `-10 log10(mse)`, (N, T, C) -> (N,); the peak is 1."""
    return -10 * (found - wanted).double().square().mean((1, 2)).log10()


def pooled(each: Tensor) -> float:
    """The PSNR of the mean square error over all images, from that of each (N,)."""
    return -10 * float((10 ** (-each / 10)).mean().log10())


class PointStream(Shuffled):
    """Images in batches, all seen at the same random pixels; a block is an epoch with its own order and pixels."""

    def __init__(self, pictures: Pictures, batch: int, part: int, seed: int) -> None:
        device = pictures.colours.device
        super().__init__(len(pictures.colours), min(batch, len(pictures.colours)), seed, device)
        self.colours, self.places = pictures.colours, places(pictures.size, device)
        self.pixels = torch.zeros(self.steps, len(self.places) // part, dtype=torch.int64, device=device)

    def fill(self, block: int) -> None:
        """Order the images and draw pixels, from only the seed and the block number."""
        generator = self.shuffle(block)
        chance = torch.rand(self.steps, len(self.places), generator=generator, device=self.pixels.device)
        self.pixels.copy_(chance.topk(self.pixels.shape[1], sorted=False).indices)

    def batch(self, step: Tensor) -> Batch:
        """Which images (B,), places (T, 2) and colours (B, T, C)."""
        rows, pixels = self.rows(step), self.pixels.index_select(0, step.view(1)).view(-1)
        colours = self.colours.index_select(0, rows).index_select(1, pixels)
        return rows, self.places.index_select(0, pixels), colours_of(colours)
