"""What a visit is, on Split MNIST: `python3 results/sweeps/growing_mnist.py class inputs:30 steps:30 steps:300`.

The sizes of `growing-small`, each image seen once, a tenth of the training data held out. The average accuracy over the
tasks after the last one, for each count and consolidation.
"""

from __future__ import annotations

import sys

import torch
from torch import nn

import neurocoder as nc
from neurocoder.lab import continual as cl
from neurocoder.lab.experiments.split.data import tasks_of
from neurocoder.lab.experiments.split.growing import Growing
from neurocoder.lab.experiments.split.variants import make_optimiser, parse


def main(scenario: str, *settings: str) -> None:
    """Print a line for each setting."""
    variant = parse(f"mnist-{scenario}-adagrad-growing")
    tasks = tasks_of(variant, torch.device("cpu"), validation=True)
    if scenario == "class":
        tasks = [cl.Task(task.train, task.test, task.head, tuple(range(10)), task.width) for task in tasks]
    sizes = {"slots": 1780, "max_slots": 1780, "rank": 1, "writes": 2, "residual": False}
    for setting in settings:
        count, _, c = setting.partition(":")
        config = nc.GrowingConfig.from_dict({**sizes, "count": count, "consolidation": float(c)})
        torch.manual_seed(0)
        model = Growing(1024, variant.outputs, None, config, "blurred", 256)

        def optimiser(parameters: list[nn.Parameter], model: nn.Module = model) -> torch.optim.Optimizer:
            made = make_optimiser("adagrad", parameters, 1.0)
            nc.grow(model, made)
            return made

        trainer = cl.Trainer(model, cl.Plain(), optimiser=optimiser, batch=128, epochs=1, seed=0, tasks=tasks)
        for task in tasks:
            trainer.learn(task)
        print(scenario, setting, f"{cl.average_accuracy(trainer.matrix):.1f}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
