"""Never worse, without a control? Layers that steer themselves beside the plain layer, at a user's own rate.

Twenty small tasks, five optimisers, four rates from a thirtieth of the edge to the edge, where plain training begins to
fail. A run is one task, one kind of layer and one seed: twenty networks of one start, one for each optimiser and rate.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
from . import report
from .edges import EDGES, RATES
from .models import CONTENDERS, Loss, build
from .stacked import OPTIMISERS, Cell, Stack
from .tasks import TASKS, Data, errors, load

HALF_DECADE = 10**0.5
GRID = range(-12, 3)
"""Half decades of the rates among which edges are found: 1e-6 to 10."""
ROWS = 250
"""Test samples at a time."""
OTHER_SEEDS = 1_000
"""Added to the seed of the plain runs that show the noise."""


@dataclass(frozen=True)
class EverydayConfig:
    """How to train."""

    steps: Count = 200
    """Of each network."""
    batch: Count = 32
    """Samples a step, drawn with replacement."""
    grid: bool = False
    """Fifteen rates, 1e-6 to 10, instead of the four up to the task's edge: how the edges were found."""
    validation: bool = False
    """Hold out a fifth of the training samples and evaluate on it; the test samples are not read."""

    def __post_init__(self) -> None:
        validate(self)


class Everyday(Experiment):
    """Self-steered layers in place of plain ones, on twenty small tasks."""

    name: ClassVar[str] = "everyday"
    title: ClassVar[str] = "Never worse, without a control? Twenty small tasks, five optimisers"
    Config: ClassVar[type] = EverydayConfig
    presets: ClassVar[Mapping[str, EverydayConfig]] = {
        "best": EverydayConfig(),
        "rates": EverydayConfig(grid=True, validation=True),
        "smoke": EverydayConfig(steps=5),
    }
    seeds: ClassVar[Mapping[str, Sequence[int]]] = {"best": range(5), "rates": range(5, 8), "smoke": range(1)}
    minutes: ClassVar[Mapping[str, tuple[float, float]]] = {"best": (30, 10), "rates": (5, 3), "smoke": (1, 1)}
    selections: ClassVar[Mapping[str, str]] = {"rates": "*-plain", "smoke": "spirals-*"}

    def variants(self, config: EverydayConfig) -> list[str]:
        return [f"{task}-{contender}" for contender in CONTENDERS for task in TASKS]  # the paper's layers take longest

    def naming(self, config: EverydayConfig) -> str:
        return f"TASK-LAYER, with TASK in {', '.join(TASKS)} and LAYER in {', '.join(CONTENDERS)}"

    def run(self, context: Context) -> None:
        config: EverydayConfig = context.config
        name, _, contender = context.variant.rpartition("-")
        data = Data(*(part.to(context.device) for part in load(name, config.validation)))
        seed = context.seed + OTHER_SEEDS * (contender == "noise")
        with starting_values(seed):
            model = Loss(build(contender, TASKS[name], data)).to(context.device)
        context.describe(model)
        cells = rates(name, grid=config.grid)
        stack = Stack(model, list(cells.values()))
        generator = torch.Generator().manual_seed(seed)
        seen: list[Tensor] = []
        for step in range(config.steps):
            rows = torch.randint(len(data.x), (config.batch,), generator=generator).to(context.device)
            seen.append(stack.train(data.x[rows], data.y[rows]))
            context.progress(step, config.steps, loss=lambda: float(seen[-1].median()))
        found = evaluate(stack, data)
        context.log(config.steps, **dict(zip(cells, found.tolist(), strict=True)))
        last = torch.stack(seen[-config.steps // 8 :]).mean(0).nan_to_num(float("inf"))
        context.observe(
            {
                "rates": {key: rate for key, (_, rate) in cells.items()},
                "loss": dict(zip(cells, last.tolist(), strict=True)),
            }
        )

    def sections(self, records: Sequence[Record], paper: Mapping[str, Any]) -> list[Section]:
        return report.sections(records)


def rates(task: str, *, grid: bool) -> dict[str, Cell]:
    """The networks of a run: optimiser and rate by the name of their metric."""
    if grid:
        return {f"{o} {half / 2:g}": (o, HALF_DECADE**half) for o in OPTIMISERS for half in GRID}
    return {
        f"{optimiser} {name}": (optimiser, 10 ** (edge - below / 2))
        for optimiser, edge in zip(OPTIMISERS, EDGES[task], strict=True)
        for name, below in zip(RATES, (3, 2, 1, 0), strict=True)
    }


def evaluate(stack: Stack, data: Data) -> Tensor:
    """The test error of each network (S,)."""
    with torch.no_grad():
        parts = [stack.call(stack.model.get_submodule("model"), x, prefix="model.") for x in data.test_x.split(ROWS)]
        return errors(torch.cat(parts, 1), data.test_y)
