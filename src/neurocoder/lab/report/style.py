"""The figures of the lab, in the style of `nc.plot`: how they are made, rendered and saved."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure
from PIL import Image  # comes with matplotlib

from neurocoder.plot import styled as styled

from ..records.files import atomic_write

BLACK, PURPLE, VERMILION, BLUE, SKY, GREEN = "#000000", "#CC79A7", "#D55E00", "#0072B2", "#56B4E9", "#009E73"
"""From the palette of Okabe and Ito. In all figures Neurocoders are blue to green, other models purple and vermilion;
grey is context."""
MAP = "viridis"
"""Colour map of images: lightness grows with the value."""
WIDTH = 9.5
"""Of every figure, in inches."""
METADATA: Any = {"svg": {"Date": None, "Creator": None}, "png": {"Software": None}}
"""No dates and no versions: the same figure gives the same bytes."""


def new_figure(height: float) -> Figure:
    """An empty figure. It has no window and need not be closed."""
    return Figure(figsize=(WIDTH, height), layout="constrained")


def render(figure: Figure, kind: str, dpi: int = 150) -> bytes:
    """A figure as the content of an `svg` or `png` file.

    A PNG without pictures gets 256 colours: lines look the same in a third of the bytes.
    """
    target = io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": "neurocoder"}):
        figure.savefig(target, format=kind, dpi=dpi, metadata=METADATA[kind])
    if kind == "svg" or any(axis.images for axis in figure.axes):
        return target.getvalue()
    smaller = io.BytesIO()
    with Image.open(target) as drawn:
        drawn.convert("RGB").quantize(256, dither=Image.Dither.NONE).save(smaller, "png", optimize=True, dpi=(dpi, dpi))
    return smaller.getvalue()


def save(figure: Figure, target: Path, dpi: int = 150) -> None:
    """Write a figure atomically (PNG or SVG by its suffix)."""
    with atomic_write(target) as temporary:
        temporary.write_bytes(render(figure, target.suffix[1:], dpi))
