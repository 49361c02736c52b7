"""Tables and figures of object recognition from its records, next to the paper's Tables 2 and 6."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import product
from statistics import fmean
from typing import Any

from ...records.record import Record
from ...report.compare import AS_THE_PRESET, Effective, Rows, factor_out_shared, label, panel
from ...report.sections import Estimate, PairedDifference, Plot, Section, Table
from ...report.statistics import metric_by_seed
from ...report.tables import Row, estimate, paired, table
from . import figures
from .data import TITLES
from .models import MODELS, NETWORKS, parse, variants
from .report_programs import Cases, agreement_table, class_tables, program_table, shared_plots

PAPERS = {"original": "original", "mixture": "moe", "stored-program": "nsm", "neurocoder": "neurocoder"}
"""The paper's names of our models."""
COMPARED_MODELS = (*PAPERS, "original-wide")
"""The models that are compared; all others are directions of the search."""
KINDS = {
    "none": "images as they are",
    "flip": "images mirrored at random",
    "reflect": "images cropped, reflected at the border, and mirrored at random",
    "crop": "images cropped, with black borders, and mirrored at random",
}
RATES = {"cosine": "cosine decay", "none": "no decay"}

Models = Mapping[str, Sequence[Record]]


def sections(records: Sequence[Record], paper: Mapping[str, Any]) -> list[Section]:
    """From any subset of the records of one preset."""
    if not records:
        return []
    found = cases(records)
    main = {
        case: own for case, models in found.items() if (own := {m: models[m] for m in models if m in COMPARED_MODELS})
    }
    searched = {case: models for case, models in found.items() if set(models) - set(COMPARED_MODELS)}
    validation = records[0].config["validation"]
    text = [*notes(records), *protocol(found), *([] if validation else missing(found))]
    parts = []
    if main:
        tables = [accuracy_table(main, "validation accuracy" if validation else "test accuracy", paper)]
        parts.append(Section("Accuracy (Table 2)", text, tables, [curves_plot(panels(main, validation), validation)]))
        text = []
    if searched:
        plots = [plot for plot in (differences_plot(gains(searched)),) if plot]
        parts.append(Section("Search directions", text, [search_table(searched)], plots))
    parts.append(Section("Parameters and time (Table 6)", tables=[size_table(found, paper)]))
    where = [table for table in (*class_tables(found), agreement_table(found), program_table(found)) if table.rows]
    return [*parts, *([Section("Where programs help", tables=where, plots=shared_plots(found))] if where else [])]


def compared(rows: Rows, effective: Effective) -> list[Plot]:
    """Curves and differences of several configurations; settings are named where a network has more than one."""
    records = [record for _, runs in rows for record in runs]
    by_settings = [(settings, cases(runs)) for settings, runs in factor_out_shared(rows)[1]]
    held_out = {record.config["validation"] for record in records}
    validation = held_out == {True}
    curves: dict[str, dict[str, figures.Curve]] = {}
    gained: dict[str, dict[str, Sequence[float]]] = {}
    for case in cases(records):
        rows_of_case = [(settings, {case: models[case]}) for settings, models in by_settings if case in models]
        name = "-".join((*case, "original"))
        with_original = [
            (settings, {case: models[case] | _original(rows_of_case, effective(settings, name), case)})
            for settings, models in rows_of_case
        ]
        for settings, networks in with_original:
            differing = {name.removesuffix(f"_{case[1]}"): value for name, value in settings.items()}
            named = (label(differing) or AS_THE_PRESET) if len(with_original) > 1 else ""
            curves |= {panel(name, named): models for name, models in panels(networks, validation).items()}
            for name, models in gains(networks).items():
                lines = {f"{model}, {named}" if named else model: values for model, values in models.items()}
                gained.setdefault(name, {}).update(lines)
    drawn = [curves_plot(curves, validation, len(held_out) > 1)] if curves else []  # unknown variants have no panel
    return [*drawn, *filter(None, [differences_plot(gained)])]


def _original(
    rows: Sequence[tuple[Mapping[str, Any], Cases]], settings: Mapping[str, Any], case: tuple[str, str]
) -> dict[str, list[Record]]:
    """The original that a row is compared with, which is in the row with those of its settings that affect it."""
    models = next((networks[case] for row, networks in rows if row == settings), {})
    return {"original": models["original"]} if "original" in models else {}


def cases(records: Sequence[Record]) -> Cases:
    """In the order of the tables."""
    found: Cases = {}
    for name in variants():
        if own := [record for record in records if record.variant == name]:
            dataset, network, model = parse(name)
            found.setdefault((dataset, network), {})[model] = sorted(own, key=lambda record: record.seed)
    return found


def title(case: tuple[str, str]) -> str:
    """Data set and network in words."""
    return f"{TITLES[case[0]]}, {NETWORKS[case[1]]}"


def direction(model: str) -> str:
    """What the search changes, in words."""
    if model in COMPARED_MODELS:
        return "Neurocoder as in the paper" if model == "neurocoder" else MODELS[model].title
    return MODELS[model].title.removeprefix("Neurocoder, ")


def to(models: Models, model: str, base: str = "original") -> PairedDifference | None:
    """A model's accuracy minus another's, for each seed that both have."""
    return paired(models[model], models.get(base, ()), "accuracy") if model != base else None


def gains(found: Mapping[tuple[str, str], Models]) -> dict[str, dict[str, Sequence[float]]]:
    """By data set and network: each model's differences to the original."""
    each = {
        title(case): {direction(model): gain.values for model in models if (gain := to(models, model))}
        for case, models in found.items()
    }
    return {name: own for name, own in each.items() if own}


def panels(found: Mapping[tuple[str, str], Models], validation: bool) -> dict[str, dict[str, figures.Curve]]:
    """By data set and network: each model's curve, over the seeds that all of them have, or else over its own."""
    shown: dict[str, dict[str, figures.Curve]] = {}
    for case, models in found.items():
        shared = set.intersection(*({record.seed for record in runs} for runs in models.values()))
        shown[title(case)] = {
            MODELS[model].title: curve([r for r in runs if not shared or r.seed in shared], validation)
            for model, runs in models.items()
        }
    return shown


def curve(runs: Sequence[Record], validation: bool) -> figures.Curve:
    """Of the epochs of a model's runs; the last entry of a history is not of an epoch."""
    metric = "validation_accuracy" if validation else "train_accuracy"
    seeds = [[entry[metric] for entry in record.history[:-1]] for record in runs]
    return figures.Curve(seeds, None if validation else fmean(record.metrics["accuracy"] for record in runs))


def curves_plot(shown: Mapping[str, Mapping[str, figures.Curve]], validation: bool, mixed: bool = False) -> Plot:
    """Learning curves; `mixed` if only some runs are validation runs."""
    measure = "validation accuracy" if validation else "train accuracy"
    caption = (
        f"{measure.capitalize()} after each epoch: mean over the seeds that all models of a panel have, and each of "
        "these seeds as a thin line."
    )
    if not validation:
        caption += " Diamonds: test accuracy; the test set is read once, after the last epoch."
    if mixed:
        caption += " Diamonds of validation runs: accuracy on the held-out images."
    return Plot("curves", caption, partial(figures.learning_curves, shown, measure))


def differences_plot(found: Mapping[str, Mapping[str, Sequence[float]]]) -> Plot | None:
    """Differences to the original, if there are any."""
    caption = (
        "Accuracy minus that of the original network with the same seed: circles are seeds, diamonds their mean, lines "
        f"the 95% interval from three seeds on. Means more than {figures.FAR:g} points below are given as numbers."
    )
    return Plot("differences", caption, partial(figures.differences, found)) if found else None


def notes(records: Sequence[Record]) -> list[str]:
    """What the reader must know first."""
    synthetic = any(record.config["source"] == "synthetic" for record in records)
    return ["The images are synthetic: these numbers say nothing about CIFAR."] * synthetic


def protocol(found: Cases) -> list[str]:
    """How the runs were trained, in words."""
    configs = {network: next(iter(models.values()))[0].config for (_, network), models in found.items()}
    config = next(iter(configs.values()))
    ways: dict[str, list[str]] = {}
    for network, own in configs.items():
        kind, rate = KINDS[own[f"augmentation_{network}"]], RATES[own[f"decay_{network}"]]
        ways.setdefault(f"{own[f'epochs_{network}']} epochs of {kind}, {rate}", []).append(NETWORKS[network])
    text = f"Adam at {config['learning_rate']:g}, batches of {config['batch']}. "
    text += " ".join(f"{words(names)}: {way}." for way, names in ways.items())
    if config["train_images"] is not None:
        text += f" Only {config['train_images']:,} training images."
    if config["validation"]:
        text += " One training image in ten is held out, and accuracy is measured on these; the test set is not read."
    return [text]


def missing(found: Cases) -> list[str]:
    """Which cells of Table 2 these records do not fill."""
    lacking = {case: tuple(m for m in PAPERS if m not in found.get(case, {})) for case in product(TITLES, NETWORKS)}
    parts = []
    for dataset in TITLES:
        none = [network for network in NETWORKS if len(lacking[dataset, network]) == len(PAPERS)]
        if len(none) == len(NETWORKS):
            parts.append(TITLES[dataset])
        elif none:
            parts.append(f"{words(NETWORKS[network] for network in none)} on {TITLES[dataset]}")
    some: dict[tuple[str, ...], list[str]] = {}
    for case, models in lacking.items():
        if 0 < len(models) < len(PAPERS):
            some.setdefault(models, []).append(title(case))
    for models, names in some.items():
        parts.append(f"{words(MODELS[model].title for model in models)} ({'; '.join(names)})")
    return [f"Cells of Table 2 that were not run: {'; '.join(parts)}."] if parts else []


def words(names: Iterable[str]) -> str:
    """A list in words."""
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last


def accuracy_table(found: Cases, measure: str, paper: Mapping[str, Any]) -> Table:
    """A row for each data set, network and model."""
    rows: list[Row] = []
    uneven = False
    for case, models in found.items():
        stated = paper.get(case[1], {}).get(case[0], {})
        for model, runs in models.items():
            accuracies, theirs, gain = (
                metric_by_seed(runs, "accuracy"),
                stated.get(PAPERS.get(model, "")),
                to(models, model),
            )
            uneven |= gain is not None and accuracies.keys() != metric_by_seed(models["original"], "accuracy").keys()
            rows.append(
                {
                    "data": TITLES[case[0]],
                    "network": NETWORKS[case[1]],
                    "model": MODELS[model].title,
                    measure: Estimate([*accuracies.values()]),
                    "best run": f"{max(accuracies.values()):.2f} of {len(accuracies)}",
                    "to the original": gain,
                    "paper": theirs,
                    "paper's gain": f"{theirs - stated['original']:+.2f}" if theirs and model != "original" else None,
                }
            )
    caption = (
        "After the last epoch; nothing is chosen on the test set. Differences are to the original network with the "
        "same seed, starting weights, batches and schedule. The paper gives the best of five runs on the test set, and "
        "its gain is the difference of two such bests."
    )
    if uneven:
        caption += (
            " Some models have other seeds than the original: their difference is over the seeds that both have, so it "
            "is not the difference of the two means."
        )
    return table(f"{measure.capitalize()} in percent", rows, caption)


def search_table(found: Cases) -> Table:
    """A row for each direction, beside the original and Neurocoder as in the paper."""
    rows: list[Row] = []
    for case, models in found.items():
        base = models["original"][0].parameters["total"] if "original" in models else None
        for model, runs in models.items():
            if model in COMPARED_MODELS and model not in ("original", "neurocoder"):
                continue
            rows.append(
                {
                    "data": TITLES[case[0]],
                    "network": NETWORKS[case[1]],
                    "direction": direction(model),
                    "times the original's parameters": f"{runs[0].parameters['total'] / base:.2f}" if base else None,
                    "accuracy, %": estimate(runs, "accuracy"),
                    "to the original": to(models, model),
                    "to Neurocoder as in the paper": to(models, model, "neurocoder") if model != "original" else None,
                }
            )
    return table(
        "Where conditional programs might pay more",
        rows,
        "As in the paper: P=30 J=5 H=3 K=5, LSTM 8, gated residual, a=0.1, on all layers of the MLP and the output "
        "layer of the others. Each other row changes what it names.",
    )


def size_table(found: Cases, paper: Mapping[str, Any]) -> Table:
    """A row for each network and model; means over the data sets that were run, as in Table 6."""
    rows: list[Row] = []
    for network, model in product(NETWORKS, MODELS):
        sets = [models for (_, its), models in found.items() if its == network and model in models]
        if not sets:
            continue
        bases = [models["original"][0].parameters["total"] for models in sets if "original" in models]
        runs = [record for models in sets for record in models[model]]
        total = fmean(models[model][0].parameters["total"] for models in sets)
        rows.append(
            {
                "network": NETWORKS[network],
                "model": MODELS[model].title,
                "parameters": round(total),
                "times the original's": f"{total / fmean(bases):.2f}" if len(bases) == len(sets) else None,
                "paper's parameters": paper.get("parameters", {}).get(network, {}).get(PAPERS.get(model, "")),
                "seconds per epoch": f"{fmean(record.metrics['epoch_seconds'] for record in runs):.2f}",
                "fastest epoch": f"{min(entry['epoch_seconds'] for run in runs for entry in run.history):.2f}",
            }
        )
    return table(
        "Number of parameters, and seconds per epoch",
        rows,
        "Means over the data sets that were run. Mixtures and stored programs replace the dense layers whose count "
        "is nearest to Table 6. Seconds of training alone: the median over a run's epochs but the first, mean over "
        "runs. Runs that share a GPU slow each other, so these times compare models only if each ran alone.",
    )
