"""The tables and figures of object recognition from hand-made records."""

from dataclasses import asdict, replace

import pytest
import torch

from neurocoder.lab.data import cifar
from neurocoder.lab.experiments.images.data import CLASSES
from neurocoder.lab.experiments.images.experiment import Images, ImagesConfig
from neurocoder.lab.experiments.images.figures import COLOURS, OURS, columns_for
from neurocoder.lab.experiments.images.models import DATASETS, MODELS, variants
from neurocoder.lab.records.record import Record
from neurocoder.lab.report.build import paper_numbers
from neurocoder.lab.report.compare import configurations
from neurocoder.lab.report.sections import Estimate, PairedDifference, UndrawableError

PAPER = paper_numbers()["images"]
PARAMETERS = {"original": 100, "neurocoder": 120, "mixture": 900}
ACCURACY = {"original": 50.0, "neurocoder": 52.0, "mixture": 49.0}
SECONDS = {"original": 2.0, "neurocoder": 2.5, "mixture": 8.0}


def record(variant, seed=0, accuracy=None, parameters=None, right=None, predictions="0001", **settings):
    dataset, _, model = variant.split("-", 2)
    config = asdict(ImagesConfig(**settings))
    accuracy = ACCURACY.get(model, 51.0) + seed if accuracy is None else accuracy
    metrics = {"accuracy": accuracy, "train_accuracy": 60.0, "epoch_seconds": SECONDS.get(model, 3.0)}
    epoch = {"train_accuracy": 40.0 + seed, "validation_accuracy": 45.0 + seed, "loss": 1.0, "epoch_seconds": 1.5}
    classes = 100 if dataset == "cifar100" else 10
    programs = {
        "5": {
            "distinct": 30 + 10 * seed,
            "effective": 4.6,
            "largest": [{"share": 0.5 + 0.1 * seed, "label": 3, "pure": 0.25 + 0.1 * seed, "rows": [0]}],
        }
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


@pytest.mark.parametrize("variant", variants()[::3])
def test_any_record_gives_sections_and_figures(variant):
    found = sections([record(variant, 2, source="synthetic")], {})
    assert found[0].tables[0].rows[0][5] is None  # no original to compare with
    assert any("Adam at 0.001" in text for text in found[0].text)
    for section in found:
        assert section.tables
        for plot in section.plots:
            plot.draw().draw_without_rendering()


def test_table_2_has_mean_best_paired_difference_and_the_papers_numbers():
    runs = [
        record(f"cifar10-mlp-{model}", seed) for model in ("neurocoder", "original", "mixture") for seed in (2, 0, 1)
    ]
    assert "other seeds" not in table(runs, "Test accuracy").caption
    runs.append(record("cifar10-mlp-neurocoder", 7, 99.0))  # no original with that seed
    found = table(runs, "Test accuracy")
    original, mixture, neurocoder = found.rows
    assert original[:3] == ["CIFAR-10", "MLP", "original"]
    assert original[3].values == [50, 51, 52]
    assert original[4:] == ["52.00 of 3", None, 52.06, None]
    assert mixture[5].values == [-1, -1, -1]
    assert isinstance(neurocoder[5], PairedDifference)
    assert neurocoder[5].values == [2, 2, 2]
    assert neurocoder[4] == "99.00 of 4"
    assert neurocoder[6:] == [54.86, "+2.80"]
    assert "Some models have other seeds than the original" in found.caption  # 63.75 - 51 is not +2


def test_directions_of_the_search_have_a_table_of_their_own():
    models = {"original": 50.0, "original-wide": 50.5, "neurocoder": 52.0, "neurocoder-sharp": 53.0}
    runs = [record(f"cifar10-mlp-{m}", seed, base + seed) for m, base in models.items() for seed in (0, 1)]
    assert [row[2] for row in table(runs, "Test accuracy").rows] == ["original", "original, wider", "Neurocoder"]
    rows = table(runs, "Where conditional programs might pay more").rows
    assert [row[2] for row in rows] == ["original", "Neurocoder as in the paper", "sharpness 10"]
    assert rows[0][3:] == ["1.00", Estimate([50.0, 51.0]), None, None]
    assert rows[2][3:] == ["1.30", Estimate([53.0, 54.0]), PairedDifference([3.0, 3.0]), PairedDifference([1.0, 1.0])]
    assert [section.title for section in sections(runs)][1] == "Search directions"
    (plot,) = sections(runs)[1].plots
    (axis,) = plot.draw().axes
    assert [label.get_text() for label in axis.get_yticklabels()] == [
        *("original, wider", "Neurocoder as in the paper", "sharpness 10"),
    ]


def test_without_an_original_the_search_has_no_differences():
    runs = [record("cifar10-mlp-neurocoder"), record("cifar10-mlp-neurocoder-sharp", 1)]
    found = sections(runs)[1]
    assert found.plots == []
    assert [row[3:4] + row[5:] for row in found.tables[0].rows] == [[None] * 3] * 2


def test_a_difference_far_below_is_a_number_at_the_edge():
    models = {"original": 50.0, "neurocoder": 52.0, "neurocoder-fast": 41.1}
    runs = [record(f"cifar10-mlp-{model}", seed, base) for model, base in models.items() for seed in (0, 1)]
    (axis,) = sections(runs)[1].plots[0].draw().axes
    assert [text.get_text() for text in axis.texts] == ["◂ -8.9"]
    assert -1 < axis.get_xlim()[0] < 0 < 2 < axis.get_xlim()[1] < 3


def test_panels_of_differences_have_one_scale():
    gains = {"mlp": (0.1, 0.2, 0.4), "lenet": (3.0, 3.1, 2.9)}
    runs = [record(f"cifar10-{network}-original", seed, 50.0) for network in gains for seed in range(3)]
    runs += [
        record(f"cifar10-{network}-neurocoder-middle", seed, 50 + gain)
        for network, own in gains.items()
        for seed, gain in enumerate(own)
    ]
    first, second = sections(runs)[1].plots[0].draw().axes
    assert first.get_xlim() == second.get_xlim()
    assert first.get_xlim()[1] > second.lines[0].get_xdata()[1] > 3.1  # the interval of three seeds


def test_the_protocol_is_in_words():
    config = {"epochs_mlp": 10, "augmentation_mlp": "none", "decay_mlp": "none", "epochs_lenet": 11}
    runs = [record(f"cifar10-{network}-original", **config) for network in ("mlp", "lenet")]
    assert sections(runs)[0].text[0] == (
        "Adam at 0.001, batches of 128. MLP: 10 epochs of images as they are, no decay. LeNet: 11 epochs of images "
        "cropped, reflected at the border, and mirrored at random, cosine decay."
    )
    assert (
        "MLP and LeNet: 30 epochs"
        in sections([replace(run, config=asdict(ImagesConfig(epochs_mlp=30))) for run in runs])[0].text[0]
    )
    assert "Only 1,000 training images." in sections([record("cifar10-mlp-original", train_images=1000)])[0].text[0]


def test_what_was_not_run_is_said():
    runs = [record(f"cifar10-{network}-{m}") for network in ("mlp", "lenet") for m in ("original", "neurocoder")]
    assert sections(runs)[0].text[1] == (
        "Cells of Table 2 that were not run: DenseNet on CIFAR-10; CIFAR-100; mixture of experts and stored programs "
        "(CIFAR-10, MLP; CIFAR-10, LeNet)."
    )
    full = [
        name for name in variants() if name.split("-", 2)[2] in ("original", "mixture", "stored-program", "neurocoder")
    ]
    assert len(sections([record(name) for name in full])[0].text) == 1


def test_validation_and_synthetic_images_are_named():
    runs = [record("cifar10-mlp-original", validation=True)]
    assert table(runs, "Validation accuracy").headings[3] == "validation accuracy"
    (text,) = sections(runs)[0].text
    assert "One training image in ten is held out" in text
    plot = sections(runs)[0].plots[0]
    assert "Validation accuracy after each epoch" in plot.caption
    assert "Diamonds" not in plot.caption
    assert plot.draw().axes[0].lines[0].get_ydata().tolist() == [45, 45]
    assert "synthetic" in sections([record("cifar10-mlp-original", source="synthetic")])[0].text[0]


def test_table_6_averages_over_data_sets():
    runs = [
        *(record("cifar10-lenet-original"), record("cifar100-lenet-original", parameters=200)),
        *(record("cifar10-lenet-neurocoder"), record("cifar100-lenet-neurocoder", parameters=240)),
    ]
    found = table(runs, "Number of parameters")
    assert found.rows == [
        ["LeNet", "original", 150, "1.00", 2_100_000, "2.00", "1.50"],
        ["LeNet", "Neurocoder", 180, "1.20", 2_300_000, "2.50", "1.50"],
    ]
    assert len(set(found.headings)) == len(found.headings)
    partial = table([runs[0], *runs[2:]], "Number of parameters").rows
    assert [row[3] for row in partial] == ["1.00", None]  # not the ratio of two data sets to one


def test_changes_by_class_come_largest_first_with_a_column_for_each_network():
    gains = [50, 60, 50, 50, 45, 50, 50, 50, 50, 50]
    runs = [record("cifar10-mlp-original", seed) for seed in (0, 1)]
    runs += [record("cifar10-mlp-neurocoder", seed, right=[count + seed for count in gains]) for seed in (0, 1, 2)]
    runs += [record("cifar10-lenet-original", right=[80] * 10), record("cifar10-lenet-neurocoder", right=[79] * 10)]
    found = table(runs, "CIFAR-10: Neurocoder by class")
    assert len(found.rows) == 10
    assert found.headings[1:] == [
        *("MLP, original, %", "MLP, change in points", "LeNet, original, %", "LeNet, change in points"),
    ]
    lenet = ["80.0", PairedDifference([-1.0], 1)]
    assert found.rows[0] == ["automobile", "50.0", PairedDifference([10.0, 11.0], 1), *lenet]
    assert found.rows[-1] == ["deer", "50.0", PairedDifference([-5.0, -4.0], 1), *lenet]


def test_of_a_hundred_classes_the_extremes_are_shown_by_name():
    runs = [record("cifar100-mlp-original"), record("cifar100-mlp-neurocoder", right=list(range(100)))]
    found = table(runs, "CIFAR-100: Neurocoder by class")
    assert [row[1] for row in found.rows] == [
        *("worm", "woman", "wolf", "willow-tree", "whale", "beaver", "bear", "baby", "aquarium-fish", "apple"),
    ]
    assert found.rows[0][2:] == ["50.0", PairedDifference([49.0], 1)]
    assert "MLP: 49 classes gain, 50 lose" in found.caption


def test_classes_are_in_the_order_of_the_labels():
    assert {name: len(set(names)) for name, names in CLASSES.items()} == DATASETS
    assert list(CLASSES["cifar100"]) == sorted(CLASSES["cifar100"])


def test_agreement_with_the_original_of_the_same_seed():
    runs = [record("cifar10-mlp-original", 0, predictions="01020304")]
    runs += [record("cifar10-mlp-original", 1, predictions="01020909")]
    runs += [record("cifar10-mlp-neurocoder", seed, predictions="01020308") for seed in (0, 1, 2)]
    (row,) = table(runs, "Same prediction").rows
    assert row[2:] == ["Neurocoder", Estimate([75.0, 50.0], 1), "50.0 (1 pair)"]
    runs += [record("cifar10-mlp-original", 2, predictions="01020304")]
    assert table(runs, "Same prediction").rows[0][4] == "66.7 (3 pairs)"


def test_programs_by_layer():
    runs = [record("cifar10-mlp-neurocoder", seed) for seed in (0, 1)]
    (row,) = table(runs, "Programs that the images use").rows
    assert row[3:] == ["output", 1000, "35 (30 to 40)", "5 (5 to 5)", "55.0 (50.0 to 60.0)", "30 (25 to 35)"]
    (row,) = table(runs[:1], "Programs that the images use").rows
    assert row[5:] == ["30", "5", "50.0", "25"]


def test_curves_are_of_the_epochs_of_the_seeds_that_all_models_have():
    runs = [record("cifar10-mlp-original", seed) for seed in (0, 1, 2)]
    runs += [record("cifar10-mlp-neurocoder", seed) for seed in (1, 2)] + [record("cifar100-lenet-neurocoder")]
    axes = sections(runs)[0].plots[0].draw().axes
    assert [axis.get_title() for axis in axes] == ["CIFAR-10, MLP", "CIFAR-100, LeNet"]
    mean = axes[0].lines[2]  # after two seeds
    assert mean.get_xdata().tolist() == [1, 2]
    assert mean.get_ydata().tolist() == [41.5, 41.5]
    assert axes[0].lines[3].get_ydata().tolist() == [51.5]  # test accuracy of the same seeds
    low, high = axes[0].get_ylim()
    assert low < 41
    assert high > 54


def test_colours_tell_neurocoders_from_the_others():
    runs = [record(f"cifar10-mlp-{model}") for model in MODELS if f"cifar10-mlp-{model}" in variants()]
    assert {MODELS[name].title for name in MODELS if not name.startswith("neurocoder")} == set(COLOURS)
    assert not set(COLOURS.values()) & set(OURS)
    (axis, *_) = sections(runs)[0].plots[0].draw().axes
    assert {line.get_color() for line in axis.lines} == {*COLOURS.values(), OURS[0]}


def test_four_panels_are_two_rows_of_two():
    assert [columns_for(count) for count in range(1, 8)] == [1, 2, 3, 2, 3, 3, 3]


def compared(runs):
    """The figures of several configurations."""
    return Images().compared(configurations(runs, asdict(ImagesConfig()), Images().effective))


def test_configurations_are_compared_by_their_settings():
    runs = [record(f"cifar10-mlp-{m}", validation=True, epochs_mlp=8) for m in ("original", "neurocoder")]
    runs += [record("cifar10-mlp-original", validation=True), record("cifar10-lenet-original", validation=True)]
    curves, gains = compared(runs)
    assert [axis.get_title() for axis in curves.draw().axes] == [
        *("CIFAR-10, MLP\nas the preset", "CIFAR-10, MLP\nepochs 8", "CIFAR-10, LeNet"),
    ]
    assert "Validation" in curves.caption
    (axis,) = gains.draw().axes
    assert axis.get_title() == "CIFAR-10, MLP"
    assert [label.get_text() for label in axis.get_yticklabels()] == ["Neurocoder as in the paper, epochs 8"]
    runs += [record(f"cifar10-{name}", validation=True) for name in ("mlp-original-wide", "lenet-neurocoder")]
    mlp, lenet = compared(runs)[1].draw().axes
    assert [label.get_text() for label in mlp.get_yticklabels()] == [
        *("original, wider, as the preset", "Neurocoder as in the paper, epochs 8"),
    ]
    assert mlp.lines[0].get_color() == COLOURS["original, wider"]
    assert [label.get_text() for label in lenet.get_yticklabels()] == ["Neurocoder as in the paper"]
    assert mlp.get_position().height == pytest.approx(2 * lenet.get_position().height, rel=0.01)


def test_other_lstms_are_compared_with_the_original_that_has_none():
    runs = [record("cifar10-lenet-original", accuracy=50.0, validation=True)]
    runs += [record("cifar10-lenet-neurocoder", accuracy=51.0, validation=True, hidden=32)]
    (axis,) = compared(runs)[1].draw().axes
    assert [label.get_text() for label in axis.get_yticklabels()] == ["Neurocoder as in the paper, hidden 32"]


def test_settings_in_titles_are_wrapped():
    config = {"epochs_mlp": 8, "augmentation_mlp": "flip", "decay_mlp": "none"}
    runs = [record("cifar10-mlp-original", validation=True, **config), record("cifar10-mlp-original", validation=True)]
    title = compared(runs)[0].draw().axes[1].get_title()
    assert title == "CIFAR-10, MLP\nepochs 8, augmentation flip, decay\nnone"


def test_the_other_networks_settings_do_not_set_runs_apart():
    usual = asdict(ImagesConfig())
    runs = [record("cifar10-mlp-original", hidden=32), record("cifar10-mlp-neurocoder", 1, epochs_lenet=3)]
    assert len(configurations(runs, usual, Images().effective)) == 1
    runs.append(record("cifar10-mlp-neurocoder", hidden=32))
    assert len(configurations(runs, usual, Images().effective)) == 2


def where(*runs):
    return sections(list(runs))[-1]


def test_images_that_share_a_program_are_drawn_from_the_data_set(monkeypatch):
    images = torch.arange(4, dtype=torch.uint8).view(4, 1, 1, 1).expand(4, 3, 32, 32)  # each of one grey
    monkeypatch.setattr(cifar, "load", lambda name, train: cifar.Images(images, torch.tensor([7, 7, 3, 3])))
    right = [0, 0, 0, 1, 0, 0, 0, 2, 0, 0]
    run = record("cifar10-mlp-neurocoder", predictions="07070399", right=right)
    run.observations["programs"]["5"]["largest"][0]["rows"] = [1, 3]
    found = where(run, record("cifar10-mlp-original", predictions="07070399", right=right))
    (plot,) = found.plots
    assert plot.name == "cifar10-shared"
    (axis,) = plot.draw().axes
    assert axis.get_title() == "MLP, output layer"
    assert [label.get_text() for label in axis.get_yticklabels()] == ["50.0%"]
    sheet = axis.images[0].get_array()
    assert sheet.shape == (34, 68, 3)
    assert (sheet[:32, :32].max(), sheet[:32, 34:66].min(), sheet[33, 33, 0]) == (1, 3, 255)


def test_images_in_another_order_or_nowhere_are_not_drawn(monkeypatch, tmp_path):
    run = record("cifar10-mlp-neurocoder", predictions="0707", right=[0] * 7 + [1, 0, 0])
    (plot,) = where(run).plots
    for labels in (torch.tensor([3, 3]), torch.tensor([7])):  # other ones, and too few
        images = torch.zeros(len(labels), 3, 32, 32, dtype=torch.uint8)
        monkeypatch.setattr(cifar, "load", lambda name, train, pair=(images, labels): cifar.Images(*pair))
        with pytest.raises(UndrawableError, match="not in the order"):
            plot.draw()
    monkeypatch.undo()
    monkeypatch.setenv("NEUROCODER_DATA", str(tmp_path))
    with pytest.raises(UndrawableError, match="there is no CIFAR-10"):
        plot.draw()
    assert not where(record("cifar10-mlp-neurocoder", validation=True)).plots
