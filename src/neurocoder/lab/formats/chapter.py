"""One experiment with one preset, ready to be written in any format."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import matplotlib

matplotlib.use("agg")

from matplotlib import pyplot as plt

from ..sections import Plot, Section


@dataclass(frozen=True)
class Picture:
    """A drawn figure. The same figure gives the same bytes."""

    stem: str
    """Name of its files."""
    svg: bytes
    png: bytes
    width: int
    """In CSS pixels."""


def draw(plot: Plot, stem: str) -> Picture:
    """A figure as SVG and PNG, without dates or random names."""
    figure, (svg, png) = plot.draw(), (io.BytesIO(), io.BytesIO())
    with matplotlib.rc_context({"svg.hashsalt": "neurocoder"}):
        figure.savefig(svg, format="svg", metadata={"Date": None, "Creator": None})
        figure.savefig(png, format="png", dpi=150, metadata={"Software": None})
    width = round(96 * figure.get_figwidth())
    plt.close(figure)
    return Picture(stem, svg.getvalue(), png.getvalue(), width)


@dataclass(frozen=True)
class Chapter:
    """Sections with their figures, and where their records come from."""

    experiment: str
    title: str
    preset: str
    """With the options given on top of it, if any."""
    origin: str
    """Number of records, their commit and hardware."""
    commands: Sequence[str]
    """To reproduce these records."""
    sections: Sequence[Section]
    pictures: Mapping[str, Picture]
    """By name of the plot."""


def slug(experiment: str, preset: str) -> str:
    """For file names and anchors."""
    return re.sub(r"[^A-Za-z0-9.]+", "-", f"{experiment} {preset}")
