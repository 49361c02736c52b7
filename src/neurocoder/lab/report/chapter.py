"""One experiment with one preset, ready to be written in any format."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import matplotlib

matplotlib.use("agg")

from matplotlib import pyplot as plt

from .sections import Plot, Section, UndrawableError
from .style import render


@dataclass(frozen=True)
class Picture:
    """A drawn figure. The same figure gives the same bytes."""

    stem: str
    """Name of its files."""
    svg: bytes
    png: bytes


def draw(plot: Plot, stem: str) -> Picture:
    """A figure as SVG and PNG."""
    figure = plot.draw()
    if not any(axis.has_data() for axis in figure.axes):
        raise UndrawableError("the records have nothing to draw in it")
    picture = Picture(stem, render(figure, "svg"), render(figure, "png"))
    plt.close(figure)
    return picture


@dataclass(frozen=True)
class Chapter:
    """Sections with their figures, and where their records come from."""

    experiment: str
    title: str
    preset: str
    """With the settings that differ from it, if any."""
    origin: str
    """Number of records, their commit and hardware."""
    commands: Sequence[str]
    """To reproduce these records."""
    sections: Sequence[Section]
    pictures: Mapping[str, Picture]
    """By name of the plot."""
    undrawn: Sequence[str] = ()
    """Names of the files of figures that cannot be drawn here: those of an earlier report stay."""
    warnings: Sequence[str] = ()
    """What to know before the numbers are read."""


def slug(experiment: str, preset: str) -> str:
    """For file names and anchors."""
    return re.sub(r"[^A-Za-z0-9.]+", "-", f"{experiment} {preset}")
