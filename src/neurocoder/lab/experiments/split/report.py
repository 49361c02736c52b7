"""Tables and figures of continual learning, next to the paper's numbers and those of Hsu et al. (2018)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from statistics import fmean
from typing import Any

import numpy as np

from ...continual import SCENARIOS
from ...records.record import Record
from ...report.sections import Estimate, Plot, Section, Table
from ...report.tables import Row, estimate, paired, table
from . import figures as plots
from .growing import KEPT
from .variants import DATASETS, METHODS, MODELS, Variant, parse

PUBLISHED = {"Hsu's MLP": "hsu", "paper's MLP": "mlp", "paper's NSM": "nsm", "paper's Neurocoder": "neurocoder"}
DETAILS = {
    "just learned": "learned",
    "forgetting": "forgetting",
    "backward transfer": "backward_transfer",
    "forward transfer": "forward_transfer",
}
"""Metrics by heading."""


def sections(records: Sequence[Record], paper: Mapping[str, Any]) -> list[Section]:
    """One for each data set and scenario that was run."""
    found = []
    for dataset in DATASETS:
        for scenario in SCENARIOS:
            own = [record for record in records if parse(record.variant)[:2] == (dataset, scenario)]
            if own:
                stated = paper.get(dataset, {}).get(scenario, {})
                found.append(section(dataset, scenario, own, stated))
    return found


def section(dataset: str, scenario: str, records: Sequence[Record], stated: Mapping[str, Any]) -> Section:
    """Of one data set and scenario."""
    name = f"{dataset}-{scenario}"
    curves: dict[str, dict[str, list[list[float]]]] = {}
    tables: dict[str, Any] = {}
    for variant, runs in by_variant(records).items():
        accuracies = [[entry["average_accuracy"] for entry in run.history] for run in runs]
        curves.setdefault(variant.method, {})[variant.model] = accuracies
        tables[f"{variant.method}\n{variant.model}"] = np.mean([run.observations["matrix"] for run in runs], axis=0)
    drawings = [
        Plot(
            f"{name}-curves",
            "Average accuracy over the tasks so far, after each task: mean and its 95% interval.",
            partial(plots.accuracy_curves, curves),
        ),
        Plot(
            f"{name}-matrix",
            "Accuracy after each task (row) on each task (column), the mean over seeds.",
            partial(plots.matrices, tables),
        ),
    ]
    if used := slots(records):
        caption = "Mean attention over the slots of M_U on each task's test data, after the last task; first seed."
        drawings.append(Plot(f"{name}-slots", caption, partial(plots.slot_use, used)))
    for variant, runs in by_variant(records).items():
        if grows(variant.model):
            title = f"{name}-{variant.method}-{variant.model}"
            drawings.append(slot_map(title, variant, runs))
    return Section(
        title=f"{TITLES[dataset]}, {scenario} scenario",
        text=[TEXTS[scenario]],
        tables=[accuracy_table(records, stated), detail_table(records), *erased_table(records)],
        plots=drawings,
        page=name,
    )


def grows(model: str) -> bool:
    """Whether this model has a growing memory."""
    return model.startswith("growing")


def slot_map(name: str, variant: Variant, runs: Sequence[Record]) -> Plot:
    """Which slots each task wrote and uses, with the keys as images if they are; of the first seed."""
    caption = (
        f"{variant.method}, {variant.model}: each task's mean attention over the slots, in order of writing, after the "
        "last task; lines between the slots that one task wrote and the next. First seed."
    )
    found = runs[0].observations["slot_map"]
    if found["keys"]:
        caption += " Below, for each task: accuracy on it after each task (mean over seeds), and its most visited keys."
    matrix = np.mean([run.observations["matrix"] for run in runs], axis=0)
    return Plot(f"{name}-slots", caption, partial(plots.growing_slots, found, matrix))


TITLES = {
    "mnist": "Split MNIST",
    "permuted": "Permuted MNIST",
    "cifar10": "Split CIFAR-10",
    "cifar100": "Split CIFAR-100",
}
TEXTS = {
    "task": "Each task has a head of its own, and the task of a sample is known.",
    "domain": "All tasks share one head of two outputs; the task of a sample is not known.",
    "class": "One head over the classes of all tasks; the task of a sample is not known. The loss is over the classes "
    "seen so far, the accuracy over all.",
}


def by_variant(records: Sequence[Record]) -> dict[Variant, list[Record]]:
    """In the order of the tables, by seed."""
    found: dict[Variant, list[Record]] = {}
    for record in sorted(records, key=lambda r: r.seed):
        found.setdefault(parse(record.variant), []).append(record)
    return dict(sorted(found.items(), key=lambda item: (METHODS.index(item[0].method), MODELS.index(item[0].model))))


def is_baseline(model: str) -> bool:
    """Whether it has no programs of ours; such columns follow."""
    return model.startswith(("mlp", "stored-program"))


def accuracy_table(records: Sequence[Record], stated: Mapping[str, Any]) -> Table:
    """Final average accuracy by method: ours, baselines, the Neurocoder's difference to the MLP in pairs, published."""
    runs = {(variant.method, variant.model): found for variant, found in by_variant(records).items()}
    models = [model for model in MODELS if any(model == its for _, its in runs)]
    rows: list[Row] = []
    for method in METHODS:
        own = {model: runs.get((method, model), []) for model in models}
        if not any(own.values()):
            continue
        theirs = stated.get(method.replace("-", "_"), {})
        rows.append(
            {
                "method": method,
                **{
                    model: estimate(own[model], "average_accuracy", highest=100)
                    for model in sorted(models, key=is_baseline)
                },
                **{
                    f"1-NN over the keys of {model}": estimate(own[model], "nearest_key", highest=100)
                    for model in models
                    if grows(model)
                },
                **{
                    f"{model} minus {base}": paired(own[model], own[base], "average_accuracy")
                    for model, base in (("neurocoder", "mlp"), ("neurocoder-plain", "mlp"), ("neurocoder", "mlp-wide"))
                    if model in models and base in models
                },
                **{name: theirs[key][0] if key in theirs else None for name, key in PUBLISHED.items()},
            }
        )
    sizes = {model: found[0].parameters["total"] for (_, model), found in runs.items()}
    caption = "Parameters: " + ", ".join(f"{model} {sizes[model]:,}" for model in models) + "."
    return table("Average accuracy over all tasks after the last one, in percent", rows, caption)


def detail_table(records: Sequence[Record]) -> Table:
    """What average accuracy hides: how well each task was learned, and what became of it."""
    rows: list[Row] = [
        {
            "method": variant.method,
            "model": variant.model,
            **{heading: estimate(runs, metric, lowest=-100, highest=100) for heading, metric in DETAILS.items()},
            "coefficient": runs[0].observations["coefficient"],
        }
        for variant, runs in by_variant(records).items()
    ]
    caption = "Just learned: the mean accuracy on each task just after it."
    return table("Learning and forgetting, in points", rows, caption)


def erased_table(records: Sequence[Record]) -> list[Table]:
    """Accuracy against what is left of growing memories, if any were measured."""
    rows: list[Row] = []
    for variant, runs in by_variant(records).items():
        measured = [run for run in runs if "erased" in run.observations]
        for way in ("merged", "dropped") if measured else ():
            left = zip(*(run.observations["erased"][way] for run in measured), strict=True)
            rows.append(
                {
                    "method": variant.method,
                    "model": variant.model,
                    "erased slots are": way,
                    "all slots": estimate(measured, "average_accuracy", highest=100),
                    **{
                        f"{share:.0%}": Estimate([*values], highest=100)
                        for share, values in zip(KEPT, left, strict=True)
                    },
                }
            )
    caption = "The least visited slots are erased after the last task: merged into the nearest that stays, or dropped."
    title = "Average accuracy, in percent, with a share of the slots"
    return [table(title, rows, caption)] if rows else []


def slots(records: Sequence[Record]) -> dict[str, Any]:
    """Slot use of the first program layer of each Neurocoder that was trained without a penalty, by title."""
    found = {}
    for variant, runs in by_variant(records).items():
        if variant.method in ("adam", "adagrad") and (use := runs[0].observations["usage"]):
            layer = next(iter(use))
            found[f"{variant.method}, {variant.model}, {layer}"] = np.array(use[layer])
    return found


def memory_plots(records: Sequence[Record]) -> list[Plot]:
    """Accuracy against the size of growing memories, if records have several sizes."""
    sizes: dict[str, dict[tuple[int, int], dict[str, list[Record]]]] = {}
    for record in records:
        variant = parse(record.variant)
        if grows(variant.model) and record.model:
            rank = next(iter(record.model.values()))["rank"]
            panel = sizes.setdefault(f"{TITLES[variant.dataset]}, {variant.scenario}", {})
            way = f"{variant.method} {record.config}"
            panel.setdefault((rank, record.parameters["total"]), {}).setdefault(way, []).append(record)
    panels: dict[str, Any] = {
        title: [
            (*size, *max((mean(runs, "average_accuracy"), mean(runs, "nearest_key")) for runs in found.values()))
            for size, found in sorted(panel.items())
        ]
        for title, panel in sizes.items()
        if len(panel) > 2
    }
    caption = (
        "Average accuracy of growing layers against their size, keys included, by rank; for each size the best "
        "settings, the mean over seeds. Crosses: the label of the nearest key instead."
    )
    return [Plot("memory", caption, partial(plots.memory_sizes, panels))] if panels else []


def mean(runs: Sequence[Record], metric: str) -> float:
    """Of a metric."""
    return fmean(run.metrics[metric] for run in runs)
