"""Four linear tasks in sequence, at several batch sizes: `python3 results/sweeps/growing.py --help`.

Each task is `y = A_t x` with noise of variance 1/16, below which no error falls, and has a code that steers the growing
layer. Mean squared errors on new inputs: of each task just after it was learned, and of the first after the last. The
same number of steps for every batch. The rate of each layer and batch has the least of these on another seed; for the
plain layer, which forgets, only what was just learned counts.
"""

from __future__ import annotations

import argparse
import math
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import torch
from torch import Tensor, nn

import neurocoder as nc

INPUTS, OUTPUTS, CODE, TASKS, NOISE = 16, 4, 8, 4, 0.25
RATES = (1e-2, 2e-2, 4e-2)
OTHER = 100
"""The seed on which rates are chosen."""


@dataclass(frozen=True)
class Task:
    """A linear map, and what steers the layer while it is learned."""

    matrix: Tensor
    code: Tensor
    jitter: float

    def draw(self, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
        """x (N, INPUTS), z (N, CODE) and y (N, OUTPUTS)."""
        x = torch.randn(count, INPUTS, generator=generator)
        z = self.code + self.jitter / math.sqrt(CODE) * torch.randn(count, CODE, generator=generator)
        return x, z, x @ self.matrix.mT + NOISE * torch.randn(count, OUTPUTS, generator=generator)


class Plain(nn.Linear):
    """A plain layer, which reads no code."""

    def forward(self, x: Tensor, control: Tensor | None = None) -> Tensor:
        return super().forward(x)


def layers(consolidation: list[str]) -> Iterator[tuple[str, Any]]:
    """Their names, and what makes them."""
    yield "plain", lambda: Plain(INPUTS, OUTPUTS, bias=False)
    for name in consolidation:
        count, _, c = name.partition(":")
        options: dict[str, Any] = {"count": count, "consolidation": None if c == "None" else float(c)} if c else {}
        config = nc.GrowingConfig(residual=False, **options)
        yield name, lambda config=config: nc.GrowingLinear(INPUTS, OUTPUTS, False, config, control_dim=CODE)


def run(make: Any, rate: float, batch: int, steps: int, jitter: float, seed: int) -> tuple[list[float], list[float]]:
    """The errors of all tasks just after each, and after the last."""
    generator = torch.Generator().manual_seed(seed)
    codes = torch.linalg.qr(torch.randn(CODE, CODE, generator=generator))[0]
    tasks = [Task(torch.randn(OUTPUTS, INPUTS, generator=generator), codes[t], jitter) for t in range(TASKS)]
    tests = [task.draw(2000, generator) for task in tasks]
    torch.manual_seed(seed)
    layer = make()
    optimiser = torch.optim.Adam(layer.parameters(), rate)
    if isinstance(layer, nc.GrowingLinear):
        nc.grow(layer, optimiser)

    @torch.no_grad()
    def error(index: int) -> float:
        x, z, y = tests[index]
        return (layer(x, control=z) - y).square().mean().item()

    just = []
    for index, task in enumerate(tasks):
        for _ in range(steps):
            x, z, y = task.draw(batch, generator)
            optimiser.zero_grad()
            (layer(x, control=z) - y).square().mean().backward()
            optimiser.step()
        just.append(error(index))
    return just, [error(index) for index in range(TASKS)]


def main() -> None:
    """Print a row for each layer and batch."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=1000, help="of each task")
    parser.add_argument("--batches", type=int, nargs="+", default=[4, 16, 64, 256])
    parser.add_argument("--layers", nargs="*", default=["default", "inputs:30"], help="default, or count:consolidation")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rates", type=float, nargs="+", default=RATES)
    parser.add_argument("--jitter", type=float, default=0.0, help="length of what is added to each code, at random")
    options = parser.parse_args()
    warnings.filterwarnings("ignore", message="growing layer")
    torch.set_num_threads(1)
    print(
        "| layer | batch | rate | first, just learned | all, just learned | first, after the last |\n|---"
        + "|---" * 5
        + "|"
    )
    for name, make in layers(options.layers):
        for batch in options.batches:
            shared = batch, options.steps, options.jitter
            tried = {rate: run(make, rate, *shared, OTHER) for rate in options.rates}
            best = {rate: fmean(just if name == "plain" else just + end) for rate, (just, end) in tried.items()}
            rate = min(best, key=best.__getitem__)
            found = [run(make, rate, *shared, seed) for seed in range(options.seeds)]
            numbers = (fmean(just[0] for just, _ in found), fmean(fmean(just) for just, _ in found))
            last = fmean(end[0] for _, end in found)
            print(f"| {name} | {batch} | {rate:g} | {numbers[0]:.3f} | {numbers[1]:.3f} | {last:.3f} |", flush=True)


if __name__ == "__main__":
    main()
