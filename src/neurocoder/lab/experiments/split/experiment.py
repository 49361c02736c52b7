"""Continual learning (paper, section 4.4, Tables 3 and 4, Figure 8): tasks in sequence, none of which comes again.

Split MNIST is five tasks of two digits, in the protocol of Hsu et al. (2018). Split CIFAR is five tasks of two classes
or twenty of five, on features of a frozen ResNet-18. A variant names data set, scenario, method and model:
`mnist-domain-ewc-neurocoder`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

import neurocoder as nc

from ... import continual as cl
from ...records.record import Record
from ...report.compare import Rows
from ...report.sections import Plot, Section
from ...train.context import Context
from ...validate import Count, NonNegative, validate
from ..experiment import Experiment
from ..supervised import starting_values
from . import report as split_sections
from .data import prepare, tasks_of
from .growing import Growing, View, erased, nearest_keys, slot_map
from .models import build_growing, build_model, size_of
from .variants import make_method, make_optimiser, naming, parse, variants

VIEWS: dict[str, View] = {"mnist": "blurred", "permuted": "pixels"}
"""What the keys of growing models are made of, by data set; else features."""


@dataclass(frozen=True)
class SplitConfig:
    """How to train on the tasks."""

    epochs: Count = 4
    """Passes over each task's data."""
    batch: Count = 128
    """Samples per batch; an epoch's last one has what is left."""
    rate: NonNegative = 1.0
    """Factor on the learning rates of Hsu et al.: 1e-3 for Adam, which penalties use too, and 1e-2 for Adagrad."""
    strength: NonNegative | None = 1.0
    """Factor on the penalties' coefficients of Hsu et al.; None: the factor that was best on validation data, for each
    scenario, method and model."""
    recode: Literal["all", "trunk", "shared"] | None = None
    """Which layers of the Neurocoders are recoded: all; not the output layers; all, with one output layer, and so one
    memory and one controller, for the heads of all tasks. None: `READINGS` of the data set."""
    residual: bool = False
    """Whether the layers of `neurocoder` have a gated residual."""
    orthogonality: NonNegative = 10.0
    """Weight of the orthogonal loss, a."""
    hidden: Count | None = None
    """Size of the composition networks' LSTM, which the paper does not give; None: `READINGS` of the data set."""
    width: Count | None = None
    """Units of each hidden layer; None: 256, or 512 on features."""
    slots: Count | None = None
    """Slots of each Neurocoder layer, or of all heads of a growing model together; None: the model's own number, as for
    the next four."""
    rank: Count | None = None
    """Growing models: rank of each slot's program."""
    key_dim: Count | None = None
    """Growing models: numbers in a key: pixels of a smaller image, or a fixed random projection of features."""
    writes: Count | None = None
    """Growing models: slots that one step may write."""
    max_similarity: float | None = None
    """Growing models: an input becomes a new key if its cosine to every key is below this."""
    size: Count = 32
    """Split CIFAR: pixels to a side of the images that the ResNet sees, 32 or, resized, 224."""
    validation: bool = False
    """Hold out a tenth of each task's training data and evaluate on it; the test set is not read."""
    samples: Count | None = None
    """Train on only this many samples of each task, and evaluate on as many; None: all."""

    def __post_init__(self) -> None:
        validate(self)
        if self.max_similarity is not None and not -1 < self.max_similarity <= 1:
            raise ValueError(f"max_similarity must be above -1 and at most 1, got {self.max_similarity!r}")


PROGRAMS = ("recode", "residual", "orthogonality", "hidden")
MEMORY = ("slots", "rank", "key_dim", "writes", "max_similarity")
"""Settings that only Neurocoders and only growing models have; a number of slots both, if it is given."""
READINGS = {"mnist": {"recode": "shared", "hidden": 21}}
"""What the paper leaves open: on Split MNIST, what comes nearest to the parameters of its Table 6 in both scenarios."""
OTHERS = {"recode": "all", "hidden": 32}
BEST = SplitConfig(rate=0.1, strength=None, recode="trunk", residual=True, orthogonality=0.1, hidden=32)
FEATURES = ",".join(
    [
        f"cifar*-task-{method}-{model}"
        for method in ("adam", "si")
        for model in ("mlp", "neurocoder", "neurocoder-plain")
    ]
    + ["cifar*-adagrad-growing"]
)


def reading(config: Mapping[str, Any], variant: str) -> dict[str, Any]:
    """Which layers are recoded, and the LSTM's size, where the config leaves them to the data set."""
    found: Mapping[str, Any] = READINGS.get(parse(variant).dataset, OTHERS)
    given = {**OTHERS, **config}  # older records may not have them
    return {name: found[name] if given[name] is None else given[name] for name in OTHERS}


class Split(Experiment):
    """Tasks in sequence, on parts of a data set."""

    name: ClassVar[str] = "split"
    title: ClassVar[str] = "Continual learning: Split MNIST and Split CIFAR"
    Config: ClassVar[type] = SplitConfig
    metric: ClassVar[str | None] = "average_accuracy"
    loops: ClassVar[Sequence[str]] = ("plain", "graph")
    presets: ClassVar[Mapping[str, SplitConfig]] = {
        "quick": SplitConfig(),
        "best": BEST,
        "best-224": replace(BEST, size=224),
        "paper": SplitConfig(),
        "paper-224": SplitConfig(size=224),
        "stream": SplitConfig(epochs=1),
        "smoke": SplitConfig(epochs=1, samples=128),
    }
    seeds: ClassVar[Mapping[str, Sequence[int]]] = {
        "quick": range(1),
        "best": range(10),
        "best-224": range(10),
        "paper": range(10),
        "paper-224": range(10),
        "stream": range(10),
        "smoke": range(1),
    }
    selections: ClassVar[Mapping[str, str]] = {
        "quick": "mnist-domain-adam-mlp,mnist-domain-adam-neurocoder,mnist-task-adam-mlp,mnist-task-adam-neurocoder",
        "best": "mnist-*",
        "best-224": FEATURES,
        "paper": "mnist-*",
        "paper-224": FEATURES,
        "stream": "mnist-*-adagrad-mlp,mnist-*-adagrad-growing",
        "smoke": "mnist-domain-*-mlp,mnist-class-lwf-mlp,mnist-task-ewc-neurocoder",
    }
    minutes: ClassVar[Mapping[str, tuple[float, float]]] = {
        "quick": (3, 1),
        "best": (2_000, 10),
        "best-224": (200, 3),
        "paper": (2_000, 10),
        "paper-224": (200, 3),
        "stream": (20, 2),
        "smoke": (1, 1),
    }

    def variants(self, config: SplitConfig) -> list[str]:
        return variants()

    def naming(self, config: SplitConfig) -> str:
        return naming()

    def effective(self, config: Mapping[str, Any], variant: str) -> Mapping[str, Any]:
        idle = {*(() if "neurocoder" in variant else PROGRAMS), *(() if "growing" in variant else MEMORY)}
        if "neurocoder" in variant and config.get("slots"):
            idle.remove("slots")
        if not variant.endswith(("-mlp", "-stored-program", "-neurocoder", "-neurocoder-plain")):
            idle.add("width")  # growing models have none, the other MLPs their own
        known = {"width": None, **config, **reading(config, variant)}  # older records have no width
        return {name: value for name, value in known.items() if name not in idle}

    def chosen(self, config: SplitConfig, variant: str) -> Mapping[str, Any]:
        one = parse(variant)
        found: dict[str, Any] = {"coefficient": make_method(one, config.strength)[1]}
        if one.model.startswith("growing"):
            found["size"] = size_of(one.model, config, VIEWS.get(one.dataset, "features"))._asdict()
        return found

    def prepare(self, config: SplitConfig, variants: Sequence[str]) -> None:
        prepare(parse(variant).dataset for variant in variants)

    def run(self, context: Context) -> None:
        given: SplitConfig = context.config
        config = replace(given, **reading(asdict(given), context.variant))
        variant = parse(context.variant)
        tasks = tasks_of(
            variant,
            context.device,
            validation=config.validation,
            samples=config.samples,
            size=config.size,
            progress=context.progress,
        )
        inputs, outputs = tasks[0].train[0].shape[1], variant.outputs
        grows = variant.model.startswith("growing")
        if grows and variant.scenario == "class":
            every = tuple(range(outputs))
            tasks = [cl.Task(task.train, task.test, task.head, every, task.width) for task in tasks]
        slots = config.slots or (100 if variant.dataset in ("cifar10", "cifar100") else 50)
        view = VIEWS.get(variant.dataset, "features")
        heads = len(tasks) if variant.scenario == "task" else None
        with starting_values(context.seed):
            if grows:
                model: nn.Module = build_growing(variant.model, inputs, outputs, heads, config, view)
            else:
                model = build_model(variant.model, inputs, outputs, heads, config, slots)
        model.to(context.device)
        context.describe(model)
        method, _ = make_method(variant, config.strength)

        def optimiser(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
            made = make_optimiser(variant.method, parameters, config.rate)
            if grows:
                nc.grow(model, made)
            return made

        trainer = cl.Trainer(
            model,
            method,
            optimiser=optimiser,
            batch=config.batch,
            epochs=config.epochs,
            seed=context.seed,
            tasks=tasks,
            capture=context.loop == "graph",
        )
        steps = [config.epochs * math.ceil(len(task.train[1]) / config.batch) for task in tasks]
        saved = context.restored
        untrained = saved["untrained"] if saved else [cl.accuracy(model, task) for task in tasks]
        drift: dict[str, list[list[float]]] = saved["drift"] if saved else {}
        if saved:
            trainer.load_state_dict(saved["trainer"])

        def after_step(trainer: cl.Trainer) -> None:
            done = sum(steps[: trainer.task]) + trainer.step  # replay takes more steps
            context.progress(min(done, sum(steps)), sum(steps), task=trainer.task + 1)
            if context.should_save:
                context.save(trainer=trainer, untrained=untrained, drift=drift)

        while trainer.task < len(tasks):
            trainer.learn(tasks[trainer.task], after_step)
            row = trainer.matrix[trainer.task - 1]
            now: dict[str, Any] = {"average_accuracy": row[: trainer.task].mean().item()}
            if trainer.task == len(tasks):
                now |= results(trainer.matrix, untrained)
                if isinstance(model, Growing):
                    now["nearest_key"] = nearest_keys(model, tasks)
            context.log(trainer.task, **now)
            used = usage(model, tasks)
            for name, rows in used.items():
                own = [row for row in rows if row]  # a head serves one task
                drift.setdefault(name, []).append([round(sum(slot) / len(own), 4) for slot in zip(*own, strict=True)])
        matrix = [[round(value, 4) for value in row] for row in trainer.matrix.tolist()]
        context.observe({"matrix": matrix, "untrained": untrained, **self.chosen(config, context.variant)})
        context.observe({"usage": used, "drift": drift})
        if isinstance(model, Growing):
            context.observe({"slot_map": slot_map(model, tasks, steps), "erased": erased(model, tasks)})

    def sections(self, records: Sequence[Record], paper: Mapping[str, Any]) -> list[Section]:
        return split_sections.sections(records, paper)

    def compared(self, rows: Rows) -> list[Plot]:
        return split_sections.memory_plots([record for _, records in rows for record in records])


def results(matrix: Tensor, untrained: Sequence[float]) -> dict[str, float]:
    """What is reported after the last task, in percent. `learned` is the mean accuracy on each task just after it."""
    return {
        "average_accuracy": cl.average_accuracy(matrix),
        "forgetting": cl.forgetting(matrix),
        "backward_transfer": cl.backward_transfer(matrix),
        "forward_transfer": cl.forward_transfer(matrix, untrained),
        "learned": matrix.diagonal().mean().item(),
    }


def usage(model: nn.Module, tasks: Sequence[cl.Task]) -> dict[str, list[list[float]]]:
    """Each program layer's mean attention over the slots of M_U on each task's test data: (tasks, P)."""
    found: dict[str, list[list[float]]] = {}
    if not any(isinstance(module, nc.Linear) for module in model.modules()):
        return found
    model.eval()
    for index, task in enumerate(tasks):
        x = task.test[0][:512]
        with torch.no_grad(), nc.record(model) as trace:
            _ = model(x) if task.head is None else model(x, task.head)
        for name in trace:
            if isinstance(programs := trace[name], nc.Programs):
                mean = programs.u.flatten(0, -2).mean(0)
                found.setdefault(name, [[] for _ in tasks])[index] = [round(value, 4) for value in mean.tolist()]
    return found
