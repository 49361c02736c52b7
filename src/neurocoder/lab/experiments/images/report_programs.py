"""Where programs help and where not: tables by class, against the original's predictions, and of how many there are;
and images that share a program. Records only name these images, so the data set has to be at hand to draw them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import combinations
from statistics import fmean
from typing import Any

import torch
from numpy.typing import NDArray

from ...data import cifar
from ...records.record import Record
from ...report.sections import Cell, Estimate, PairedDifference, Plot, Table, UndrawableError
from ...report.tables import Row, table
from .data import CLASSES, TITLES
from .figures import shared_programs
from .models import MODELS, NETWORKS
from .observations import agreement, unpack

LAYERS = {
    "mlp": {"1": "first", "3": "middle", "5": "output"},
    "lenet": {
        "convolutions.0": "first convolution",
        "convolutions.3": "second convolution",
        "dense.0": "first dense",
        "dense.2": "middle dense",
        "dense.4": "output",
    },
    "densenet": {
        "transitions.0.convolution": "first transition",
        "transitions.1.convolution": "second transition",
        "classifier": "output",
    },
}
"""Layers in words."""
EXTREMES = 5
"""Of CIFAR-100, classes with the largest gains and losses that are shown."""
PROGRAMS = 3
"""Of each layer: those that most images share."""

Changes = Sequence[tuple[float, list[float]]]
"""For each class: the original's accuracy in percent, and for each seed the change in points."""
Cases = dict[tuple[str, str], dict[str, list[Record]]]
"""By data set and network: the records of each model, by seed."""


def changes(own: Sequence[Record], base: Sequence[Record]) -> Changes:
    """For each class, over the seeds that both have: the accuracy of `base` in percent, and the changes in points."""
    before = {record.seed: record.observations["right"] for record in base}
    both = [(record.observations, before[record.seed]) for record in own if record.seed in before]
    found = []
    for c in range(len(both[0][1]) if both else 0):
        each = [(100 / max(1, seen["images"][c]), seen["right"][c], right[c]) for seen, right in both]
        found.append((fmean(unit * was for unit, _, was in each), [unit * (now - was) for unit, now, was in each]))
    return found


def class_tables(found: Cases) -> list[Table]:
    """What Neurocoder changes in each class of CIFAR-10, and where in CIFAR-100 it gains and loses most."""
    tables = []
    for dataset in TITLES:
        each = {
            network: own
            for (its, network), models in found.items()
            if its == dataset and (own := changes(models.get("neurocoder", ()), models.get("original", ())))
        }
        if each:
            few = len(CLASSES[dataset]) <= 2 * EXTREMES
            tables.append(all_classes(dataset, each) if few else extremes(dataset, each))
    return tables


def by_gain(classes: Changes) -> list[int]:
    """Labels, those with the largest mean change first."""
    return sorted(range(len(classes)), key=lambda c: -fmean(classes[c][1]))


def all_classes(dataset: str, each: Mapping[str, Changes]) -> Table:
    """A row for each class, two columns for each network."""
    rows: list[Row] = []
    for c in by_gain(next(iter(each.values()))):
        row: dict[str, Cell] = {"class": CLASSES[dataset][c]}
        for network, classes in each.items():
            row[f"{NETWORKS[network]}, original, %"] = f"{classes[c][0]:.1f}"
            row[f"{NETWORKS[network]}, change in points"] = PairedDifference(classes[c][1], 1)
        rows.append(row)
    caption = "Largest gain of the first network first; over the seeds that both have."
    return table(f"{TITLES[dataset]}: Neurocoder by class", rows, caption)


def extremes(dataset: str, each: Mapping[str, Changes]) -> Table:
    """For each network the classes with the largest gains and losses."""
    rows: list[Row] = []
    counts = []
    for network, classes in each.items():
        order = by_gain(classes)
        rows += [
            {
                "network": NETWORKS[network],
                "class": CLASSES[dataset][c],
                "original, %": f"{classes[c][0]:.1f}",
                "change in points": PairedDifference(classes[c][1], 1),
            }
            for c in order[:EXTREMES] + order[-EXTREMES:]
        ]
        up, down = (sum(sign * fmean(change) > 0 for _, change in classes) for sign in (1, -1))
        counts.append(f"{NETWORKS[network]}: {up} classes gain, {down} lose")
    return table(
        f"{TITLES[dataset]}: Neurocoder by class, the {EXTREMES} largest gains and losses",
        rows,
        f"{'; '.join(counts)}. The extremes of a hundred noisy numbers are large by chance as well.",
    )


def agreement_table(found: Cases) -> Table:
    """How often a model predicts the same class as the original with the same seed."""
    rows: list[Row] = []
    for (dataset, network), models in found.items():
        base = {record.seed: record.observations["predictions"] for record in models.get("original", [])}
        among = [agreement(*pair) for pair in combinations(base.values(), 2)]
        yardstick = f"{fmean(among):.1f} ({len(among)} pair{'s' * (len(among) > 1)})" if among else None
        for model, runs in models.items():
            same = [agreement(r.observations["predictions"], base[r.seed]) for r in runs if r.seed in base]
            if model != "original" and same:
                rows.append(
                    {
                        "data": TITLES[dataset],
                        "network": NETWORKS[network],
                        "model": MODELS[model].title,
                        "same as the original": Estimate(same, 1),
                        "two originals with different seeds": yardstick,
                    }
                )
    caption = "Models of one seed share starting weights and batches; two originals share neither."
    return table("Same prediction as the original network, percent of the images", rows, caption)


def spread(numbers: Sequence[float], form: str) -> str:
    """Mean, and least to most if there are several."""
    low, high = min(numbers), max(numbers)
    return f"{fmean(numbers):{form}}" + f" ({low:{form}} to {high:{form}})" * (len(numbers) > 1)


def program_table(found: Cases) -> Table:
    """How many programs each layer composes."""
    rows: list[Row] = []
    for (dataset, network), models in found.items():
        for model, runs in models.items():
            for layer in runs[0].observations["programs"]:
                seen = [record.observations["programs"][layer] for record in runs]
                commonest = [programs["largest"][0] for programs in seen]
                rows.append(
                    {
                        "data": TITLES[dataset],
                        "network": NETWORKS[network],
                        "model": MODELS[model].title,
                        "layer": LAYERS[network].get(layer.removeprefix("network."), layer),
                        "images": sum(runs[0].observations["images"]),
                        "distinct programs": spread([programs["distinct"] for programs in seen], ",.0f"),
                        "effective number": spread([programs["effective"] for programs in seen], ",.0f"),
                        "images that share the commonest, %": spread([100 * one["share"] for one in commonest], ".1f"),
                        "of these in one class, %": spread([100 * one["pure"] for one in commonest], ".0f"),
                    }
                )
    return table(
        "Programs that the images use",
        rows,
        "Mean (least to most) over seeds. Two images share a program if the same slots of M_U and of M_V have the "
        "largest attention in every component; their attention still differs in its values. Effective number: the "
        "exponential of the entropy, so that rare programs hardly count. Records name the first images of each of "
        "the commonest programs, and their class.",
    )


def pictures(dataset: str, record: Record) -> NDArray[Any]:
    """The test images (N, 32, 32, 3) in the order in which the run read them."""
    try:
        images, labels = cifar.load(dataset, train=False)
    except (OSError, ValueError) as error:
        raise UndrawableError(str(error)) from None
    predicted, right = torch.from_numpy(unpack(record.observations["predictions"])), record.observations["right"]
    same = len(predicted) == len(labels)
    if not same or labels[predicted == labels].bincount(minlength=len(right)).tolist() != right:
        raise UndrawableError(f"the test images of {TITLES[dataset]} are not in the order in which the runs read them")
    return images.permute(0, 2, 3, 1).numpy()


def shared_plots(found: Cases) -> list[Plot]:
    """A figure for each data set, of the Neurocoder with the first seed."""
    plots = []
    for dataset, title in TITLES.items():
        first = {
            network: models["neurocoder"][0]
            for (its, network), models in found.items()
            if its == dataset and "neurocoder" in models
        }
        runs = {
            network: record
            for network, record in first.items()
            if record.config["source"] == "cifar" and not record.config["validation"]
        }
        if runs:
            caption = (
                f"{title}, Neurocoder, first seed: test images for which the same slots lead in every component of a "
                "layer, one such program in a row, and the percentage of all test images that share it."
            )
            plots.append(Plot(f"{dataset}-shared", caption, partial(draw, dataset, runs)))
    return plots


def draw(dataset: str, runs: Mapping[str, Record]) -> Any:
    """A panel for each layer of each network."""
    panels = {}
    for network, record in runs.items():
        images = pictures(dataset, record)
        for layer, programs in record.observations["programs"].items():
            largest = programs["largest"][:PROGRAMS]
            rows = [(f"{100 * program['share']:.1f}%", images[program["rows"]]) for program in largest]
            panels[f"{NETWORKS[network]}, {LAYERS[network].get(layer, layer)} layer"] = rows
    return shared_programs(panels)
