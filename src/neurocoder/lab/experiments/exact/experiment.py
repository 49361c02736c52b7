"""Learning in one pass on fixed inputs, class after class: exact layers beside the learners of the field.

Split MNIST has blurred images, Permuted MNIST images with an order of pixels for each task, Split CIFAR features of
a frozen ResNet-18, CLINC150 and BANKING77 those of a frozen sentence encoder. Each sample is seen once and the task is
not known. The seed orders the samples and the classes, and draws what a learner draws.
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
from ..split.variants import Variant
from . import report, sentences
from .learners import LEARNERS, SIZED, STORING, make, setting, stored

SETS = {
    "mnist": (5, 2),
    "permuted": (10, 10),
    "cifar10": (5, 2),
    "cifar100": (20, 5),
    "clinc150": (15, 10),
    "banking77": (7, 11),
}
"""Tasks, and classes of each."""
RESIDUAL = ("cifar10", "cifar100", "clinc150", "banking77")
"""Sets whose inputs are features: they stand beside those of exact layers."""
SIZES = (250, 500, 2_000, 4_000)
"""Numbers of features beside the usual one."""
PERMUTED = 10_000
"""Training images of a task of Permuted MNIST, and 2,000 test images."""


@dataclass(frozen=True)
class ExactExperimentConfig:
    """What the learners see, and how large they are."""

    features: Count = 1_000
    """Features besides the input, of learners that have any, unless the variant says how many."""
    first: Count = 128
    """Inputs that fix the basis: the first ones of the first task."""
    value: Positive | None = None
    """Width, shrinkage, ridge or rate of the learner; None: what was best on validation data."""
    batch: Count = 8_192
    """Samples observed at a time, which changes no result but where `every` tests."""
    every: Count | None = None
    """Test after each so many batches too; None: only after tasks."""
    size: Count = 32
    """Split CIFAR: pixels to a side of the images that the ResNet sees."""
    validation: bool = False
    """Hold out a tenth of the training data and evaluate on it, after the last task only; the test set is not read."""
    samples: Count | None = None
    """Only this many samples of each class; None: all."""

    def __post_init__(self) -> None:
        validate(self)


class Exact(Experiment):
    """One pass over tasks in sequence."""

    name: ClassVar[str] = "exact"
    title: ClassVar[str] = "One pass over frozen features: exact layers beside the field"
    Config: ClassVar[type] = ExactExperimentConfig
    metric: ClassVar[str | None] = "average_accuracy"
    presets: ClassVar[Mapping[str, ExactExperimentConfig]] = {
        "quick": ExactExperimentConfig(features=250, samples=1_000),
        "best": ExactExperimentConfig(),
        "best-224": ExactExperimentConfig(size=224),
        "smoke": ExactExperimentConfig(features=66, samples=100),
    }
    seeds: ClassVar[Mapping[str, Sequence[int]]] = {
        "quick": range(1),
        "best": range(10),
        "best-224": range(10),
        "smoke": range(1),
    }
    minutes: ClassVar[Mapping[str, tuple[float, float]]] = {
        "quick": (1, 1),
        "best": (120, 10),
        "best-224": (120, 10),
        "smoke": (1, 1),
    }
    selections: ClassVar[Mapping[str, str]] = {
        "quick": "mnist-local16,mnist-rbf,mnist-relu,mnist-fourier,mnist-randumb,mnist-ridge,mnist-slda,mnist-mean",
        "best": "mnist-*",
        "best-224": "cifar*",
        "smoke": "mnist-*",
    }

    def variants(self, config: ExactExperimentConfig) -> list[str]:
        found = []
        for name in SETS:
            for learner in LEARNERS:
                found.append(f"{name}-{learner}")
                found += [f"{name}-{learner}-{size}" for size in SIZES if learner in (*SIZED, *STORING)]
        return found

    def naming(self, config: ExactExperimentConfig) -> str:
        sizes = ", ".join(map(str, SIZES))
        sized = ", ".join((*SIZED, *STORING))
        return f"SET-LEARNER: {', '.join(SETS)}; {', '.join(LEARNERS)}; {sized} also -{sizes}"

    def effective(self, config: Mapping[str, Any], variant: str) -> Mapping[str, Any]:
        idle = set() if variant.startswith("cifar") else {"size"}
        idle |= set() if config["every"] else {"batch"}
        return {name: value for name, value in config.items() if name not in idle}

    def chosen(self, config: ExactExperimentConfig, variant: str) -> Mapping[str, Any]:
        name, learner, _ = parts(variant)
        return {"value": config.value or setting(name, learner, seen(name, config))}

    def prepare(self, config: ExactExperimentConfig, variants: Sequence[str]) -> None:
        names = {variant.partition("-")[0] for variant in variants}
        data.prepare(names - set(sentences.SETS))
        for name in sorted(names & set(sentences.SETS)):
            sentences.prepare(name)

    def run(self, context: Context) -> None:
        config: ExactExperimentConfig = context.config
        name, learner_name, size = parts(context.variant)
        tasks = tasks_of(name, config, context)
        width, (count, each) = tasks[0].train[0].shape[1], SETS[name]
        value = config.value or setting(name, learner_name, seen(name, config))
        residual = name in RESIDUAL
        samples, features = (size, None) if learner_name in STORING else (None, size)
        features = features or config.features
        common = residual, value, context.seed, context.device, samples
        learner = make(learner_name, width, count * each, features, *common)
        if hasattr(learner, "basis"):
            learner.basis(tasks[0].train[0][: config.first])
        found = cl.stream(learner, tasks, config.batch, every=config.every, last=config.validation)
        scores = {"average_accuracy": found.final, "domain_accuracy": found.domain, "task_accuracy": found.task}
        if not config.validation:
            scores |= {"incremental_accuracy": found.incremental, "forgetting": cl.forgetting(found.matrix)}
        context.log(count, **scores)
        context.observe({"value": value, "numbers": stored(learner, config.first, width), "curve": found.curve})
        if not config.validation:
            context.observe({"matrix": found.matrix.tolist()})
        if isinstance(learner, nc.ExactLinear):
            context.observe({"solution": learner.solve()._asdict()})

    def sections(self, records: Sequence[Record], paper: Mapping[str, Any]) -> list[Section]:
        return report.sections(records)


def parts(variant: str) -> tuple[str, str, int | None]:
    """Data set, learner, and the number of features or of stored samples that the variant names."""
    name, _, learner = variant.partition("-")
    first, _, last = learner.rpartition("-")
    return (name, first, int(last)) if last.isdigit() else (name, learner, None)


def seen(name: str, config: ExactExperimentConfig) -> int:
    """Pixels a side that the ResNet sees; 32 where there is none."""
    return config.size if name.startswith("cifar") else 32


def tasks_of(name: str, config: ExactExperimentConfig, context: Context) -> list[cl.Task]:
    """The tasks, in the order of the seed; the samples of each in another order."""
    generator = torch.Generator().manual_seed(context.seed)
    count, each = SETS[name]
    if name == "permuted":
        tasks = [permuted(task, generator) for task in loaded(name, config, context)]
        tasks = [tasks[index] for index in torch.randperm(count, generator=generator)]
    else:
        train, test = whole(name, config, context)
        rows = torch.randperm(len(train[1]), generator=generator).to(context.device)
        order = torch.randperm(count * each, generator=generator).tolist()
        groups = [tuple(sorted(order[each * task : each * (task + 1)])) for task in range(count)]
        tasks = cl.split((train[0][rows], train[1][rows]), test, groups, "class")
    if config.samples is None:
        return tasks
    most = config.samples * each
    return [cl.Task((t.train[0][:most], t.train[1][:most]), t.test, None, t.classes) for t in tasks]


def loaded(name: str, config: ExactExperimentConfig, context: Context) -> list[cl.Task]:
    """The tasks of `neurocoder run split`."""
    return data.tasks_of(
        Variant(name, "class", "adam", "mlp"),
        context.device,
        validation=config.validation,
        size=config.size,
        progress=context.progress,
    )


def permuted(task: cl.Task, generator: torch.Generator) -> cl.Task:
    """Some of the images of a task, each minus its mean, of unit length."""
    rows = torch.randperm(len(task.train[1]), generator=generator)[:PERMUTED].to(task.train[1].device)
    (x, y), (x_test, y_test) = task.train, task.test
    test = unit(x_test[: PERMUTED // 5]), y_test[: PERMUTED // 5]
    return cl.Task((unit(x[rows]), y[rows]), test, None, task.classes)


def whole(name: str, config: ExactExperimentConfig, context: Context) -> tuple[cl.tasks.Data, cl.tasks.Data]:
    """Training and test data of all classes: blurred images or features."""
    if name in sentences.SETS:
        return sentences.features(name, context.device, config.validation, context.progress)
    tasks = loaded(name, config, context)
    train = [torch.cat([task.train[index] for task in tasks]) for index in range(2)]
    test = [torch.cat([task.test[index] for task in tasks]) for index in range(2)]
    if name == "mnist":
        train[0], test[0] = blurred(train[0]), blurred(test[0])
    return (train[0], train[1]), (test[0], test[1])


def blurred(x: Tensor) -> Tensor:
    """Images (N, 1024) averaged over 3 x 3 pixels twice, minus each one's mean, of unit length."""
    image = x.view(-1, 1, 32, 32)
    for _ in range(2):
        image = avg_pool2d(image, 3, 1, 1)
    return unit(image.flatten(1))


def unit(x: Tensor) -> Tensor:
    """Rows minus their mean, of unit length."""
    return normalize(x - x.mean(1, keepdim=True))
