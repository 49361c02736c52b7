"""A two-minute demo: Neurocoders on MNIST against a linear classifier with at least as many parameters, and an MLP.

A Neurocoder reads a fixed random projection of the image to 200 numbers and composes its 200 x 10 weight for each
image from ten slots. Run as `neurocoder demo`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table

from .data import mnist
from .experiments.digits.experiment import DigitsConfig
from .experiments.digits.report import draw_grid
from .records.files import require_writable
from .records.record import Record
from .report import style
from .runner.job import Job, Setup
from .runner.sweep import run_job
from .train.context import RunHooks
from .validate import Count, Range, validate

MODELS = {
    "linear classifier": "linear",
    "MLP, 200-32-10": "mlp",
    "Neurocoder, J=1": "P10-H4-J1",
    "Neurocoder, J=5": "P10-H4-J5",
}
"""Variants of the digits experiment, by title; none has more parameters than the linear classifier, 7,850."""
NEXT = {
    "run digits": "three seeds and a report, minutes",
    "explore --export page.html": "a page: draw a digit, and watch its program being composed",
}
"""Commands to go on with."""


@dataclass(frozen=True)
class Options:
    """Neurocoders on MNIST against a linear classifier and an MLP of their size."""

    seed: Annotated[int, Range(0, 2**32 - 1)] = 0
    """Seed of the initial weights, the projection and the shuffling."""
    epochs: Count = 12
    """Passes over the training images."""
    output: Path = Path("demo")
    """Folder for the figure."""

    def __post_init__(self) -> None:
        validate(self, options=True)


def train(console: Console, config: DigitsConfig, seed: int) -> dict[str, Record]:
    """Train each model; its record by title."""
    setup = Setup(Path())
    found = {}
    columns = (TextColumn("{task.description:18}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as progress:
        for title, variant in MODELS.items():
            row = progress.add_task(title, total=None)

            def report(step: int, steps: int, shown: str, row: TaskID = row) -> None:
                progress.update(row, completed=step, total=steps)

            job = Job("digits", "digits", "demo", config, variant, seed)
            found[title] = run_job(job, setup, RunHooks(report=report))
            progress.update(row, completed=1, total=1)
    return found


def table(runs: Mapping[str, Record]) -> Table:
    """Parameters, test error and time."""
    rows = Table("model", "parameters", "test error", "seconds", title="MNIST, test set")
    for column in rows.columns[1:]:
        column.justify = "right"
    for title, record in runs.items():
        cells = (f"{record.parameters['total']:,}", f"{record.metrics['error']:.2f}%", f"{record.seconds:.0f}")
        rows.add_row(title, *cells)
    return rows


def findings(runs: Mapping[str, Record]) -> Iterator[str]:
    """What the table shows, in words."""
    linear, mlp, one, five = (runs[title].metrics["error"] for title in MODELS)

    def change(points: float) -> str:
        return f"{abs(points):.2f} points {'less' if points < 0 else 'more'} error"

    yield (
        f"With a weight composed for each image (J=1) there is {change(one - linear)} than with one weight for "
        f"all (the linear classifier). With a hidden layer (the MLP) there is {change(mlp - one)} than with J=1, in "
        "less time: for accuracy alone take that."
    )
    yield (
        f"Five steps of attention (J=5) have {change(five - one)} than one. Over five seeds and 30 epochs the two "
        "do not differ (docs/results/digits.md), and five take longer."
    )


def main(options: Options) -> int:
    """Train, print a table, draw the attention; returns the exit status."""
    config, console = DigitsConfig(epochs=options.epochs), Console()
    require_writable("--output", options.output)
    place = mnist.folder()
    source = "the package" if place == mnist.PACKAGED else str(place)
    console.print(f"MNIST: 60,000 training and 10,000 test images, from {source}", soft_wrap=True)
    runs = train(console, config, options.seed)
    console.print(table(runs))
    target = options.output / "attention.png"
    seen = {title.replace(", ", "\n"): record for title, record in runs.items() if record.observations}
    figure = draw_grid({title: record.observations["mean"] for title, record in seen.items()})
    figure.suptitle("Attention of each digit to the slots of $M_U$ (mean over its test images), by component")
    style.save(figure, target)
    console.print(*findings(runs), sep="\n", soft_wrap=True)
    console.print(f"Figure, the slots that each digit attends to: {os.path.relpath(target)}", soft_wrap=True)
    command = os.path.relpath(sys.argv[0]) if Path(sys.argv[0]).name == "neurocoder" else "neurocoder"
    console.print(
        "Next:", *(f"  {command} {words}  ({what})" for words, what in NEXT.items()), sep="\n", soft_wrap=True
    )
    return 0
