"""The networks that are compared on every task: plain, recoded, and plain at another width."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, linear, mse_loss, normalize

import neurocoder as nc

from .tasks import Data, Task

CONTENDERS: Mapping[str, str] = {
    "plain": "plain",
    "noise": "plain, other seeds",
    "core": "core, self-steered",
    "gate": "the bounded gate alone",
    "wide": "plain, with core's parameters",
    "paper": "the paper's layer",
    "normalised": "the same, its control normalised",
    "wider": "plain, with its parameters",
}
"""Names in variants, and in tables."""
MATCHED = {"wide": "core", "wider": "paper"}
"""Plain networks with other widths, and whose parameters they have."""
PROGRAM = nc.ProgramConfig(slots=10, key_dim=2, steps=5, heads=1, least_used=2, hidden=8)
"""The paper's layer at the size of its digits; P, J and H as there (Table 5), with the residual."""
ACTIVATIONS = {"relu": nn.ReLU, "tanh": nn.Tanh, "gelu": nn.GELU}
GATED = 16
"""A gate needs so many outputs, as in core layers."""


class GatedLinear(nn.Module):
    """`y = g(x) R x + b` with `g = 1 + tanh(w.x / (2 |x|)) / 2`: a core layer without programs. w starts at zero."""

    def __init__(self, plain: nn.Linear) -> None:
        super().__init__()
        self.plain, self.w = plain, nn.Parameter(torch.zeros(plain.in_features))

    def forward(self, x: Tensor) -> Tensor:
        gate = 1 + 0.5 * torch.tanh(0.5 * linear(normalize(x, dim=-1), self.w.unsqueeze(0)))
        return gate * linear(x, self.plain.weight) + self.plain.bias


class Loss(nn.Module):
    """A model with its loss and auxiliary loss, for inputs and targets."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        loss = (mse_loss if y.is_floating_point() else cross_entropy)(self.model(x), y)
        return loss + nc.auxiliary_loss(self.model)


def network(sizes: Sequence[int], activation: str) -> nn.Sequential:
    """Linear layers of these sizes with an activation between them."""
    layers: list[nn.Module] = []
    for index, (inputs, outputs) in enumerate(pairwise(sizes)):
        layers += [ACTIVATIONS[activation]()] if index else []
        layers.append(nn.Linear(inputs, outputs))
    return nn.Sequential(*layers)


def sizes(task: Task, data: Data, factor: float = 1.0) -> list[int]:
    """Of the layers, hidden ones times a factor."""
    outputs = data.y.shape[1] if data.y.is_floating_point() else int(data.y.max()) + 1
    return [data.x.shape[1], *(max(1, round(factor * width)) for width in task.hidden), outputs]


def count(model: nn.Module) -> int:
    """Parameters."""
    return sum(parameter.numel() for parameter in model.parameters())


def build(contender: str, task: Task, data: Data) -> nn.Module:
    """A contender's network, from torch's generator; the plain part of all starts alike, but where it is wider."""
    if contender in MATCHED:
        with torch.random.fork_rng():
            target = count(build(MATCHED[contender], task, data))
        candidates = [sizes(task, data, 1 + step / 100) for step in range(1_500)]
        widths = min(candidates, key=lambda found: abs(sum((i + 1) * o for i, o in pairwise(found)) - target))
        return network(widths, task.activation)
    model = network(sizes(task, data), task.activation)
    if contender == "core":
        nc.recode(model, "*", nc.CoreConfig())
    elif contender in ("paper", "normalised"):
        nc.recode(model, "*", replace(PROGRAM, normalise=contender == "normalised"))
    elif contender == "gate":
        for index, layer in enumerate(model):
            if isinstance(layer, nn.Linear) and layer.out_features >= GATED:
                model[index] = GatedLinear(layer)
    return model
