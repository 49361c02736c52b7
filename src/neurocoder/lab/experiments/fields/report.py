"""What the images as functions came to: the contenders side by side, at equal size and at equal time."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import pairwise
from statistics import fmean

import numpy as np
from matplotlib.figure import Figure

from ...records.record import Record
from ...report.cells import excludes_zero
from ...report.sections import Cell, Estimate, Plot, Section, Table, UndrawableError
from ...report.statistics import summary
from ...report.tables import Row, estimate, paired, table
from . import figures
from .data import TITLES
from .models import CONTENDERS, FEATURES
from .pictures import Grid, unpacked

OURS = "core"
BARS = {
    "film": (1.0, 0.7),
    "shift": (1.0, 0.7),
    "hyper": (0.0, 0.0),
    "low-rank": (0.0, 0.0),
}
"""What core is asked to be above, in dB, on trained and on new images."""
METRICS = {"trained": "trained images", "new_100": "new images, 100 steps"}
PUBLISHED = {128: (24.4, 24.7), 256: (27.5, 27.8), 384: (29.7, 30.1), 512: (31.7, 32.1), 768: (34.6, 35.1)}
"""COIN++ on CIFAR-10 test images, by latent: after 3 and after 10 steps."""
PICTURED = ("core", "hyper", "film", "shift")
Lengths = dict[int, dict[str, list[Record]]]
"""By steps and contender, in the order of the tables."""


def sections(records: Sequence[Record]) -> list[Section]:
    """A section for each data set and kind of features."""
    found = []
    for dataset, title in TITLES.items():
        for features, name in FEATURES.items():
            lengths: Lengths = {}
            for record in records:
                if record.variant.startswith(f"{dataset}-{features}-"):
                    contender, _, steps = record.variant.split("-", 2)[2].rpartition("-")
                    lengths.setdefault(int(steps), {}).setdefault(contender, []).append(record)
            ordered = {
                steps: {contender: lengths[steps][contender] for contender in CONTENDERS if contender in lengths[steps]}
                for steps in sorted(lengths)
            }
            if ordered:
                found.append(section(f"{dataset}-{features}", f"{title}, {name}", ordered))
    return found


def section(name: str, title: str, lengths: Lengths) -> Section:
    """One data set with one kind of features."""
    config = next(iter(next(iter(lengths.values())).values()))[0].config
    meta = config["learn"] == "meta"
    text = (
        "Mean over the images of each one's PSNR in dB. New images: the network as it is, and only the latent fitted, "
        "3, 10 or 100 steps. Equal network parameters within 3%; latents are not counted."
    )
    tables = [main_table(steps, runs, meta) for steps, runs in lengths.items()]
    tables += [made for steps, runs in lengths.items() if (made := bars_table(steps, runs)).rows]
    if not meta and len(lengths) > 1:
        tables += [made for metric in METRICS if (made := equal_time(lengths, metric)).rows]
    plots = []
    if not meta:
        caption = "PSNR against seconds of training; a point a length, with 95% intervals."
        plots.append(Plot(f"{name}-time", caption, partial(against_time, lengths)))
    for kind, words in CAPTIONS.items():
        longest = lengths[max(lengths)]
        plots.append(Plot(f"{name}-{kind}", words, partial(pictures, longest, kind)))
    return Section(title, [text], tables, plots)


CAPTIONS = {
    "new": "New images, and what each network makes of them after 100 steps of the latent alone.",
    "between": "Between the latents of two trained images, in equal steps.",
    "off": "Trained images, each followed by the same with one number of its latent at zero: in a core layer, with a "
    "program switched off. The eight that change the picture most, from the left.",
}


def main_table(steps: int, runs: Mapping[str, list[Record]], meta: bool) -> Table:
    """All contenders after so many steps."""
    rows: list[Row] = []
    for contender, own in runs.items():
        seen = own[0].observations
        rates = " / ".join(f"{rate:g}" for rate in seen["rates"][: 1 if meta else 2])
        row: dict[str, Cell] = {
            "contender": CONTENDERS[contender].title,
            "parameters": int(own[0].metrics["network_parameters"]),
            "rates" if not meta else "rate": rates,
            "size": seen["size"],
            "trained": estimate(own, "trained"),
            "new, 3": estimate(own, "new_3"),
            "new, 10": estimate(own, "new_10"),
            "new, 100": estimate(own, "new_100"),
            "trained, pooled": estimate(own, "trained_pooled"),
            "new, pooled": estimate(own, "new_100_pooled"),
            "seconds": f"{fmean(r.metrics['training_seconds'] for r in own):.1f}",
            "steps a second": f"{fmean(r.metrics['steps_per_second'] for r in own):.0f}",
        }
        rows.append(row)
    latent = next(iter(runs.values()))[0].config["latent"]
    if meta and latent in PUBLISHED:
        three, ten = (f"{value:.1f}" for value in PUBLISHED[latent])
        blank = dict.fromkeys(rows[0])
        rows.append(blank | {"contender": "COIN++, published", "new, 3": three, "new, 10": ten})
    caption = (
        "Rates: of the network and of the latents. Size: slots, rank or members. Pooled: the PSNR of the mean square "
        "error over all images, in which the worst images weigh most. Seconds: of training, CPU time on a CPU."
    )
    return table(f"After {steps:,} steps", rows, caption)


def bars_table(steps: int, runs: Mapping[str, list[Record]]) -> Table:
    """Core against the contenders it is measured by."""
    rows: list[Row] = []
    for other, own in runs.items():
        if OURS not in runs or other == OURS:
            continue
        row: dict[str, Cell] = {"core minus": CONTENDERS[other].title}
        for place, (metric, words) in enumerate(METRICS.items()):
            difference = paired(runs[OURS], own, metric)
            row[words] = difference
            if other in BARS:
                row[f"asked, {metric.partition('_')[0]}"] = asked(difference, BARS[other][place])
            else:
                row[f"asked, {metric.partition('_')[0]}"] = None
        rows.append(row)
    caption = "In dB, paired by seed. Asked: what core was to be above, and whether its mean is."
    return table(f"Core against the others after {steps:,} steps", rows, caption)


def asked(difference: Estimate | None, bar: float) -> str | None:
    """Whether the mean of the differences is at or above a bar."""
    if difference is None:
        return None
    mean = summary(difference.values).mean
    level = bar == 0 and len(difference.values) > 1 and not excludes_zero(difference)
    return f"{bar:g}: " + ("level" if level else "yes" if mean >= bar else "no")


def seconds_of(records: Sequence[Record]) -> float:
    """Of training: the mean over the seeds."""
    return math.fsum(record.metrics["training_seconds"] for record in records) / len(records)


def equal_time(lengths: Lengths, metric: str) -> Table:
    """Every contender after as many seconds as core takes for a length, between its own lengths."""
    targets = {steps: seconds_of(runs[OURS]) for steps, runs in lengths.items() if OURS in runs}
    contenders = [name for name in CONTENDERS if any(name in runs for runs in lengths.values())]
    rows: list[Row] = []
    for contender in contenders:
        own = {seconds_of(runs[contender]): runs[contender] for runs in lengths.values() if contender in runs}
        row: dict[str, Cell] = {"contender": CONTENDERS[contender].title}
        for steps, seconds in targets.items():
            row[f"{seconds:.1f} s (core: {steps:,} steps)"] = between(own, seconds, metric)
        rows.append(row)
    caption = (
        "A contender's PSNR is taken between its own lengths, linear in the logarithm of the seconds; – where that "
        "time is shorter than its shortest run, or longer than its longest."
    )
    return table(f"At equal time: {METRICS[metric]}", rows if targets else [], caption)


def between(runs: Mapping[float, Sequence[Record]], seconds: float, metric: str) -> Estimate | None:
    """A metric of each seed at a time between two of the runs' times."""
    times = sorted(runs)
    for low, high in pairwise(times):
        if low <= seconds <= high:
            share = math.log(seconds / low) / math.log(high / low)
            first, last = ({record.seed: record.metrics[metric] for record in runs[at]} for at in (low, high))
            return Estimate([first[seed] * (1 - share) + last[seed] * share for seed in first if seed in last])
    return estimate(runs[seconds], metric) if seconds in runs else None


def against_time(lengths: Lengths) -> Figure:
    """The figure of both metrics."""
    panels: dict[str, dict[str, list[tuple[float, list[float]]]]] = {}
    for metric, words in METRICS.items():
        points: dict[str, list[tuple[float, list[float]]]] = {}
        for runs in lengths.values():
            for contender, own in runs.items():
                values = [record.metrics[metric] for record in own]
                points.setdefault(contender, []).append((seconds_of(own), values))
        panels[f"PSNR, {words}"] = points
    return figures.against_time(panels, {name: contender.title for name, contender in CONTENDERS.items()})


def pictures(runs: Mapping[str, Sequence[Record]], kind: str) -> Figure:
    """Pictures that the records have."""
    rows: dict[str, Grid] = {}
    for contender in (OURS,) if kind == "off" else PICTURED:
        kept = [run.observations["pictures"] for run in runs.get(contender, ()) if "pictures" in run.observations]
        if kept:
            grid = unpacked(kept[0][kind])
            if kind == "new":  # the images themselves once, above all networks
                images, grid = np.split(grid, 2)
                rows = {"new images": images} | rows
            rows[CONTENDERS[contender].title] = grid
    if not rows:
        raise UndrawableError("the records keep no pictures")
    return figures.grids(rows)
