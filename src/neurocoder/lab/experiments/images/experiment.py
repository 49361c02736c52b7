"""Object recognition (paper, section 4.1, Tables 2 and 6): CIFAR-10 and CIFAR-100 with MLP, LeNet and DenseNet.

A variant names data set, network and model: `cifar10-lenet-neurocoder`. The appendix gives Adam and batches of 128. It
leaves open the learning rate, its decay, the number of epochs, augmentation and the size of the LSTM. Preset `paper`
fills that in so that the original network comes near the paper's: a constant 1e-3; 10 epochs of unchanged images
for the MLP, 11 of images mirrored at random for LeNet; crops, mirroring and cosine decay for DenseNet, which
otherwise stays far below the 93.6% that the paper gives; an LSTM of 8, the one size that the paper names (for MNIST).
Preset `best` is the same for all networks: crops, mirroring and cosine decay.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from statistics import median
from time import monotonic
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

import neurocoder as nc

from ...data import cifar
from ...records.record import Record
from ...report.compare import Rows
from ...report.sections import Plot, Section
from ...train.context import Context
from ...train.loop import evaluating, train
from ...train.spec import Task
from ...validate import Count, Positive, validate
from ..experiment import TaskExperiment
from ..supervised import Decay, adam, loss, schedule, starting_values
from . import report as images_sections
from .augmentation import Kind
from .data import ImageStream, Labelled, accuracy, division, load, predictions
from .models import MODELS, NETWORKS, Variant, build_model, parse, variants
from .observations import observe

COMPARED = ",".join(
    f"*-{network}-{model}"
    for network in ("mlp", "lenet")
    for model in ("original", "mixture", "stored-program", "neurocoder")
)
"""The paper's four models. DenseNet takes long, so it is run by itself: --variants 'cifar10-densenet-*' --seeds 0."""
SAMPLE = 5_000
"""Training images on which the training accuracy is measured."""


@dataclass(frozen=True)
class ImagesConfig:
    """How to train on the images."""

    epochs_mlp: Count = 60
    """Passes over the training images."""
    epochs_lenet: Count = 30
    epochs_densenet: Count = 30
    augmentation_mlp: Kind = "reflect"
    """Training images as they are; mirrored at random; also cropped at random, reflected at the border."""
    augmentation_lenet: Kind = "reflect"
    augmentation_densenet: Kind = "reflect"
    decay_mlp: Decay = "cosine"
    """Learning-rate schedule: cosine decay to zero, or constant."""
    decay_lenet: Decay = "cosine"
    decay_densenet: Decay = "cosine"
    batch: Count = 128
    """Images per batch; an incomplete last batch is dropped."""
    learning_rate: Positive = 1e-3
    """Adam's initial learning rate."""
    hidden: Count = 8
    """Size of the composition networks' LSTM."""
    validation: bool = False
    """Hold out 5,000 training images and evaluate on them; the test set is not read."""
    train_images: Count | None = None
    """Train on only this many images; None: all."""
    source: Literal["cifar", "synthetic"] = "cifar"
    """CIFAR's files, or generated images that need none."""
    depth: int = 100
    """Of DenseNet."""
    checkpointing: bool = False
    """Recompute DenseNet's activations in the backward: less memory, more time."""
    compile: bool = False
    """Train through torch.compile, which fuses what lies between DenseNet's convolutions; the first step takes long."""

    def __post_init__(self) -> None:
        validate(self)
        if self.train_images is not None and self.batch > self.train_images:
            raise ValueError(f"batch must be at most the training images ({self.train_images}), got {self.batch}")
        if self.compile and self.checkpointing:
            raise ValueError("checkpointing must be False with compile, which chooses what to recompute, got True")

    def of(self, setting: str, network: str) -> Any:
        """The setting `epochs`, `augmentation` or `decay` of a network."""
        return getattr(self, f"{setting}_{network}")


def controllers(model: nn.Module) -> set[str]:
    """Names of the controllers' parameters."""
    groups = nc.parameter_groups(model, lr=1.0)
    chosen = {id(p) for group in groups if group["name"].startswith("controller") for p in group["params"]}
    return {name for name, parameter in model.named_parameters() if id(parameter) in chosen}


def uncompiled(config: ImagesConfig) -> AbstractContextManager[object]:
    """Evaluation runs without torch.compile: another mode and batch size would compile everything again."""
    return torch.compiler.set_stance("force_eager") if config.compile else nullcontext()


class Images(TaskExperiment):
    """Classifying small colour images."""

    name: ClassVar[str] = "images"
    title: ClassVar[str] = "Object recognition: CIFAR-10 and CIFAR-100"
    Config: ClassVar[type] = ImagesConfig
    metric: ClassVar[str | None] = "accuracy"
    presets: ClassVar[Mapping[str, ImagesConfig]] = {
        "quick": ImagesConfig(epochs_mlp=5, augmentation_mlp="none", train_images=10_000),
        "best": ImagesConfig(),
        "paper": ImagesConfig(
            epochs_mlp=10,
            epochs_lenet=11,
            augmentation_mlp="none",
            augmentation_lenet="flip",
            decay_mlp="none",
            decay_lenet="none",
        ),
        "smoke": ImagesConfig(2, 1, 1, batch=32, train_images=64, source="synthetic", depth=10),
    }
    seeds: ClassVar[Mapping[str, Sequence[int]]] = dict.fromkeys(("quick", "smoke"), range(1)) | dict.fromkeys(
        ("best", "paper"), range(5)
    )
    selections: ClassVar[Mapping[str, str]] = {
        "quick": "cifar10-mlp-original,cifar10-mlp-neurocoder",
        "best": COMPARED,
        "paper": COMPARED,
        "smoke": "cifar10-*-original,cifar10-*-neurocoder",
    }
    minutes: ClassVar[Mapping[str, tuple[float, float]]] = {
        "quick": (2, 1),
        "best": (3_000, 30),
        "paper": (1_500, 15),
        "smoke": (1, 1),
    }

    def variants(self, config: ImagesConfig) -> list[str]:
        return variants()

    def effective(self, config: Mapping[str, Any], variant: str) -> Mapping[str, Any]:
        if variant not in variants():  # of an older version
            return config
        chosen = parse(variant)
        model, others = MODELS[chosen.model], [network for network in NETWORKS if network != chosen.network]
        idle = {f"{setting}_{network}" for setting in ("epochs", "augmentation", "decay") for network in others}
        if chosen.network != "densenet":
            idle |= {"depth", "checkpointing"}
        if model.config or not model.targets[chosen.network] or "hidden" in model.changes:
            idle.add("hidden")
        return {name: value for name, value in config.items() if name not in idle}

    def prepare(self, config: ImagesConfig, variants: Sequence[str]) -> None:
        if config.source == "cifar":
            for dataset in sorted({parse(variant).dataset for variant in variants}):
                cifar.prepare(dataset)

    def build(self, config: ImagesConfig, variant: str, seed: int, device: torch.device) -> Task:
        chosen = parse(variant)
        data, validation = training_data(config, chosen, device)
        with starting_values(seed):
            model = build_model(chosen, config.hidden, config.depth, config.checkpointing).to(device)
        if config.compile:
            model.compile(dynamic=False)
        stream = ImageStream(data, config.batch, seed, config.of("augmentation", chosen.network))
        steps = config.of("epochs", chosen.network) * stream.steps
        factor = MODELS[chosen.model].controller_rate
        faster = controllers(model) if factor != 1 else set()

        def optimiser(parameters: Iterable[tuple[str, Tensor]], learning_rate: float) -> torch.optim.Optimizer:
            return adam(parameters, learning_rate, faster, factor)

        def evaluate(model: nn.Module) -> dict[str, float]:
            seconds = monotonic() - stream.begun  # the losses were just read, so the device has finished the epoch
            with uncompiled(config):
                found = {"train_accuracy": accuracy(model, data.first(SAMPLE))}
                if validation is not None:
                    found["validation_accuracy"] = accuracy(model, validation)
            return found | {"epoch_seconds": seconds}

        return Task(
            model=model,
            stream=stream,
            loss=loss,
            optimiser=optimiser,
            learning_rate=config.learning_rate,
            schedule=schedule(config.of("decay", chosen.network), steps),
            steps=steps,
            evaluate_every=stream.steps,
            evaluate=evaluate,
            observe=lambda model: {},
        )

    def run(self, context: Context) -> None:
        """Train, then evaluate once on the test set, or on the held-out images with `validation`."""
        config, variant = context.config, parse(context.variant)
        task = self.build(config, context.variant, context.seed, context.device)
        train(context, task)
        if config.validation:
            name, data = "validation", training_data(config, variant, context.device)[1]
            assert data is not None
        else:
            name, data = "test", load(variant.dataset, config.source, False, context.device)
        with evaluating(task.model, context), uncompiled(config):
            predicted = predictions(task.model, data)
            context.observe(observe(task.model, predicted, data, variant.classes))
        reached = 100 * int((predicted == data.labels).sum()) / len(data.labels)
        times = [entry["epoch_seconds"] for entry in context.history]
        context.log(
            task.steps,
            accuracy=reached,
            **{f"{name}_accuracy": reached},
            train_accuracy=context.history[-1]["train_accuracy"],
            epoch_seconds=median(times[1:] or times),  # the first one warms up
        )

    def sections(self, records: Sequence[Record], paper: Mapping[str, Any]) -> list[Section]:
        return images_sections.sections(records, paper)

    def compared(self, rows: Rows) -> list[Plot]:
        return images_sections.compared(rows, self.effective)


def training_data(config: ImagesConfig, variant: Variant, device: torch.device) -> tuple[Labelled, Labelled | None]:
    """The images to train on, and with `validation` those that are held out."""
    data = load(variant.dataset, config.source, True, device)
    validation = None
    if config.validation:
        kept, held_out = division(len(data.labels))
        data, validation = data.take(kept), data.take(held_out)
    count = len(data.labels)
    if config.train_images is not None and config.train_images > count:
        raise ValueError(f"train_images must be at most {count}, got {config.train_images}")
    return data.first(config.train_images), validation
