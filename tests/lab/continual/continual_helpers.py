"""Small models and tasks for the tests of continual learning."""

import torch
from torch import nn

from neurocoder.lab import continual as cl

PAIRS = [(0, 1), (2, 3), (4, 5)]


class Heads(nn.Module):
    """A trunk and several heads; without a head it answers with the first."""

    def __init__(self, trunk, heads):
        super().__init__()
        self.trunk, self.heads = trunk, nn.ModuleList(heads)

    def forward(self, x, head=0):
        return self.heads[head](self.trunk(x))


def data(rows=60, classes=6, inputs=4, seed=0):
    """Gaussian clouds, one a class."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(rows) % classes
    centres = 2 * torch.randn(classes, inputs, generator=torch.Generator().manual_seed(9))
    return centres[y] + torch.randn(rows, inputs, generator=generator), y


def tasks(scenario, pairs=PAIRS):
    return cl.split(data(), data(30, seed=1), pairs, scenario)


def network(scenario, dropout=0.0):
    """For the tasks above."""
    trunk = nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 8), nn.ReLU(), nn.Dropout(dropout))
    count, outputs = {"task": (3, 2), "domain": (1, 2), "class": (1, 6)}[scenario]
    return Heads(trunk, [nn.Linear(8, outputs) for _ in range(count)])


def adam(parameters):
    return torch.optim.Adam(parameters, lr=1e-2)


def still(parameters):
    """Moves nothing, so that values can be computed by hand."""
    return torch.optim.SGD(parameters, lr=0.0)


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.1)


def one_task(x, y, head=None, **options):
    """With the same data for training and test."""
    pair = (torch.tensor(x), torch.tensor(y))
    return cl.Task(pair, pair, head, **options)


def set_weight(model, *rows):
    with torch.no_grad():
        next(model.parameters()).copy_(torch.tensor(rows))
    return model


METHODS = {
    "Plain": cl.Plain,
    "L2": lambda: cl.L2(0.1),
    "EWC": lambda: cl.EWC(10.0),
    "OnlineEWC": lambda: cl.OnlineEWC(10.0),
    "SI": lambda: cl.SI(10.0),
    "MAS": lambda: cl.MAS(1.0),
    "LwF": cl.LwF,
    "Rehearsal": lambda: cl.Rehearsal(7),
    "Offline": cl.Offline,
}
