"""How the cost grows with P, J, H, width and batch, one at a time, around a base case."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

from .cases import GIB, Case, Device, Group, Settings, program
from .measure import Log, Measurement, measure_case

AXES = {"slots": "P", "steps": "J", "heads": "H", "width": "width", "batch": "batch"}
"""Axes and the names that the plots use."""


class Base(NamedTuple):
    """The case from which each axis starts; widths are equal, the LSTM has 32 units."""

    slots: int
    steps: int
    heads: int
    width: int
    batch: int


BASES: dict[Device, Base] = {"cpu": Base(16, 4, 2, 512, 128), "cuda": Base(32, 4, 4, 1024, 4096)}
RANGES: dict[Device, dict[str, tuple[int, int]]] = {
    "cpu": {"slots": (4, 64), "steps": (1, 8), "heads": (1, 8), "width": (128, 2048), "batch": (16, 1024)},
    "cuda": {"slots": (8, 256), "steps": (1, 16), "heads": (1, 16), "width": (256, 4096), "batch": (256, 16384)},
}
GROUP = Group("float32", "eager", "forward+backward", ("linear", "program", "materialising"))


def settings(whole: Settings) -> Settings:
    """Many points: less time for each, and on a CPU a lower limit for building W_t."""
    limit = GIB if whole.device == "cpu" else whole.limit
    return dataclasses.replace(
        whole, seconds=whole.seconds / 3, minimum=5, slow=whole.slow / 4, limit=limit, check_rows=1
    )


def points(device: Device, axis: str) -> list[int]:
    """The powers of two of an axis."""
    low, high = RANGES[device][axis]
    return [2**power for power in range(low.bit_length() - 1, high.bit_length())]


def case(device: Device, axis: str, value: int) -> Case:
    """One point of an axis."""
    base = BASES[device]._replace(**{axis: value})
    layer = program(base.slots, base.steps, base.heads, hidden=32)
    return Case(f"growth-{axis}", (base.width, base.width), base.batch, layer, (GROUP,), point=value)


def axis_cases(device: Device, axis: str) -> list[Case]:
    """All points of an axis."""
    return [case(device, axis, value) for value in points(device, axis)]


def config(device: Device, axis: str) -> dict[str, Any]:
    """Everything that defines the measurement of an axis, ready for JSON."""
    base = BASES[device]
    whole = case(device, axis, getattr(base, axis)).config()
    return whole | {"axis": axis, "points": points(device, axis), "base": base._asdict()}


def measure_axis(device: Device, axis: str, how: Settings, log: Log) -> list[Measurement]:
    """Every point of an axis."""
    return [entry for point in axis_cases(device, axis) for entry in measure_case(point, how, log)]
