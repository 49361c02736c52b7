"""Time a training step of DenseNet on a GPU, models in turn: `python3 results/sweeps/densenet_step.py --help`.

Batch 128, bfloat16, fused Adam, as one CUDA graph.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from statistics import median

import torch

import neurocoder as nc
from neurocoder.lab.experiments.images.experiment import loss
from neurocoder.lab.experiments.images.models import build_model, parse
from neurocoder.lab.train.capture import WARM_UP, Captured

ROUNDS, REPLAYS, STEPS = 6, 20, 390
"""Turns of each model, steps that are timed in a turn, steps of an epoch."""


def prepare(model: str) -> Callable[[], None]:
    """A training step, captured."""
    torch.manual_seed(0)
    network = build_model(parse(f"cifar10-densenet-{model}")).cuda().train()
    optimiser = torch.optim.Adam(network.parameters(), 1e-3, fused=True, capturable=True)
    x = torch.randn(128, 3, 32, 32, device="cuda").to(memory_format=torch.channels_last)
    y = torch.randint(10, (128,), device="cuda")

    def step() -> None:
        optimiser.zero_grad()
        with torch.autocast("cuda", torch.bfloat16):
            found = loss(network, (x, y))
        found.backward()
        optimiser.step()

    call = Captured(x.device)
    for _ in range(WARM_UP + 1):
        call(step, before=optimiser.zero_grad)
    return lambda: call(step)


def milliseconds(step: Callable[[], None]) -> float:
    """Of a step, over a turn."""
    step()
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(REPLAYS):
        step()
    torch.cuda.synchronize()
    return 1e3 * (time.perf_counter() - begin) / REPLAYS


def main() -> None:
    """Print the milliseconds of each turn, their median and the seconds of an epoch, and the peak memory of all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", default=["original", "neurocoder"])
    parser.add_argument("--backend", choices=["auto", "torch"], default="auto", help="auto: the kernels")
    given = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("error: this needs a GPU")
    with nc.backend(given.backend):
        steps = {model: prepare(model) for model in given.models}
    found: dict[str, list[float]] = {model: [] for model in steps}
    for _ in range(ROUNDS):
        for model, step in steps.items():
            found[model].append(milliseconds(step))
    for model, turns in found.items():
        shown = " ".join(f"{turn:.2f}" for turn in turns)
        print(f"{model}: {shown} ms; median {median(turns):.2f}, {STEPS * median(turns) / 1e3:.2f} s an epoch")
    print(f"{torch.cuda.max_memory_allocated() / 2**30:.1f} GiB at most")


if __name__ == "__main__":
    main()
