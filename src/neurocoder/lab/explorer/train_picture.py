"""Train the explorer's steered picture again: python -m neurocoder.lab.explorer.train_picture

On one CPU core it takes half a minute. One network learns to draw a few digits, each with two numbers of its own.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import tyro
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from ..data import mnist
from .page.picture import FILE, Picture, build, drawn, points, write


@dataclass(frozen=True)
class Options:
    """Train the steered picture of `neurocoder explore` on a few MNIST digits and write it."""

    seed: int = 0
    """Seed of the initial weights and of the points."""
    each: int = 4
    """Digits of each class: the first ones of the training set."""
    steps: int = 4000
    """Of Adam; its rate falls to zero as a cosine."""
    pixels: int = 196
    """Of each digit in a step."""
    learning_rate: float = 1e-2
    """Of the network at the start; that of the latents is the same."""
    noise: float = 0.03
    """Standard deviation of noise on the latents, so that neighbours look alike."""
    target: Path = FILE
    """The file to write."""


def first_latents(images: Tensor) -> Tensor:
    """Two principal components (N, 2), spread evenly from -1 to 1."""
    flat = images.flatten(1).float()
    _, _, directions = torch.pca_lowrank(flat, q=2, niter=8)
    ranks = ((flat - flat.mean(0)) @ directions).argsort(0).argsort(0)
    return 1.6 * ((ranks + 0.5) / len(ranks) - 0.5)


def train(options: Options, images: Tensor, labels: Tensor) -> Picture:
    """The network and the latents of images (N, 28, 28)."""
    torch.manual_seed(options.seed)
    steered, grid, target = build(), points(28), images.flatten(1) / 255
    free = nn.Parameter(first_latents(images).atanh())
    optimiser = torch.optim.Adam([*steered.parameters(), free], lr=options.learning_rate)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimiser, lambda step: min(1.0, (step + 1) / 50) * (1 + math.cos(math.pi * step / options.steps)) / 2
    )
    for _ in range(options.steps):
        chosen = torch.randint(784, (options.pixels,))
        latents = free.tanh() + options.noise * torch.randn_like(free)
        logits = steered(grid[chosen].expand(len(images), -1, -1), by=latents).squeeze(-1)
        optimiser.zero_grad()
        binary_cross_entropy_with_logits(logits, target[:, chosen]).backward()
        optimiser.step()
        schedule.step()
    with torch.no_grad():
        latents = free.tanh()
        psnr = round(float(-10 * (drawn(steered, latents) - target).square().mean().log10()), 1)
    facts = {name: value for name, value in asdict(options).items() if name != "target"}
    return Picture(steered.eval(), latents, images, labels.byte(), {**facts, "psnr": psnr})


def main(options: Options) -> None:
    """Train and write."""
    torch.set_num_threads(1)
    digits = mnist.load(True)
    places = torch.cat([(digits.labels == digit).nonzero()[: options.each, 0] for digit in range(10)])
    picture = train(options, digits.images[places], digits.labels[places])
    write(picture, options.target)
    print(f"Wrote {options.target}: {len(places)} digits, {picture.facts['psnr']} dB")


if __name__ == "__main__":
    main(tyro.cli(Options))
