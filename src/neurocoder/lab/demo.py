"""The main job in two minutes: on MNIST, Neurocoders against a linear classifier of no fewer parameters.

A Neurocoder reads a fixed random projection of the image to 200 numbers and composes its 200 x 10 weight for each
image from ten slots. Run as `neurocoder demo`.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import neurocoder as nc

from .data import mnist
from .experiments.digits import error, pixels
from .experiments.digits_attention import examples
from .experiments.digits_variants import build_model
from .networks.linear import Projected
from .plots import style
from .plots.digits import attention_grid

EPOCHS, BATCH, LEARNING_RATE = 12, 128, 5e-3


class Result(NamedTuple):
    """One trained model."""

    name: str
    model: nn.Module
    error: float
    """Test error in percent."""
    seconds: float


MODELS = {"linear classifier": "linear", "Neurocoder, J=1": "P10-H4-J1", "Neurocoder, J=5": "P10-H4-J5"}
"""Variants of the digits experiment, by title; the Neurocoders have at most 7,532 parameters, the linear classifier
7,850."""


def train(model: nn.Module, x: Tensor, y: Tensor, seed: int, epochs: int, advance: Callable[[], None]) -> None:
    """Adam with cosine decay on the task loss plus the auxiliary loss; `advance` is called after each epoch."""
    batches = len(x) // BATCH
    optimiser = torch.optim.Adam(model.parameters(), LEARNING_RATE, fused=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, epochs * batches)
    shuffle = torch.Generator().manual_seed(seed)
    for _ in range(epochs):
        for rows in torch.randperm(len(x), generator=shuffle)[: batches * BATCH].view(batches, BATCH):
            optimiser.zero_grad()
            (cross_entropy(model(x[rows]), y[rows]) + nc.auxiliary_loss(model)).backward()
            optimiser.step()
            schedule.step()
        advance()


def run(console: Console, seed: int, epochs: int) -> list[Result]:
    """Train and test every model."""
    console.print("MNIST: 60,000 training and 10,000 test images, from the package")
    (x, y), (test_x, test_y) = ((pixels(digits), digits.labels) for digits in (mnist.load(True), mnist.load(False)))
    results = []
    bar = (TextColumn("{task.description:18}"), BarColumn(), MofNCompleteColumn(), "epochs", TimeRemainingColumn())
    with Progress(*bar, console=console) as progress:
        for name, variant in MODELS.items():
            torch.manual_seed(seed)
            model, started = build_model(variant), time.perf_counter()
            task = progress.add_task(name, total=epochs)
            train(model, x, y, seed, epochs, lambda task=task: progress.advance(task))  # type: ignore[misc]
            with torch.no_grad():
                missed = error(model, test_x, test_y)
            results.append(Result(name, model, missed, time.perf_counter() - started))
    return results


def table(results: list[Result]) -> Table:
    """Parameters, test error and time."""
    rows = Table("model", *(("parameters", "test error", "seconds")), title="MNIST, test set")
    for column in rows.columns[1:]:
        column.justify = "right"
    for result in results:
        total = nc.count_parameters(result.model)["total"]
        rows.add_row(result.name, f"{total:,}", f"{result.error:.2f}%", f"{result.seconds:.0f}")
    return rows


def attention(model: nn.Module, digits: mnist.Digits) -> list[list[list[float]]]:
    """Mean attention over `M_U` of each digit's images (10, r, P)."""
    with torch.no_grad(), nc.record(model) as trace:
        model(pixels(digits))
    (programs,) = trace.values()
    return [programs.u[digits.labels == digit].mean(0).tolist() for digit in range(10)]


def main(argv: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="neurocoder demo", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--seed", type=int, default=0, help="of the start, the projection and the shuffling")
    parser.add_argument("--epochs", type=int, default=EPOCHS, help="passes over the training images")
    parser.add_argument("--output", type=Path, default=Path("demo"), help="folder for the figure")
    arguments = parser.parse_args(argv)
    if arguments.epochs < 1:
        parser.error(f"--epochs must be at least 1, got {arguments.epochs}")
    torch.set_num_threads(1)  # the tensors are small: more threads only wait for each other
    console = Console()
    results = run(console, arguments.seed, arguments.epochs)
    console.print(table(results))
    digits = mnist.load(False)
    models = {result.name: result.model for result in results if isinstance(result.model, Projected)}
    target = arguments.output / "attention.png"
    rows = {name.replace(", ", "\n"): attention(model, digits) for name, model in models.items()}
    style.save(attention_grid(examples(), rows), target)
    console.print(f"Attention of each digit over the slots of M_U: {os.path.relpath(target)}")


if __name__ == "__main__":
    main()
