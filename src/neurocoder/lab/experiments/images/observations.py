"""What the tables need from a trained network: its predictions, and how many programs its layers compose."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

import neurocoder as nc

from .data import Labelled, inputs

LARGEST = 5
"""Programs whose images are described: those that most images share."""


def observe(model: nn.Module, predicted: Tensor, data: Labelled, classes: int) -> dict[str, Any]:
    """Of the images that a run ends with.

    Args:
        predicted: the model's predictions for them (N,).

    Returns:
        `predictions`: as a string, two digits for each image
        `right`, `images` (classes,): how many of each class are recognised, of how many
        `programs`: for each program layer what `describe` returns
    """
    right = data.labels[predicted == data.labels].bincount(minlength=classes)
    found: dict[str, Any] = {
        "predictions": "".join(f"{label:02d}" for label in predicted.tolist()),
        "right": right.tolist(),
        "images": data.labels.bincount(minlength=classes).tolist(),
        "programs": {},
    }
    if any(isinstance(module, nc.ProgramLayer) for module in model.modules()):
        labels = data.labels.cpu().numpy()
        found["programs"] = {name: describe(used, labels) for name, used in choices(model, data).items()}
    return found


def unpack(predictions: str) -> NDArray[np.int64]:
    """The predictions (N,) in a record."""
    digits = np.frombuffer(predictions.encode(), np.uint8).astype(np.int64) - ord("0")
    return digits.reshape(-1, 2) @ np.array([10, 1])


def choices(model: nn.Module, data: Labelled) -> dict[str, NDArray[Any]]:
    """By layer, the slots of M_U and of M_V with the largest attention in each component: (N, 2 r)."""
    found: dict[str, list[Tensor]] = {}
    for part in inputs(data):
        with nc.record(model) as trace:
            model(part)
        for name, programs in trace.items():
            top = torch.cat([programs.u.argmax(-1), programs.v.argmax(-1)], -1)
            found.setdefault(name, []).append(top.to(torch.uint8 if programs.u.shape[-1] <= 256 else torch.int32))
    return {name: torch.cat(parts).cpu().numpy() for name, parts in found.items()}


def describe(used: NDArray[Any], labels: NDArray[Any]) -> dict[str, Any]:
    """How many programs a layer composes. Images share one if the same slots lead in all components.

    Args:
        used: slots (N, 2 r).
        labels: of the images (N,).

    Returns:
        `distinct`: the number of programs
        `effective`: the exponential of their entropy: as many, if all were equally frequent
        `largest`: for the most frequent programs the `share` of the images, their most frequent `label`, the `pure`
            share of it, and the first images (`rows`)
    """
    _, which, counts = np.unique(used, axis=0, return_inverse=True, return_counts=True)
    which, shares = which.reshape(-1), counts / len(used)
    largest = []
    for program in np.argsort(-counts, kind="stable")[:LARGEST]:
        rows = np.flatnonzero(which == program)
        classes = np.bincount(labels[rows])
        largest.append(
            {
                "share": round(float(shares[program]), 4),
                "label": int(classes.argmax()),
                "pure": round(float(classes.max() / len(rows)), 4),
                "rows": rows[:8].tolist(),
            }
        )
    entropy = -float((shares * np.log(shares)).sum())
    return {"distinct": len(counts), "effective": round(float(np.exp(entropy)), 2), "largest": largest}


def agreement(first: str, second: str) -> float:
    """The share of images with the same prediction in two records, in percent."""
    return 100 * float((unpack(first) == unpack(second)).mean())
