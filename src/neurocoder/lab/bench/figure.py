"""The growth plots: time against each size, on logarithmic axes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from ..report.style import BLACK, BLUE, VERMILION, save
from .cases import AXES
from .contenders import TITLES
from .tables import Record, spread

STYLES = {"linear": (BLACK, "o"), "program": (BLUE, "s"), "materialising": (VERMILION, "^")}


def panel(axis: Any, record: Record) -> None:
    """One size: a line for each contender, its quartiles shaded."""
    case = record["case"]
    for name, (colour, marker) in STYLES.items():
        found = [e for e in record["measurements"] if e["contender"] == name and e["status"] == "measured"]
        points, times = [entry["point"] for entry in found], [spread(entry, 1e3) for entry in found]
        axis.plot(points, [t.median for t in times], color=colour, marker=marker, ms=4, label=TITLES[name])
        axis.fill_between(points, [t.low for t in times], [t.high for t in times], color=colour, alpha=0.2)
    axis.set_xscale("log", base=2)
    axis.set_yscale("log")
    axis.set_xticks(case["points"], [str(point) for point in case["points"]], fontsize=7)
    axis.minorticks_off()
    base = {**case["program"], "width": case["widths"][0], "batch": case["batch"]}
    axis.axvline(base[case["axis"]], color="0.6", lw=0.8, ls=":")
    axis.set_xlabel(AXES[case["axis"]])
    axis.grid(alpha=0.25)


def draw(growth: Sequence[Record], stem: Path) -> None:
    """Write the figure as PNG and SVG."""
    figure = Figure(figsize=(14, 3.4), layout="constrained")
    axes = figure.subplots(1, len(growth), sharey=True, squeeze=False)[0]
    for axis, record in zip(axes, growth, strict=True):
        panel(axis, record)
    axes[0].set_ylabel("forward and backward, ms")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper right", ncols=len(labels), fontsize=9, frameon=False)
    figure.suptitle(f"{growth[0]['hardware']}; dotted: the base case", x=0.01, ha="left", fontsize=10)
    for kind in (".png", ".svg"):
        save(figure, stem.with_suffix(kind), dpi=130)
