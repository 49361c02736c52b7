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
    """Of its files."""
    svg: bytes
    png: bytes
    width: int
    """In CSS pixels."""


def draw(plot: Plot, stem: str) -> Picture:
    """Vector and pixels of a figure, free of dates and random names."""
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
    """With the options that were given on top of it, if there were any."""
    origin: str
    """Of the records: how many, from which commit and hardware."""
    commands: Sequence[str]
    """That make these records."""
    sections: Sequence[Section]
    pictures: Mapping[str, Picture]
    """By the plot's name."""


def slug(experiment: str, preset: str) -> str:
    """For the names of files and of places in a page."""
    return re.sub(r"[^A-Za-z0-9.]+", "-", f"{experiment} {preset}")
