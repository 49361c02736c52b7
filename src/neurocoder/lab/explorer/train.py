"""Train the explorer's demo model again: python -m neurocoder.lab.explorer.train

On one CPU core it takes two minutes. The settings were chosen on the last 10,000 training digits
(`--validation`); the test digits are used only for the figures on the page.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import tyro
from torch import nn

import neurocoder as nc

from ..data import mnist
from ..experiments.digits import patterns
from ..experiments.digits.experiment import HELD_OUT, ShuffledDigits, error, loss
from ..experiments.supervised import schedule
from .page.demo_model import FILE, build, measured, pooled, write


@dataclass(frozen=True)
class Options:
    """Train the demo model of `neurocoder explore` on MNIST and write it."""

    seed: int = 0
    """Seed of the initial weights and of the shuffling."""
    epochs: int = 30
    """Passes over the training digits."""
    batch: int = 128
    """Digits per step."""
    learning_rate: float = 5e-3
    """Of Adam, at the start; it falls to zero as a cosine."""
    shift: int = 1
    """Most pixels by which the digits of a step are moved, so that drawings need not be centred exactly."""
    noise: float = 0.3
    """Standard deviation of noise on what the layer reads; it makes weights smoother images."""
    target: Path = FILE
    """The file to write."""
    validation: bool = False
    """Only print the error on 10,000 training digits that are held out; the test digits are not read."""


def train(options: Options, images: torch.Tensor, labels: torch.Tensor) -> nc.Linear:
    """A layer trained on images (N, 28, 28) and labels (N,)."""
    torch.manual_seed(options.seed)
    layer = build()
    stream = ShuffledDigits(images, labels, options.batch, options.seed)
    steps = options.epochs * stream.steps
    optimiser = torch.optim.Adam(nc.parameter_groups(layer, lr=options.learning_rate))
    rates = torch.optim.lr_scheduler.LambdaLR(optimiser, schedule("cosine", steps))
    for step in range(steps):
        epoch, place = divmod(step, stream.steps)
        if place == 0:
            stream.fill(epoch)
        seen, told = stream.batch(torch.tensor(place))
        moved = torch.randint(-options.shift, options.shift + 1, (2,)).tolist()
        x = pooled(seen.roll(moved, dims=(1, 2)))
        optimiser.zero_grad()
        loss(layer, (x + options.noise * torch.randn_like(x), told)).backward()
        optimiser.step()
        rates.step()
    return layer.eval()


@torch.no_grad()
def centres(layer: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The two attention patterns in each of the first components, as the digits experiment finds them (3, 2, P)."""
    found = patterns.observe(layer, pooled(images), labels)["components"]
    return torch.tensor([component["two"]["centres"] for component in found])


def main(options: Options) -> None:
    """Train, measure on the test digits, write."""
    torch.set_num_threads(1)
    digits = mnist.load(True)
    if options.validation:
        layer = train(options, digits.images[:-HELD_OUT], digits.labels[:-HELD_OUT])
        found = error(layer, pooled(digits.images[-HELD_OUT:]), digits.labels[-HELD_OUT:])
        print(f"validation error {found:.2f}%, {nc.count_parameters(layer)['total']:,} parameters")
        return
    layer, test = train(options, *digits), mnist.load(False)
    facts = {name: value for name, value in asdict(options).items() if name not in ("target", "validation")}
    demo = measured(layer, *test, centres(layer, *test), facts)
    write(demo, options.target)
    print(
        f"Wrote {options.target}: {nc.count_parameters(layer)['total']:,} parameters, {demo.facts['error']}% test error"
    )


if __name__ == "__main__":
    main(tyro.cli(Options))
