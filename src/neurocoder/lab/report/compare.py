"""Configurations of one preset side by side: a row for each, a column for each variant, or the other way round."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from textwrap import fill
from typing import Any

from ..records.record import Record
from .cells import brief
from .sections import Cell, Section, Table

Settings = dict[str, Any]
Rows = list[tuple[Settings, list[Record]]]
"""Records by the settings in which they differ from the preset."""
Effective = Callable[[Mapping[str, Any], str], Mapping[str, Any]]

AS_THE_PRESET = "as the preset"
"""The settings of the preset's own configuration, in words."""
NEWER = {"normalise": False}
"""Settings of layers that older records lack, and what they stand for there."""
LETTERS = 36
"""In a line of a panel's title."""


def _all(config: Mapping[str, Any], variant: str) -> Mapping[str, Any]:
    return config


def diff_config(config: Mapping[str, Any], usual: Mapping[str, Any]) -> Settings:
    """The settings that differ, without the names of their groups; equal `rates` of all models are one `rate`."""
    found: Settings = {}
    for name, value in config.items():
        one = name.removesuffix("s")
        if name in usual and value == usual[name]:
            continue
        if not isinstance(value, Mapping):
            found[name] = value
        elif len(set(map(repr, value.values()))) == 1 < len(value) and all(key.startswith(one) for key in value):
            found[one] = next(iter(value.values()))
        else:
            found |= diff_config(value, usual.get(name) or {})
    return found


def models(runs: Sequence[Record]) -> list[Settings]:
    """For each run of a variant and configuration, the settings of its model that differ from those of most runs."""
    flat = [flattened(run.model or {}, len(run.model or {}) > 1) for run in runs]
    found: list[Settings] = [{} for _ in runs]
    for name in dict.fromkeys(name for settings in flat for name in settings):
        missing = NEWER.get(name.rpartition(" ")[2], "default")
        values = [settings.get(name, missing) for settings in flat]
        most, times = Counter(map(repr, values)).most_common(1)[0]
        for settings, value in zip(found, values, strict=True):
            if repr(value) != most or 2 * times <= len(values):
                settings[name] = value
    return found


def flattened(settings: Mapping[str, Any], named: bool = False) -> Settings:
    """Nested settings by their own names; `named` puts the name of the group, a layer, in front."""
    found: Settings = {}
    for name, value in settings.items():
        inner = flattened(value) if isinstance(value, Mapping) else {name: value}
        found |= {f"{name} {key}" if named else key: part for key, part in inner.items()}
    return found


def configurations(records: Sequence[Record], preset: Mapping[str, Any], effective: Effective = _all) -> Rows:
    """The records by configuration, the preset's own first; `effective` as in `Experiment`."""
    found: dict[str, tuple[Settings, list[Record]]] = {}
    alike: dict[tuple[str, str], tuple[Settings, list[Record]]] = {}
    for record in records:
        differing = diff_config(effective(record.config, record.variant), effective(preset, record.variant))
        alike.setdefault((record.variant, repr(differing)), (differing, []))[1].append(record)
    for differing, runs in alike.values():
        for run, model in zip(runs, models(runs), strict=True):
            settings = differing | model
            if run.precision != "32-true":
                settings["precision"] = run.precision
            found.setdefault(repr(settings), (settings, []))[1].append(run)
    return sorted(found.values(), key=lambda row: (len(row[0]), *row[0], *map(order, row[0].values())))


def order(value: Any) -> tuple[bool, Any]:
    """Numbers by size, then everything else as text."""
    return (False, value) if isinstance(value, int | float) else (True, str(value))


def label(settings: Mapping[str, Any]) -> str:
    """Settings in words."""
    words = {"True": "{0}", "False": "no {0}", "None": "no {0}"}
    pairs = ((name.replace("_", " "), value) for name, value in settings.items())
    return ", ".join(words.get(str(value), "{0} {1}").format(name, value) for name, value in pairs)


def panel(name: str, settings: str) -> str:
    """Title of a panel: its name, and settings in words on lines of their own."""
    return f"{name}\n{fill(settings, LETTERS)}" if settings else name


def factor_out_shared(rows: Rows) -> tuple[Settings, Rows]:
    """The settings that all rows share, and the rows without them; a single row keeps its own."""
    first = rows[0][0].items() if len(rows) > 1 else ()
    shared = {name: value for name, value in first if all(settings.get(name) == value for settings, _ in rows)}
    remaining = [
        ({name: value for name, value in settings.items() if name not in shared}, runs) for settings, runs in rows
    ]
    return shared, remaining


def section(rows: Rows, preset: Mapping[str, Any], variants: Sequence[str], metric: str) -> Section:
    """Mean and standard deviation of a metric, with its unit chosen so that small numbers can be read."""
    shared, remaining = factor_out_shared(rows)
    names = {name for settings, _ in remaining for name in settings}
    if len(names) == 1 and names <= set(preset):  # one setting varies: say its value in every row
        remaining = [({name: settings.get(name, preset[name]) for name in names}, runs) for settings, runs in remaining]
        remaining.sort(key=lambda row: [*map(order, row[0].values())])
    values = [{v: [r.metrics[metric] for r in runs if r.variant == v] for v in variants} for _, runs in remaining]
    filled = [numbers for row in values for numbers in row.values() if numbers]
    least = min((abs(fmean(numbers)) for numbers in filled if fmean(numbers)), default=1.0)
    unit = round(math.log10(least)) if least < 0.01 else 0
    usual = Counter(map(len, filled)).most_common(1)[0][0]

    def cell(numbers: Sequence[float]) -> Cell:
        note = f" (n={len(numbers)})" * (len(numbers) != usual)
        return brief([value / 10**unit for value in numbers], 2) + note if numbers else None

    labels = [label(settings) or AS_THE_PRESET for settings, _ in remaining]
    headings = ["settings", *variants]
    cells: list[list[Cell]] = [[name, *map(cell, row.values())] for name, row in zip(labels, values, strict=True)]
    if len(variants) > len(labels):
        headings = ["variant", *labels]
        cells = [[variant, *(cell(row[variant]) for row in values)] for variant in variants]
    table = Table(
        title=metric.replace("_", " ").capitalize() + f", 1e{unit}" * (unit < 0),
        headings=headings,
        rows=cells,
        caption=f"Mean ± standard deviation, n={usual}." + f" All runs: {label(shared)}." * bool(shared),
    )
    return Section("Settings compared", tables=[table])
