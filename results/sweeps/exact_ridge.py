"""What the ridge does to accuracy: `python3 results/sweeps/exact_ridge.py [cifar100 clinc150 mnist ...]`.

Exact layers with 1,000 features, held-out training data, one seed. A line for each data set, kind of features and
number of samples: the accuracy at the ridge (over the largest eigenvalue of G) with the least score of generalised
cross-validation, and at the smallest ridge within 0.3, 1, 2, 3 and 5% of that score.
"""

from __future__ import annotations

import sys

import torch

from neurocoder.exact.solve import RIDGES
from neurocoder.lab.experiments.exact.experiment import RESIDUAL, SETS, ExactExperimentConfig, tasks_of
from neurocoder.lab.experiments.exact.learners import exact, setting
from neurocoder.lab.train.context import Context

FEATURES, SEED = 1_000, 100
LEARNERS, SLACKS = ("local16", "relu"), (0.0, 0.003, 0.01, 0.02, 0.03, 0.05)
SHARES = (1.0, 2.0, 4.0, None)
"""Samples for each feature; None: all."""


def main() -> None:
    """Print the lines."""
    torch.set_num_threads(1)
    for name in sys.argv[1:] or ("cifar100", "clinc150", "mnist"):
        config = ExactExperimentConfig(validation=True)
        tasks = tasks_of(name, config, Context(config, f"{name}-local", SEED, torch.device("cpu")))
        x, y = (torch.cat([task.train[place] for task in tasks]) for place in (0, 1))
        held, labels = (torch.cat([task.test[place] for task in tasks]) for place in (0, 1))
        order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
        classes = SETS[name][0] * SETS[name][1]
        for learner in LEARNERS:
            for share in SHARES:
                width = setting(name, learner)
                layer = exact(learner, x.shape[1], classes, FEATURES, name in RESIDUAL, width, SEED, "cpu")
                layer.basis(tasks[0].train[0][: config.first])
                size = layer.sums.G.shape[-1]
                rows = order if share is None else order[: int(share * size)]
                for part in rows.split(4096):
                    layer.observe(x[part], y[part])
                sums = layer.sums
                values, axes = torch.linalg.eigh(sums.G.sum(0), UPLO="U")
                values, projected, count = values.clamp(min=0), axes.mT @ sums.B, float(sums.samples.sum())
                ridges = values[-1] * torch.logspace(-12, 0, RIDGES, dtype=torch.float64)
                shrunk = values / (values + ridges.unsqueeze(1))
                power = projected.square().sum(1) / values.clamp(min=1e-300)
                residual = sums.square.sum() - (power * shrunk * (2 - shrunk)).sum(1)
                room = count - shrunk.sum(1)
                score = torch.where(room > 1e-3 * count, residual.clamp(min=0) / room.square(), torch.inf)
                line = []
                for slack in SLACKS:
                    place = int((score <= (1 + slack) * score.min()).int().argmax())
                    layer.V.copy_(axes @ (projected / (values + ridges[place]).unsqueeze(1)))
                    layer.is_solved = layer.is_current = True
                    right = (layer(held).argmax(1) == labels).double().mean()
                    line.append(f"{slack:.1%}: {float(ridges[place] / ridges[-1]):.0e} {100 * right:.1f}")
                print(f"{name} {learner}, {len(rows)} samples of {size} features: {', '.join(line)}", flush=True)


if __name__ == "__main__":
    main()
