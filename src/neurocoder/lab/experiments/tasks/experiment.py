"""Many tasks with few examples each: what steers one network best, and how a new task is learned.

A run trains one contender on the tasks of a family and measures it on other samples of these tasks, and on new tasks:
by fitting z alone, and by fine-tuning all parameters. Rates are each run's own best ones, on held-out samples.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from ...records.record import Record
from ...report.sections import Section
from ...train.context import Context
from ...validate import Count, validate
from ..experiment import Experiment
from ..supervised import starting_values
from . import families, learning, report, text
from .families import FAMILIES
from .models import ALONE, CONTENDERS, ONCE, TaskNetwork, hidden_width, parameters
from .samples import Tasks as Samples

MEASURED = 50
"""Trained tasks that are measured, at most."""
COUNTS, EXAMPLES = (10, 100, 1_000), (5, 10, 50)
USUAL = 100, 10
"""Tasks, and examples of each, where the other number varies."""


@dataclass(frozen=True)
class TasksConfig:
    """How to train and to measure."""

    steps: Count = 2_000
    """Of the network for all tasks, on 32 tasks each."""
    tuning: Count = 400
    """Of a network that is fine-tuned to a new task, or trained on it alone, and of z."""
    held_out: Count = 20
    """Further samples of each task, by which rates are chosen."""
    test: Count = 100
    """Test samples of each task."""

    def __post_init__(self) -> None:
        validate(self)


class Tasks(Experiment):
    """One network for many tasks."""

    name: ClassVar[str] = "tasks"
    title: ClassVar[str] = "Many tasks with few examples: what steers one network"
    Config: ClassVar[type] = TasksConfig
    metric: ClassVar[str | None] = "new"
    presets: ClassVar[Mapping[str, TasksConfig]] = {
        "best": TasksConfig(),
        "smoke": TasksConfig(steps=4, tuning=2, test=5),
    }
    seeds: ClassVar[Mapping[str, Sequence[int]]] = {"best": range(5), "smoke": range(1)}
    minutes: ClassVar[Mapping[str, tuple[float, float]]] = {"best": (300, 60), "smoke": (1, 1)}
    selections: ClassVar[Mapping[str, str]] = {
        "best": "sines-*,springs-*,rotated-*",
        "smoke": "sines-*-100-10,sines-own-1-10",
    }

    def variants(self, config: TasksConfig) -> list[str]:
        return [
            f"{family}-{contender}-{count}-{examples}"
            for family, described in FAMILIES.items()
            for contender in contenders(family)
            for count, examples in points(described.most, contender)
        ]

    def naming(self, config: TasksConfig) -> str:
        return (
            f"FAMILY-CONTENDER-TASKS-EXAMPLES, with FAMILY in {', '.join(FAMILIES)}, CONTENDER in "
            f"{', '.join(CONTENDERS)}; such as sines-core-100-10"
        )

    def prepare(self, config: TasksConfig, variants: Sequence[str]) -> None:
        for name in sorted({variant.partition("-")[0] for variant in variants}):
            families.prepare(name)

    def run(self, context: Context) -> None:
        config: TasksConfig = context.config
        name, _, rest = context.variant.partition("-")
        contender, count, examples = rest.rsplit("-", 2)
        family = FAMILIES[name]
        # Each has its own, so that new tasks and their samples do not depend on how many tasks there are.
        of_tasks, of_new, of_trained, generator = (
            torch.Generator().manual_seed(1_000 * context.seed + purpose) for purpose in range(4)
        )
        pools = family.pools(int(count), of_tasks)

        def sample(tasks: Tensor, number: int, train: bool, drawn: torch.Generator) -> Samples:
            found = family.sample(tasks, number, train, drawn)
            return Samples(*(part.to(context.device) for part in found))

        shown = int(examples) * family.each
        tests = [sample(tasks, config.test, False, of_new) for tasks in (pools.chosen, pools.new)]
        chosen, new = (
            (sample(tasks, shown, True, of_new), test)
            for tasks, test in zip((pools.chosen, pools.new), tests, strict=True)
        )
        measured = pools.trained[:MEASURED]
        test = sample(measured, config.test, False, of_trained)
        trained = sample(pools.trained, shown + config.held_out, True, of_trained)
        data = Samples(*(part[:, :shown] for part in trained))
        held_out = Samples(*(part[: len(measured), shown:] for part in trained))
        parts, lengths = (data, held_out, test), (config.steps, config.tuning)
        with starting_values(context.seed):
            if name == "text":
                short = config.steps // 4, config.tuning // 4  # a step takes a second
                result, size = text.run(contender, family.latent, parts, chosen, new, short, generator)
            else:
                network = TaskNetwork(contender, family, hidden_width(contender, family), len(pools.trained))
        if name != "text":
            context.describe(network.to(context.device))
            result, size = learning.run(network, contender, parts, chosen, new, lengths, generator), parameters(network)
        context.parameters["network"] = size
        context.log(config.steps, **{key: float(found.error.mean()) for key, found in result.items()})
        context.observe({key: found._asdict() | {"error": found.error.tolist()} for key, found in result.items()})

    def sections(self, records: Sequence[Record], paper: Mapping[str, Any]) -> list[Section]:
        return report.sections(records)


def contenders(family: str) -> Iterable[str]:
    """By name; adapters of a language model are not all there."""
    return [name for name in CONTENDERS if family != "text" or name in text.CONTENDERS]


def points(most: int, contender: str) -> list[tuple[int, int]]:
    """Numbers of tasks and of examples. What learns a task alone does not depend on the number of tasks."""
    tasks, examples = USUAL
    if contender in ALONE:
        return [(1, number) for number in EXAMPLES]
    many = sorted({min(count, most) for count in COUNTS})
    tasks = min(tasks, most)
    if contender in ONCE:
        return [(tasks, examples)]
    return list(dict.fromkeys([(count, examples) for count in many] + [(tasks, number) for number in EXAMPLES]))
