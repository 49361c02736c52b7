"""Learning in one pass on fixed inputs, class after class: exact layers beside the learners that need no gradients.

Split MNIST has blurred images, Split CIFAR features of a frozen ResNet-18. Each sample is seen once, nothing is
replayed, and the task is not known. The seed orders the samples and the classes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d, normalize

import neurocoder as nc

from ... import continual as cl
from ...records.record import Record
from ...report.sections import Section
from ...train.context import Context
from ...validate import Count, Positive, validate
from ..experiment import Experiment
from ..split import data
from ..split.variants import DATASETS, Variant
from . import report
from .learners import LEARNERS, make

SETS = ("mnist", "cifar10", "cifar100")


@dataclass(frozen=True)
class ExactExperimentConfig:
    """What the learners see, and how large they are."""

    features: Count = 1_980
    """Features of an exact layer, besides the input."""
    first: Count = 128
    """Inputs that fix the basis: the first ones of the first task."""
    ridge: Positive | None = None
    """Ridge of exact layers; None: by generalised cross-validation."""
    batch: Count = 1_024
    """Samples observed at a time, which changes no result of an exact layer."""
    size: Count = 32
    """Split CIFAR: pixels to a side of the images that the ResNet sees."""
    validation: bool = False
    """Hold out a tenth of each task's training data and evaluate on it; the test set is not read."""
    samples: Count | None = None
    """Only this many samples of each class; None: all."""

    def __post_init__(self) -> None:
        validate(self)


class Exact(Experiment):
    """One pass over tasks in sequence."""

    name: ClassVar[str] = "exact"
    title: ClassVar[str] = "One pass without gradients: Split MNIST and Split CIFAR"
    Config: ClassVar[type] = ExactExperimentConfig
    metric: ClassVar[str | None] = "average_accuracy"
    presets: ClassVar[Mapping[str, ExactExperimentConfig]] = {
        "best": ExactExperimentConfig(),
        "best-224": ExactExperimentConfig(size=224),
        "smoke": ExactExperimentConfig(features=60, samples=100),
    }
    seeds: ClassVar[Mapping[str, Sequence[int]]] = {"best": range(10), "best-224": range(10), "smoke": range(1)}
    minutes: ClassVar[Mapping[str, tuple[float, float]]] = {"best": (120, 3), "best-224": (120, 3), "smoke": (1, 1)}
    selections: ClassVar[Mapping[str, str]] = {"best": "mnist-*", "best-224": "cifar*", "smoke": "mnist-*"}

    def variants(self, config: ExactExperimentConfig) -> list[str]:
        return [f"{name}-{learner}" for name in SETS for learner in LEARNERS]

    def effective(self, config: Mapping[str, Any], variant: str) -> Mapping[str, Any]:
        idle = {"batch"} | ({"size"} if variant.startswith("mnist") else set())
        return {name: value for name, value in config.items() if name not in idle}

    def prepare(self, config: ExactExperimentConfig, variants: Sequence[str]) -> None:
        data.prepare(variant.partition("-")[0] for variant in variants)

    def run(self, context: Context) -> None:
        config: ExactExperimentConfig = context.config
        name, _, learner_name = context.variant.partition("-")
        train, test = whole(name, config, context)
        count, each = DATASETS[name]
        generator = torch.Generator().manual_seed(context.seed)
        rows = torch.randperm(len(train[1]), generator=generator).to(context.device)
        train, order = (train[0][rows], train[1][rows]), torch.randperm(count * each, generator=generator).tolist()
        groups = [tuple(sorted(order[each * task : each * (task + 1)])) for task in range(count)]
        tasks = cl.split(train, test, groups, "class")
        if config.samples is not None:
            most = config.samples * each
            tasks = [cl.Task((t.train[0][:most], t.train[1][:most]), t.test, None, t.classes) for t in tasks]
        width, residual = train[0].shape[1], name != "mnist"
        sizes = width, count * each, config.features, residual, config.ridge
        learner = make(learner_name, *sizes, seed=context.seed, device=context.device)
        if isinstance(learner, nc.ExactLinear) and learner.config.features in ("local", "rbf", "fourier"):
            learner.basis(tasks[0].train[0][: config.first])
        found = cl.stream(learner, tasks, config.batch)
        context.log(
            count,
            average_accuracy=found.final,
            domain_accuracy=found.domain,
            task_accuracy=found.task,
            incremental_accuracy=found.incremental,
            forgetting=cl.forgetting(found.matrix),
        )
        context.observe({"numbers": learner.numbers(), "matrix": found.matrix.tolist()})
        if isinstance(learner, nc.ExactLinear):
            context.observe({"solution": learner.solve()._asdict()})

    def sections(self, records: Sequence[Record], paper: Mapping[str, Any]) -> list[Section]:
        return report.sections(records)


def whole(name: str, config: ExactExperimentConfig, context: Context) -> tuple[cl.tasks.Data, cl.tasks.Data]:
    """Training and test data of all classes: blurred images, centred and normalised, or standardised features."""
    parts = data.tasks_of(
        Variant(name, "class", "adam", "mlp"),
        context.device,
        validation=config.validation,
        size=config.size,
        progress=context.progress,
    )
    train = [torch.cat([task.train[index] for task in parts]) for index in range(2)]
    test = [torch.cat([task.test[index] for task in parts]) for index in range(2)]
    if name == "mnist":
        train[0], test[0] = blurred(train[0]), blurred(test[0])
    return (train[0], train[1]), (test[0], test[1])


def blurred(x: Tensor) -> Tensor:
    """Images (N, 1024) averaged over 3 x 3 pixels twice, minus each one's mean, of unit length."""
    image = x.view(-1, 1, 32, 32)
    for _ in range(2):
        image = avg_pool2d(image, 3, 1, 1)
    flat = image.flatten(1)
    return normalize(flat - flat.mean(1, keepdim=True))
