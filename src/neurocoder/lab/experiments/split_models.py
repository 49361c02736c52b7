"""The models of continual learning: an MLP with one or several heads, as it is or recoded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn.functional import avg_pool2d, normalize

import neurocoder as nc

from .. import continual as cl

ROWS = 4096
"""Inputs that are compared with all keys at once."""


class Settings(Protocol):
    """What the models need of the experiment's config."""

    @property
    def recode(self) -> str: ...
    @property
    def residual(self) -> bool: ...
    @property
    def orthogonality(self) -> float: ...
    @property
    def hidden(self) -> int: ...


class MultiHead(nn.Module):
    """Two hidden layers that all tasks share, and one head or several."""

    def __init__(self, inputs: int, width: int, outputs: int, heads: int | None) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(inputs, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
        self.heads = nn.ModuleList(nn.Linear(width, outputs) for _ in range(heads or 1))

    def forward(self, x: Tensor, head: int | None = None) -> Tensor:
        """(N, inputs) -> (N, outputs)"""
        return self.heads[head or 0](self.trunk(x))


class Growing(nn.Module):
    """One growing layer from the inputs to the classes, for each head; keys are of the same input, seen more coarsely.

    Images of 32 x 32 pixels are blurred and centred; features are taken as they are.
    """

    def __init__(self, inputs: int, outputs: int, heads: int | None, config: nc.GrowingConfig) -> None:
        super().__init__()
        layers = (nc.GrowingLinear(inputs, outputs, False, config, control_dim=inputs) for _ in range(heads or 1))
        self.heads = nn.ModuleList(layers)

    def control(self, x: Tensor) -> Tensor:
        """What keys are made of: (N, inputs) -> (N, inputs)"""
        if x.shape[1] != 1024:
            return x
        blurred = x.view(-1, 1, 32, 32)
        for _ in range(2):
            blurred = avg_pool2d(blurred, 3, 1, 1)
        z = blurred.flatten(1)
        return z - z.mean(1, keepdim=True)

    def forward(self, x: Tensor, head: int | None = None) -> Tensor:
        """(N, inputs) -> (N, outputs)"""
        return self.heads[head or 0](x, control=self.control(x))

    @torch.no_grad()
    def nearest_keys(self, tasks: Sequence[cl.Task]) -> float:
        """The average accuracy over the tasks, in percent, if each input has the label of its nearest key (1-NN). A key
        is of a training input, so it has a label."""
        accuracies = []
        for head in dict.fromkeys(task.head for task in tasks):
            own, layer = [task for task in tasks if task.head == head], self.heads[head or 0]
            assert isinstance(layer, nc.GrowingLinear)
            memory = layer.memory
            best = torch.full((int(memory.written),), -2.0, device=memory.keys.device)
            labels = torch.zeros_like(best, dtype=torch.int64)
            keys = memory.keys[: len(best)]
            for task in own:
                for x, y in zip(task.train[0].split(ROWS), task.train[1].split(ROWS), strict=True):
                    found = (normalize(self.control(x)) @ keys.mT).max(0)
                    labels = torch.where(found.values > best, y[found.indices], labels)
                    best = torch.maximum(best, found.values)
            for x, y in (task.test for task in own):
                nearest = torch.cat([(self.control(rows) @ keys.mT).argmax(1) for rows in x.split(ROWS)])
                accuracies.append(100 * (labels[nearest] == y).double().mean().item())
        return sum(accuracies) / len(accuracies)


def build_model(
    name: str, inputs: int, outputs: int, heads: int | None, config: Settings, *, width: int = 256, slots: int = 50
) -> nn.Module:
    """On the CPU, from torch's generator."""
    if name == "growing":
        images = inputs == 1024
        memory = nc.GrowingConfig(
            slots=2_000,
            max_slots=2_000,
            residual=False,
            max_similarity=0.85 if images else 0.6,
            sharpness=50.0 if images else 20.0,
        )
        return Growing(inputs, outputs, heads, memory)
    model = MultiHead(inputs, 400 if name == "mlp-400" else width, outputs, heads)
    if name.startswith("mlp"):
        return model
    if name == "stored-program":
        return nc.recode(model, ["trunk.0", "trunk.2", "heads.*"], nc.StoredProgramConfig())
    residual: Any = "plain" if name == "neurocoder-plain" else config.residual
    program = nc.ProgramConfig(
        slots=slots,
        key_dim=5,
        steps=1,
        heads=10,
        least_used=5,
        hidden=config.hidden,
        orthogonality=config.orthogonality,
        residual=residual,
    )
    targets = ["trunk.0", "trunk.2"] + ["heads.*"] * (config.recode == "all")
    return nc.recode(model, targets, program)
