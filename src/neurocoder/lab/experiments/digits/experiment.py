"""Digits (paper, section 4.1 and Figure 4): a linear Main Network on MNIST, recoded.

A Neurocoder reads a fixed random projection of the image to 200 numbers and composes its 200 x 10 weight for each
image. The baselines are a linear classifier on all 784 pixels and a small MLP on the same projection.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from ...data import mnist
from ...records.record import Record
from ...report.sections import Section
from ...train.spec import Batch, Task
from ...validate import Count, Positive, validate
from ..experiment import TaskExperiment
from ..supervised import Decay, Shuffled, loss, schedule, starting_values
from . import patterns, report
from .models import CONTROLS, PROGRAMS, VARIANTS, build_model

HELD_OUT = 10_000
"""Training images kept for validation; also the number of others that the training error is measured on."""


@dataclass(frozen=True)
class DigitsConfig:
    """How to train on the digits."""

    epochs: Count = 20
    """Passes over the training images."""
    batch: Count = 128
    """Images per batch; an incomplete last batch is dropped."""
    optimiser: Literal["adam", "sgd"] = "adam"
    """Adam with torch's other defaults, or plain SGD."""
    learning_rate: Positive = 5e-3
    """Initial learning rate."""
    decay: Decay = "cosine"
    """Learning-rate schedule: cosine decay to zero, or constant."""
    validation: bool = False
    """Hold out the last 10,000 training images and evaluate on them; the test set is not read."""
    train_images: Count | None = None
    """Train on only this many images, the first ones; None: all."""

    def __post_init__(self) -> None:
        validate(self)
        most = 60_000 - HELD_OUT * self.validation
        if self.train_images is not None and self.train_images > most:
            raise ValueError(f"train_images must be at most {most}, got {self.train_images}")
        images = self.train_images or most
        if self.batch > images:
            raise ValueError(f"batch must be at most the training images ({images}), got {self.batch}")


class ShuffledDigits(Shuffled):
    """Images and labels in batches."""

    def __init__(self, x: Tensor, y: Tensor, batch: int, seed: int) -> None:
        super().__init__(len(x), batch, seed, x.device)
        self.x, self.y = x, y

    def batch(self, step: Tensor) -> Batch:
        """Images (batch, 784) and labels (batch,)."""
        rows = self.rows(step)
        return self.x.index_select(0, rows), self.y.index_select(0, rows)


def pixels(digits: mnist.Digits) -> Tensor:
    """Flattened images (N, 784) with zero mean and unit variance over the training set."""
    return (digits.images.flatten(1).float() / 255 - 0.1307) / 0.3081


def on_device(train: bool, device: torch.device) -> tuple[Tensor, Tensor]:
    """The training or test images (N, 784) and labels (N,), loaded once per process."""
    return _on_device(train, device, mnist.folder())


@lru_cache(maxsize=2)
def _on_device(train: bool, device: torch.device, folder: Path) -> tuple[Tensor, Tensor]:
    """`folder`, where `mnist.load` finds them, is part of the cache key."""
    digits = mnist.load(train)
    return pixels(digits).to(device), digits.labels.to(device)


def error(model: nn.Module, x: Tensor, y: Tensor) -> float:
    """Error rate, in percent."""
    return 100 * int((model(x).argmax(1) != y).sum()) / len(y)


class Digits(TaskExperiment):
    """Classifying MNIST's digits with a linear Main Network."""

    name: ClassVar[str] = "digits"
    title: ClassVar[str] = "Digits: MNIST with a linear Main Network"
    Config: ClassVar[type] = DigitsConfig
    metric: ClassVar[str | None] = "error"
    presets: ClassVar[Mapping[str, DigitsConfig]] = {
        "quick": DigitsConfig(epochs=10),
        "best": DigitsConfig(epochs=30),
        # The paper states SGD and the batch; rate and epochs are ours.
        "paper": DigitsConfig(epochs=20, batch=32, optimiser="sgd", learning_rate=0.02, decay="none"),
        # Where a plain output layer is still slow to reach its scale: a small rate, and few passes.
        "small": DigitsConfig(epochs=5, learning_rate=1e-4, decay="none", validation=True),
        "smoke": DigitsConfig(epochs=1, batch=32, train_images=4_000),
    }
    seeds: ClassVar = {"quick": range(3), "best": range(5), "paper": range(5), "small": range(5), "smoke": range(1)}
    minutes: ClassVar = {"quick": (3, 1), "best": (120, 3), "paper": (150, 3), "small": (10, 1), "smoke": (1, 1)}
    selections: ClassVar[Mapping[str, str]] = {
        "quick": "linear,mlp,P10-H4-J1,P10-H4-J5",
        "small": ",".join(("linear", "mlp", *CONTROLS.values(), *CONTROLS)),
    }

    def variants(self, config: DigitsConfig) -> list[str]:
        return list(VARIANTS)

    def prepare(self, config: DigitsConfig, variants: Sequence[str]) -> None:
        mnist.folder()

    def build(self, config: DigitsConfig, variant: str, seed: int, device: torch.device) -> Task:
        if variant not in VARIANTS:
            raise ValueError(f"variant must be one of {', '.join(VARIANTS)}; got {variant!r}")
        x, y = on_device(True, device)
        if config.validation:
            held_out = x[-HELD_OUT:], y[-HELD_OUT:]
            x, y = x[:-HELD_OUT], y[:-HELD_OUT]
        else:
            held_out = on_device(False, device)
        x, y = x[: config.train_images], y[: config.train_images]
        with starting_values(seed):
            model = build_model(variant).to(device)
        stream = ShuffledDigits(x, y, config.batch, seed)
        steps = config.epochs * stream.steps

        def optimiser(parameters: Iterable[tuple[str, Tensor]], learning_rate: float) -> torch.optim.Optimizer:
            kind = {"adam": torch.optim.Adam, "sgd": torch.optim.SGD}[config.optimiser]
            return kind(parameters, lr=learning_rate, fused=True)

        def evaluate(model: nn.Module) -> dict[str, float]:
            return {"error": error(model, *held_out), "train_error": error(model, x[:HELD_OUT], y[:HELD_OUT])}

        def observe(model: nn.Module) -> dict[str, Any]:
            return patterns.observe(model, *held_out) if variant in PROGRAMS else {}

        return Task(
            model=model,
            stream=stream,
            loss=loss,
            optimiser=optimiser,
            learning_rate=config.learning_rate,
            schedule=schedule(config.decay, steps),
            steps=steps,
            evaluate_every=stream.steps,
            evaluate=evaluate,
            observe=observe,
        )

    def sections(self, records: Sequence[Record], paper: Mapping[str, Any]) -> list[Section]:
        return report.sections(records, paper)
