"""Time a training step of each contender of `fields` on a CPU, in turns: `python3 results/sweeps/fields_step.py`.

32 MNIST digits with all 784 pixels a step, each with its own latent; 12,000 parameters, Fourier features; one thread,
CPU time. Printed beside each contender: milliseconds a step, and over FiLM's of the same turn (median, quartiles).
"""

from __future__ import annotations

import argparse
import os
import time
from statistics import quantiles

import torch

from neurocoder.lab.experiments.fields.experiment import FieldsConfig, Run
from neurocoder.lab.experiments.fields.models import CONTENDERS
from neurocoder.lab.records.environment import describe, running
from neurocoder.lab.train.context import Context
from neurocoder.lab.train.loop import Stepper


def main() -> None:
    """Print a line a contender."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=30)
    turns = parser.parse_args().turns
    torch.set_num_threads(1)
    config, cpu = FieldsConfig(images=32, batch=32, part=1, steps=10_000), torch.device("cpu")
    steps = {}
    for name, contender in CONTENDERS.items():
        if not contender.constant:
            variant = f"mnist-fourier-{name}-700"
            steps[name] = Stepper(Run(config, variant, 0, cpu).spec, Context(config, variant, 0, cpu)).step
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for turn in range(turns + 2):  # the first two prepare
        for name, step in steps.items():
            begin = time.process_time()
            step()
            if turn > 1:
                seconds[name].append(time.process_time() - begin)
    environment = describe(cpu, [running()])
    print("{hardware}, torch {torch}, commit {commit:.12}".format_map(environment), f"load {os.getloadavg()[0]:.1f}")
    for name, own in seconds.items():
        ratios = [ours / film for ours, film in zip(own, seconds["film"], strict=True)]
        low, median, high = quantiles(ratios, n=4)
        times = f"{1e3 * sorted(own)[turns // 2]:8.2f} ms {median:6.2f} ({low:.2f} to {high:.2f})"
        print(f"{CONTENDERS[name].title:32}{times}")


if __name__ == "__main__":
    main()
