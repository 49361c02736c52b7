"""Evaluation of networks on held-out polynomial sequences."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import neurocoder as nc

from . import boundaries
from .data import Family, generator, network_input
from .gru import Regressor

PART = 256
"""Sequences per forward pass: a program layer keeps about r * P numbers per point."""


class HeldOut:
    """Fixed sequences on the device: the same for every model, seed and device."""

    def __init__(self, family: Family, count: int, validation: bool, device: torch.device) -> None:
        sample = family.sample(count, generator("validation" if validation else "test", 0))
        self.family, self.floor = family, family.realised_floor(sample)
        self.y = sample.y.to(device)
        self.inputs = network_input(family.places().to(device, torch.float32), self.y)
        self.first = family.first_points().to(device)

    def errors(self, predictions: Tensor) -> Tensor:
        """Square errors (N, T)."""
        return (predictions.double() - self.y).square()

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """Mean square error; the same above the first-point floor; at the first points of chunks and at the rest."""
        by_time = self.errors(torch.cat([model(part) for part in self.inputs.split(PART)])).mean(0)
        means = by_time.mean(), by_time[self.first].mean(), by_time[~self.first].mean()
        mse, first, rest = torch.stack(means).tolist()
        return {"mse": mse, "above_floor": mse - self.floor, "first_points": first, "rest": rest}

    def observe(self, model: nn.Module) -> dict[str, Any]:
        """How well signals detect the beginnings of chunks, and an example."""
        assert isinstance(model, Regressor)
        predictions: list[Tensor] = []
        found: defaultdict[str, list[boundaries.Scores]] = defaultdict(list)
        attention = None
        for part in self.inputs.split(PART):
            states = model.gru(part)
            predictions.append(model.output(states).squeeze(-1))
            found["state"].append(boundaries.change(states))
            if isinstance(model.output, nc.Linear):
                u = model.output.programs(states).u  # (N, T, r, P)
                found["attention"].append(boundaries.change(u[:, :, 0]))
                found["attention_all"].append(boundaries.change(u))
                attention = u[0, :, 0] if attention is None else attention
        prediction = torch.cat(predictions)
        surprise = self.errors(prediction).sqrt().roll(1, dims=1)
        found["jump"].append(boundaries.change(self.inputs[..., 1:]))
        found["surprise"].append(surprise.cpu().numpy())
        scores = {name: np.concatenate(parts) for name, parts in found.items()}
        return {
            "boundaries": boundaries.judge(scores, self.family.points),
            "floor": self.floor,
            "example": {
                "y": rounded(self.y[0]),
                "prediction": rounded(prediction[0]),
                "attention": None if attention is None else rounded(attention),
            },
        }


def rounded(values: Tensor) -> list[Any]:
    """Rounded for a readable record, finely, since attention changes little from one time to the next."""
    return np.round(values.double().cpu().numpy(), 6).tolist()
