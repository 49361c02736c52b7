"""Figures."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import matplotlib

matplotlib.use("agg")

import torch
from matplotlib import pyplot as plt
from matplotlib.figure import Figure
from torch import Tensor, nn

import neurocoder as nc

from .data.mnist import Digits


def save(figure: Figure, target: Path) -> None:
    """Write a figure under a temporary name and rename it."""
    temporary = target.with_name(f".{target.stem}.{os.getpid()}{target.suffix}")
    figure.savefig(temporary, dpi=150)
    os.replace(temporary, target)
    plt.close(figure)


def attention_patterns(models: Mapping[str, nn.Module], x: Tensor, digits: Digits, target: Path) -> None:
    """For each digit an image and, for each model, the mean attention w^u of its components over the slots of M_U."""
    patterns: dict[str, list[Tensor]] = {}
    for name, model in models.items():
        with torch.no_grad(), nc.record(model) as trace:
            model(x)
        attention = next(iter(trace.values())).u
        patterns[name] = [attention[digits.labels == digit].mean(0) for digit in range(10)]
    heights = [1.0, *(0.35 + 0.12 * len(rows[0]) for rows in patterns.values())]
    figure, axes = plt.subplots(
        1 + len(patterns), 10, figsize=(11, 1.1 * sum(heights) + 0.8), height_ratios=heights, layout="constrained"
    )
    for digit, axis in enumerate(axes[0]):
        axis.imshow(digits.images[digits.labels == digit][0], cmap="gray_r")
        axis.set_axis_off()
    for row, (name, rows) in zip(axes[1:], patterns.items(), strict=True):
        top = max(float(pattern.max()) for pattern in rows)
        for axis, pattern in zip(row, rows, strict=True):
            picture = axis.imshow(pattern, cmap="viridis", vmin=0, vmax=top, aspect="auto")
            axis.set_xticks([])
            axis.set_yticks([])
            axis.set_xlabel("slot", fontsize=8)
        row[0].set_ylabel(f"{name}\ncomponent", fontsize=9)
        row[0].set_yticks(range(len(rows[0])), [str(n + 1) for n in range(len(rows[0]))], fontsize=6)
        figure.colorbar(picture, ax=list(row), pad=0.01).ax.tick_params(labelsize=7)
    figure.suptitle("Which singular programs each digit is computed with (mean attention over $M_U$, test set)")
    save(figure, target)
