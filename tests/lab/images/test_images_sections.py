"""The tables and figures of object recognition from hand-made records."""

from dataclasses import asdict

import pytest

from neurocoder.lab.experiments.images import Images, ImagesConfig
from neurocoder.lab.experiments.images_variants import variants
from neurocoder.lab.report import paper_numbers
from neurocoder.lab.results import Record
from neurocoder.lab.sections import Difference, Ours

PAPER = paper_numbers()["images"]
PARAMETERS = {"original": 100, "neurocoder": 120, "mixture": 900}
ACCURACY = {"original": 50.0, "neurocoder": 52.0, "mixture": 49.0}
SECONDS = {"original": 2.0, "neurocoder": 2.5, "mixture": 8.0}


def record(variant, seed=0, accuracy=None, parameters=None, right=None, predictions="0001", **settings):
    dataset, _, model = variant.split("-", 2)
    config = asdict(ImagesConfig(**settings))
    accuracy = ACCURACY.get(model, 51.0) + seed if accuracy is None else accuracy
    metrics = {"accuracy": accuracy, "train_accuracy": 60.0, "epoch_seconds": SECONDS.get(model, 3.0)}
    epoch = {"train_accuracy": 40.0, "validation_accuracy": 45.0, "loss": 1.0}
    classes = 100 if dataset == "cifar100" else 10
    programs = {
        "5": {"distinct": 30, "effective": 4.5, "largest": [{"share": 0.5, "label": 3, "pure": 0.25, "rows": [0]}]}
    }
    return Record(
        experiment="images",
        preset="best",
        variant=variant,
        seed=seed,
        config=config,
        model={},
        loop="plain",
        device="cpu",
        precision="32-true",
        processes=1,
        parameters={"total": PARAMETERS.get(model, 130) if parameters is None else parameters},
        metrics=metrics,
        history=[{"step": 1, **epoch}, {"step": 2, **epoch}, {"step": 2, **metrics}],
        observations={
            "predictions": predictions,
            "right": right or [50] * classes,
            "images": [100] * classes,
            "programs": programs if model.startswith("neurocoder") else {},
        },
        seconds=1.0,
    )


def sections(records, paper=PAPER):
    return Images().sections(records, paper)


def table(records, title):
    (found,) = [entry for section in sections(records) for entry in section.tables if entry.title.startswith(title)]
    return found


def test_no_records_no_sections():
    assert sections([]) == []


@pytest.mark.parametrize("variant", variants()[::4])
def test_any_record_gives_sections_and_figures(variant):
    found = sections([record(variant, 2)], {})
    assert found[0].tables[0].rows[0][5] is None  # no original to compare with
    for section in found:
        assert section.tables
        for plot in section.plots:
            plot.draw().draw_without_rendering()


def test_table_2_has_mean_best_paired_difference_and_the_papers_numbers():
    runs = [
        record(f"cifar10-mlp-{model}", seed) for model in ("neurocoder", "original", "mixture") for seed in (2, 0, 1)
    ]
    runs.append(record("cifar10-mlp-neurocoder", 7, 99.0))  # no original with that seed
    original, mixture, neurocoder = table(runs, "Test accuracy").rows
    assert original[:3] == ["MLP", "CIFAR-10", "original"]
    assert original[3].values == [50, 51, 52]
    assert original[4:] == ["52.00 of 3", None, 52.06, None]
    assert mixture[5].values == [-1, -1, -1]
    assert isinstance(neurocoder[5], Difference)
    assert neurocoder[5].values == [2, 2, 2]
    assert neurocoder[4] == "99.00 of 4"
    assert neurocoder[6:] == [54.86, "+2.80"]


def test_validation_and_synthetic_images_are_named():
    runs = [record("cifar10-mlp-original", validation=True)]
    assert table(runs, "Validation accuracy").headings[3] == "validation accuracy"
    assert sections(runs)[0].text == []
    assert "Validation accuracy after each epoch" in sections(runs)[0].plots[0].caption
    assert "synthetic" in sections([record("cifar10-mlp-original", source="synthetic")])[0].text[0]


def test_table_6_averages_over_data_sets():
    runs = [
        *(record("cifar10-lenet-original"), record("cifar100-lenet-original", parameters=200)),
        *(record("cifar10-lenet-neurocoder"), record("cifar100-lenet-neurocoder", parameters=240)),
    ]
    assert table(runs, "Number of parameters").rows == [
        ["LeNet", "original", 150, "1.00", 2_100_000, "2.00", "1.00"],
        ["LeNet", "Neurocoder", 180, "1.20", 2_300_000, "2.50", "1.25"],
    ]


def test_changes_by_class_come_largest_first():
    gains = [50, 60, 50, 50, 45, 50, 50, 50, 50, 50]
    runs = [record("cifar10-mlp-original", seed) for seed in (0, 1)]
    runs += [record("cifar10-mlp-neurocoder", seed, right=[count + seed for count in gains]) for seed in (0, 1, 2)]
    rows = table(runs, "Neurocoder minus original by class").rows
    assert len(rows) == 10
    assert rows[0][:3] == ["CIFAR-10", "MLP", "automobile"]
    assert rows[0][3].values == [10, 11]
    assert rows[-1][2:] == ["deer", Difference([-5.0, -4.0], 1)]


def test_of_a_hundred_classes_the_extremes_are_shown():
    runs = [record("cifar100-mlp-original"), record("cifar100-mlp-neurocoder", right=list(range(100)))]
    names = [row[2] for row in table(runs, "Neurocoder minus original by class").rows]
    assert names == [f"class {label}" for label in (99, 98, 97, 96, 95, 4, 3, 2, 1, 0)]


def test_agreement_with_the_original_of_the_same_seed():
    runs = [record("cifar10-mlp-original", 0, predictions="01020304")]
    runs += [record("cifar10-mlp-original", 1, predictions="01020909")]
    runs += [record("cifar10-mlp-neurocoder", seed, predictions="01020308") for seed in (0, 1, 2)]
    (row,) = table(runs, "Same prediction").rows
    assert row[2:] == ["Neurocoder", Ours([75.0, 50.0], 1), Ours([50.0], 1)]


def test_programs_by_layer():
    runs = [record("cifar10-mlp-neurocoder", seed) for seed in (0, 1)]
    (row,) = table(runs, "Programs that the images use").rows
    assert row[3:] == ["5", Ours([30, 30], 0), Ours([4.5, 4.5], 1), "50.0%: 25% cat"]


def test_curves_are_of_the_epochs_of_all_seeds():
    runs = [record("cifar10-mlp-original", seed) for seed in (0, 1)] + [record("cifar100-lenet-neurocoder")]
    axes = sections(runs)[0].plots[0].draw().axes
    assert [axis.get_title() for axis in axes] == ["CIFAR-10, MLP", "CIFAR-100, LeNet"]
    line = axes[0].lines[0]
    assert line.get_xdata().tolist() == [1, 2]
    assert line.get_ydata().tolist() == [40, 40]
