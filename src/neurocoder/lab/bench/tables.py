"""Records as tables of ratios, for the terminal and for the page."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from .cases import BASELINES
from .contenders import TITLES
from .records import Record, Spread, spread

Entry = dict[str, Any]
MODES = {
    "eager": "eager",
    "compiled": "compiled",
    "wrapped": "compiled, C++ wrapper",
    "graphed": "graphed",
    "graph": "CUDA graph",
}
ONE_LINE = ("eager", "compiled", "wrapped", "graphed")
"""Modes that take one line of user code; a CUDA graph of a whole step takes several."""
DIRECTIONS = ("forward", "forward+backward", "step")


def short(value: float) -> str:
    """Three digits, without an exponent."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


class Ratio(NamedTuple):
    """A contender's time over the baseline's, between the extremes that their quartiles allow."""

    low: float
    value: float
    high: float

    def __str__(self) -> str:
        return f"{short(self.value)}x ({short(self.low)}–{short(self.high)})"


def ratio(times: Spread, base: Spread) -> Ratio:
    """Ratio of medians; from lower over upper to upper over lower quartile."""
    return Ratio(times.low / base.high, times.median / base.median, times.high / base.low)


def milliseconds(times: Spread) -> str:
    """A time with its spread."""
    return f"{short(1e3 * times.median)} ms ({short(1e3 * times.low)}–{short(1e3 * times.high)})"


def title(record: Record) -> str:
    """What a record is about."""
    config = record["config"]
    program, widths = config["program"], config["widths"]
    sizes = f"P={program['slots']} J={program['steps']} H={program['heads']}, LSTM {program['hidden']}"
    kind = f"{widths[0]}x{widths[1]}" if len(widths) == 2 else f"training step, MLP {'-'.join(map(str, widths))}"
    inputs = "one input" if config["batch"] == 1 else f"batch {config['batch']}"
    threads = f", {config['threads']} thread" if config["threads"] else ""
    quick = ", quick" if record["settings"].get("quick") else ""
    return f"{kind}, {sizes}{'' if program['residual'] else ', no residual'}, {inputs}{threads}{quick}"


def find(record: Record, **fields: Any) -> Entry | None:
    """The first measurement with these fields."""
    matches = (e for e in record["measurements"] if all(e.get(name) == value for name, value in fields.items()))
    return next(matches, None)


def baseline(record: Record, entry: Entry) -> Entry | None:
    """What an entry is compared with, if that was measured."""
    for name in BASELINES:
        fields = {key: entry.get(key) for key in ("dtype", "mode", "direction", "point")}
        base = find(record, contender=name, status="measured", **fields)
        if base is not None:
            return base
    return None


def fastest(record: Record, entry: Entry, contenders: Iterable[str]) -> Entry | None:
    """A measurement like this one of some contenders, in the one-line mode that is fastest for them."""
    fields = {key: entry.get(key) for key in ("dtype", "direction", "point")}
    found = (find(record, contender=n, status="measured", mode=mode, **fields) for n in contenders for mode in ONE_LINE)
    return min((e for e in found if e is not None), key=lambda e: spread(e["seconds"]).median, default=None)


def cell(record: Record, entry: Entry | None) -> str:
    """A time for a baseline, a ratio for another contender, or the status."""
    if entry is None:
        return ""
    if entry["status"] != "measured":
        return str(entry["status"])
    base = baseline(record, entry)
    times = spread(entry["seconds"])
    return milliseconds(times) if base is None or base is entry else str(ratio(times, spread(base["seconds"])))


def gigabytes(entry: Entry | None) -> str:
    """Peak memory."""
    peak = None if entry is None else entry.get("peak_bytes")
    return "" if peak is None else f"{peak / 1e9:.2g}" if peak < 1e8 else f"{peak / 1e9:.3g}"


def rows(record: Record) -> list[list[str]]:
    """A header, then a row for each dtype, mode and contender; columns without content are left out."""
    used = [direction for direction in DIRECTIONS if find(record, direction=direction)]
    table = [["dtype", "mode", "", *used, *(f"{d}: GB" for d in used), "first call, s"]]
    seen = dict.fromkeys((entry["dtype"], entry["mode"]) for entry in record["measurements"])
    for dtype, mode in seen:
        for name in TITLES:
            entries = [find(record, dtype=dtype, mode=mode, contender=name, direction=d) for d in used]
            if any(entries):
                first = [e["first_call_seconds"] for e in entries if e is not None and "first_call_seconds" in e]
                table.append(
                    [
                        dtype,
                        MODES[mode],
                        TITLES[name],
                        *(cell(record, entry) for entry in entries),
                        *(gigabytes(entry) for entry in entries),
                        ", ".join(f"{seconds:.1f}" for seconds in first),
                    ]
                )
    keep = [index for index in range(len(table[0])) if any(row[index] for row in table[1:])]
    return [[row[index] for index in keep] for row in table]


def notes(record: Record) -> list[str]:
    """Why contenders have no time, each reason once."""
    found: dict[str, None] = {}
    for entry in record["measurements"]:
        if entry["status"] != "measured":
            found[f"{TITLES[entry['contender']]} {entry['status']}: {entry['reason']}"] = None
    return list(found)


def text(table: Sequence[Sequence[str]]) -> str:
    """Aligned columns."""
    widths = [max(len(row[index]) for row in table) for index in range(len(table[0]))]
    lines = ["  ".join(word.ljust(width) for word, width in zip(row, widths, strict=True)).rstrip() for row in table]
    return "\n".join([lines[0], "  ".join("-" * width for width in widths), *lines[1:]])


def markdown(table: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    head, *body = [f"| {' | '.join(row)} |" for row in table]
    return "\n".join([head, "|" + "---|" * (head.count("|") - 1), *body])
