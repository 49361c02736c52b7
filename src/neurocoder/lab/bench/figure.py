"""The growth plots: time against each size, on logarithmic axes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("agg")

from matplotlib import pyplot as plt

from ..plots.style import save
from .contenders import TITLES
from .growth import AXES, GROUP
from .records import Record, spread

STYLES = {"linear": ("#000000", "o"), "program": ("#0072B2", "s"), "materialising": ("#D55E00", "^")}
"""Okabe and Ito's colours, safe for colour-blind readers, and a marker each."""


def panel(axis: Any, record: Record) -> None:
    """One size: a line for each contender, its quartiles shaded."""
    config = record["config"]
    for name in GROUP.contenders:
        found = [e for e in record["measurements"] if e["contender"] == name and e["status"] == "measured"]
        points = [entry["point"] for entry in found]
        times = [spread(entry["seconds"]) for entry in found]
        colour, marker = STYLES[name]
        axis.plot(points, [1e3 * t.median for t in times], color=colour, marker=marker, ms=4, label=TITLES[name])
        axis.fill_between(points, [1e3 * t.low for t in times], [1e3 * t.high for t in times], color=colour, alpha=0.2)
    axis.set_xscale("log", base=2)
    axis.set_yscale("log")
    axis.set_xticks(config["points"], [str(point) for point in config["points"]], fontsize=7)
    axis.minorticks_off()
    axis.axvline(config["base"][config["axis"]], color="0.6", lw=0.8, ls=":")
    axis.set_xlabel(AXES[config["axis"]])
    axis.grid(alpha=0.25)


def draw(device: str, growth: Sequence[Record], folder: Path) -> Path:
    """Write bench-<device>-growth as PNG and SVG; returns the PNG."""
    figure, axes = plt.subplots(1, len(AXES), figsize=(14, 3.4), sharey=True, layout="constrained")
    by_axis = {record["config"]["axis"]: record for record in growth}
    for axis, name in zip(axes, AXES, strict=True):
        if name in by_axis:
            panel(axis, by_axis[name])
        else:
            axis.set_xlabel(f"{AXES[name]}: not measured")
    axes[0].set_ylabel("forward and backward, ms")
    handles, labels = next(axis.get_legend_handles_labels() for axis in axes if axis.lines)
    figure.legend(handles, labels, loc="outside upper right", ncols=len(labels), fontsize=9, frameon=False)
    figure.suptitle(f"{growth[0]['hardware']['name']}; dotted: the base case", x=0.01, ha="left", fontsize=10)
    target = folder / f"bench-{device}-growth.png"
    for path in (target, target.with_suffix(".svg")):
        save(figure, path, dpi=130)
    plt.close(figure)
    return target
