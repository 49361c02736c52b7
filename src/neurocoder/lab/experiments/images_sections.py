"""Tables and figures of object recognition from its records, next to the paper's Tables 2 and 6."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import combinations, product
from statistics import fmean
from typing import Any

from ..plots.images import learning_curves as draw
from ..results import Record
from ..sections import Cell, Difference, Ours, Plot, Section, Table
from ..statistics import by_seed, differences
from .images_observations import agreement
from .images_variants import MODELS, NETWORKS, parse, variants

PAPERS = {"original": "original", "mixture": "moe", "stored-program": "nsm", "neurocoder": "neurocoder"}
"""The paper's names of our models."""
TITLES = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100"}
CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
"""Of CIFAR-10."""
EXTREMES = 5
"""Of CIFAR-100, classes with the largest gains and losses that are shown."""

Cases = dict[tuple[str, str], dict[str, list[Record]]]
"""By data set and network: the records of each model, by seed."""


def sections(records: Sequence[Record], paper: Mapping[str, Any]) -> list[Section]:
    """From any subset of the records of one preset."""
    if not records:
        return []
    validation = any(record.config["validation"] for record in records)
    measure, shown = ("validation accuracy",) * 2 if validation else ("test accuracy", "train accuracy")
    notes = ["The images are synthetic: these numbers say nothing about CIFAR."]
    found = cases(records)
    curves = {f"{TITLES[dataset]}, {NETWORKS[network]}": of_models(own) for (dataset, network), own in found.items()}
    plot = Plot("curves", f"{shown.capitalize()} after each epoch, mean over seeds.", partial(draw, curves, shown))
    where = [table for table in (class_table(found), agreement_table(found), program_table(found)) if table.rows]
    return [
        Section(
            "Accuracy (Table 2)",
            notes * any(record.config["source"] == "synthetic" for record in records),
            [accuracy_table(found, measure, paper)],
            [plot],
        ),
        Section("Parameters and time (Table 6)", tables=[size_table(found, paper)]),
        *([Section("Where programs help", tables=where)] if where else []),
    ]


def cases(records: Sequence[Record]) -> Cases:
    """In the order of the tables."""
    found: Cases = {}
    for name in variants():
        if own := [record for record in records if record.variant == name]:
            dataset, network, model = parse(name)
            found.setdefault((dataset, network), {})[model] = sorted(own, key=lambda record: record.seed)
    return found


def of_models(models: Mapping[str, Sequence[Record]]) -> dict[str, list[list[dict[str, float]]]]:
    """The histories of each model's runs, by title; without the last entry, which is not of an epoch."""
    return {MODELS[model].title: [record.history[:-1] for record in runs] for model, runs in models.items()}


def values(runs: Sequence[Record], metric: str) -> dict[int, float]:
    """By seed."""
    return by_seed(runs, runs[0].variant, metric) if runs else {}


def accuracy_table(found: Cases, measure: str, paper: Mapping[str, Any]) -> Table:
    """A row for each variant."""
    rows: list[list[Cell]] = []
    for (dataset, network), models in found.items():
        stated = paper.get(network, {}).get(dataset, {})
        base = values(models.get("original", []), "accuracy")
        for model, runs in models.items():
            own, theirs = values(runs, "accuracy"), stated.get(PAPERS.get(model, ""))
            paired = differences(own, base) if model != "original" else []
            gain = f"{theirs - stated['original']:+.2f}" if theirs is not None and model != "original" else None
            cells = [Ours(list(own.values())), f"{max(own.values()):.2f} of {len(own)}", theirs, gain]
            cells.insert(2, Difference(paired) if paired else None)
            rows.append([NETWORKS[network], TITLES[dataset], MODELS[model].title, *cells])
    return Table(
        title=f"{measure.capitalize()} in percent",
        headings=["network", "data", "model", measure, "best", "to the original", "paper (best of 5)", "paper's gain"],
        rows=rows,
        caption=(
            "After the last epoch; nothing is chosen on the test set. Differences are to the original network with the "
            "same seed, starting weights, batches and schedule."
        ),
    )


def size_table(found: Cases, paper: Mapping[str, Any]) -> Table:
    """A row for each network and model; means over the data sets that were run, as in Table 6."""
    sizes: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for network, model in product(NETWORKS, MODELS):
        for runs in (models[model] for (_, its), models in found.items() if its == network and model in models):
            seconds = fmean(values(runs, "epoch_seconds").values())
            sizes.setdefault((network, model), []).append((runs[0].parameters["total"], seconds))
    means = {key: [fmean(column) for column in zip(*each, strict=True)] for key, each in sizes.items()}
    rows: list[list[Cell]] = []
    for (network, model), (total, seconds) in means.items():
        base, theirs = means.get((network, "original")), paper.get("parameters", {}).get(network, {})
        ratios = [f"{own / of:.2f}" if of else None for own, of in zip((total, seconds), base or (0, 0), strict=True)]
        cells: list[Cell] = [round(total), ratios[0], theirs.get(PAPERS.get(model, "")), f"{seconds:.2f}", ratios[1]]
        rows.append([NETWORKS[network], MODELS[model].title, *cells])
    return Table(
        title="Number of parameters, and seconds per epoch",
        headings=["network", "model", "parameters", "ratio", "paper's parameters", "seconds per epoch", "ratio"],
        rows=rows,
        caption=(
            "Means over the data sets that were run; ratios to the original. Mixtures and stored programs replace the "
            "dense layers whose count is nearest to Table 6. Seconds: training alone, median over a run's epochs but "
            "the first; runs that share a machine slow each other."
        ),
    )


def changes(own: Sequence[Record], base: Sequence[Record]) -> list[list[float]]:
    """For each class, and each seed that both have, the change of its accuracy in points."""
    before = {record.seed: record.observations["right"] for record in base}
    pairs = [(record.observations, before[record.seed]) for record in own if record.seed in before]
    classes = range(len(pairs[0][1]) if pairs else 0)
    return [[100 * (seen["right"][c] - right[c]) / max(1, seen["images"][c]) for seen, right in pairs] for c in classes]


def class_table(found: Cases) -> Table:
    """The change of each class of CIFAR-10; of CIFAR-100, where Neurocoder gains and loses most."""
    rows: list[list[Cell]] = []
    for (dataset, network), models in found.items():
        found_changes = changes(models.get("neurocoder", []), models.get("original", []))
        order = sorted(range(len(found_changes)), key=lambda label: -fmean(found_changes[label]))
        if len(order) > 2 * EXTREMES:
            order = order[:EXTREMES] + order[-EXTREMES:]
        for label in order:
            name = CLASSES[label] if dataset == "cifar10" else f"class {label}"
            rows.append([TITLES[dataset], NETWORKS[network], name, Difference(found_changes[label], 1)])
    return Table(
        title="Neurocoder minus original by class, in points",
        headings=["data", "network", "class", "change"],
        rows=rows,
        caption=f"Largest gain first; of more than {2 * EXTREMES} classes, the first and last {EXTREMES}.",
    )


def agreement_table(found: Cases) -> Table:
    """How often a model predicts the same class as the original with the same seed."""
    rows: list[list[Cell]] = []
    for (dataset, network), models in found.items():
        base = {record.seed: record.observations["predictions"] for record in models.get("original", [])}
        among = [agreement(*pair) for pair in combinations(base.values(), 2)]
        for model, runs in models.items():
            same = [agreement(r.observations["predictions"], base[r.seed]) for r in runs if r.seed in base]
            if model == "original" or not same:
                continue
            yardstick = Ours([fmean(among)], 1) if among else None
            rows.append([TITLES[dataset], NETWORKS[network], MODELS[model].title, Ours(same, 1), yardstick])
    return Table(
        title="Same prediction as the original network, percent of the images",
        headings=["data", "network", "model", "same as the original", "two originals with different seeds"],
        rows=rows,
    )


def program_table(found: Cases) -> Table:
    """How many programs each layer composes."""
    rows: list[list[Cell]] = []
    for (dataset, network), models in found.items():
        for model, runs in models.items():
            for layer in runs[0].observations["programs"]:
                seen = [record.observations["programs"][layer] for record in runs]
                first = seen[0]["largest"][0]
                name = CLASSES[first["label"]] if dataset == "cifar10" else f"class {first['label']}"
                rows.append(
                    [
                        *(TITLES[dataset], NETWORKS[network], MODELS[model].title, layer),
                        Ours([one["distinct"] for one in seen], 0),
                        Ours([one["effective"] for one in seen], 1),
                        f"{100 * first['share']:.1f}%: {100 * first['pure']:.0f}% {name}",
                    ]
                )
    return Table(
        title="Programs that the images use",
        headings=["data", "network", "model", "layer", "programs", "effective", "images that share the commonest"],
        rows=rows,
        caption=(
            "Images share a program if the same slots of M_U and M_V have the largest attention in all components. "
            "Effective: the exponential of the entropy. Last column: of the first seed."
        ),
    )
