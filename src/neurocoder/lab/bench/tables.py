"""Measurements as tables of ratios, in Markdown for the page and for the terminal."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any, NamedTuple

from .cases import BASELINES
from .contenders import TITLES

Record = dict[str, Any]
Entry = dict[str, Any]
MODES = {
    "eager": "eager",
    "compiled": "compiled",
    "wrapped": "compiled, C++ wrapper",
    "reduced": "compiled, reduce-overhead",
    "graphed": "graphed",
    "graph": "CUDA graph",
}


def short(value: float) -> str:
    """Three digits, without an exponent."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


UNSTEADY = 3.0
"""The upper over the lower quartile, beyond which they say more of the machine than of the layer."""


class Spread(NamedTuple):
    """A median between its quartiles."""

    low: float
    median: float
    high: float

    def shown(self, unit: str) -> str:
        """As text."""
        if self.high > UNSTEADY * self.low:
            return f"{short(self.median)}{unit} (unsteady)"
        return f"{short(self.median)}{unit} ({short(self.low)}–{short(self.high)})"


def spread(entry: Entry, scale: float = 1.0) -> Spread:
    """The seconds of a measurement, times `scale`."""
    return Spread(*statistics.quantiles((scale * time for time in entry["seconds"]), n=4, method="inclusive"))


def ratio(entry: Entry, base: Entry) -> Spread:
    """The ratio to another contender, repetition by repetition: they took turns, so a disturbance hits both. Where one
    has fewer repetitions, they are spread over the other's. Other modes took no turns: there, of the quartiles."""
    if entry["mode"] != base["mode"]:
        ours, theirs = spread(entry), spread(base)
        return Spread(ours.low / theirs.high, ours.median / theirs.median, ours.high / theirs.low)
    times, others = entry["seconds"], base["seconds"]
    ratios = [time / others[place * len(others) // len(times)] for place, time in enumerate(times)]
    return Spread(*statistics.quantiles(ratios, n=4, method="inclusive"))


def baseline(entries: Sequence[Entry], entry: Entry) -> Entry | None:
    """What an entry is compared with, if that was measured."""
    same = {"status": "measured", **{name: entry[name] for name in ("dtype", "mode", "direction", "point")}}
    return next((e for e in entries if e["contender"] in BASELINES and same.items() <= e.items()), None)


def cell(entry: Entry, base: Entry | None) -> str:
    """A time for a baseline, a ratio for another contender, or the status."""
    if entry["status"] != "measured":
        return str(entry["status"])
    if base is None or base is entry:
        return spread(entry, 1e3).shown(" ms")
    return ratio(entry, base).shown("x")


def markdown(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table with aligned columns; those without content are left out."""
    keep = [index for index in range(len(headings)) if any(row[index] for row in rows)]
    widths = {index: max(len(row[index]) for row in [headings, *rows]) for index in keep}
    lines = [f"| {' | '.join(row[i].ljust(widths[i]) for i in keep)} |" for row in [headings, *rows]]
    return "\n".join([lines[0], f"|{'|'.join('-' * (widths[i] + 2) for i in keep)}|", *lines[1:]])


def table(entries: Sequence[Entry]) -> str:
    """A row for each dtype, mode and contender; a mode without a dtype is in float32."""
    used = list(dict.fromkeys(entry["direction"] for entry in entries))
    rows: dict[tuple[str, str], dict[str, str]] = {}
    for entry in entries:
        mode = MODES[entry["mode"]] + ("" if entry["dtype"] == "float32" else f", {entry['dtype']}")
        row = rows.setdefault((TITLES[entry["contender"]], mode), {})
        row[entry["direction"]] = cell(entry, baseline(entries, entry))
        if entry.get("peak_bytes") is not None:
            peak = entry["peak_bytes"] / 1e9
            row[f"{entry['direction']}: GB"] = f"{peak:.2g}" if peak < 0.1 else f"{peak:.3g}"
        if "first_call_seconds" in entry:
            earlier = f"{row['first call, s']}, " if "first call, s" in row else ""
            row["first call, s"] = f"{earlier}{entry['first_call_seconds']:.1f}"
    columns = [*used, *(f"{direction}: GB" for direction in used), "first call, s"]
    cells = [[*names, *(row.get(column, "") for column in columns)] for names, row in rows.items()]
    return markdown(["layer", "mode", *columns], cells)


def notes(entries: Sequence[Entry]) -> list[str]:
    """Why contenders have no time, each reason once, as a Markdown list or nothing."""
    missing = [entry for entry in entries if entry["status"] != "measured"]
    lines = dict.fromkeys(f"- {TITLES[e['contender']]} {e['status']}: {e['reason']}" for e in missing)
    return ["\n".join(lines)] if lines else []
