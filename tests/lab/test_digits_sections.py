"""The digits experiment's tables, findings and figures from records."""

import io

import matplotlib
import numpy as np
import pytest
from PIL import Image

from neurocoder.lab.experiments.digits import figures as plots
from neurocoder.lab.experiments.digits.experiment import Digits, DigitsConfig
from neurocoder.lab.experiments.digits.models import BEST, VARIANTS
from neurocoder.lab.experiments.digits.patterns import MOST
from neurocoder.lab.records.record import Record
from neurocoder.lab.report import style
from neurocoder.lab.report.sections import Estimate, PairedDifference

PAPER = {"gain_up_to": 5.0, "single_step_patterns": 2, "parameters": {"original": 7800, "neurocoder": 7300}}


def found(random, k, slots):
    return {
        "centres": random.random((k, slots)).tolist(),
        "share": (np.ones(k) / k).tolist(),
        "explain": 0.6,
    }


def seen(seed, slots, components=3, best=2):
    """Observations in the form of `patterns.observe`: digit d takes path d modulo 8, with 90 of 100 images."""
    random = np.random.default_rng(seed)
    component = {"count": best, "silhouettes": [0.6] * (MOST - 1), "best": found(random, best, slots)}
    paths = np.full((10, 8), 0)
    paths[np.arange(10), np.arange(10) % 8] = 90
    paths[np.arange(10), (np.arange(10) + 1) % 8] = 10
    return {
        "mean": random.random((10, components, slots)).tolist(),
        "components": [component | {"two": found(random, 2, slots)} for _ in range(components)],
        "paths": paths.tolist(),
        "bits": 1.5,
    }


def record(variant, seed, error, parameters=7000, validation=False):
    observations = {"single-30": seen(seed, 30), "multi-10": seen(seed, 10, best=5)}.get(variant, {})
    return Record(
        experiment="digits",
        preset="best",
        variant=variant,
        seed=seed,
        config=vars(DigitsConfig(validation=validation)),
        model=None,
        loop="plain",
        device="cpu",
        precision="32-true",
        processes=1,
        parameters={"total": parameters},
        metrics={"error": error, "train_error": error - 1},
        history=[],
        observations=observations,
        seconds=1.0,
    )


ERRORS = {"linear": 7.4, "mlp": 3.3, "J1": 7.0, "J5": 6.0, BEST: 5.8, "P6-H3-J5": 5.8, "P6-H3-J1": 5.9}


def records(seeds=3, **options):
    """The difference between any two variants is the same for each seed, but for P6-H3-J1."""
    return [
        record(variant, seed, ERRORS.get(variant, 6.5) + 0.1 * seed + (seed - 1) * (variant == "P6-H3-J1"), **options)
        for variant in VARIANTS
        for seed in range(seeds)
    ]


def sections(*arguments):
    return Digits().sections(*arguments)


def test_no_records_no_sections():
    assert sections([], PAPER) == []


@pytest.mark.parametrize("variant", VARIANTS)
def test_any_subset_of_records_gives_sections_and_figures(variant):
    found = sections([record(variant, 2, 6.0)], {})
    assert found
    for section in found:
        assert section.tables
        for plot in section.plots:
            plot.draw().draw_without_rendering()


def test_the_error_table_has_a_row_for_each_variant_beside_the_papers_parameters():
    table = sections(records(), PAPER)[0].tables[1]
    rows = {row[1]: row for row in table.rows}
    assert list(rows) == list(VARIANTS)
    assert all(len(row) == len(table.headings) for row in table.rows)
    assert rows["linear"][2:5] == [7000, 7800, Estimate([7.4, 7.5, 7.6000000000000005], lowest=0)]
    assert rows["J5"][3] == 7300
    assert rows[BEST][3] is None
    assert "(chosen)" in rows[BEST][0]
    assert "test error" in table.headings


def test_differences_are_paired_by_seed():
    some = [record for record in records() if (record.variant, record.seed) != ("J5", 2)]
    rows = {tuple(row[1:3]): row[3] for row in sections(some, PAPER)[0].tables[0].rows}
    assert isinstance(rows["J5", "J1"], PairedDifference)
    assert list(rows["J5", "J1"].values) == pytest.approx([-1.0, -1.0])
    assert list(rows["P6-H3-J1", "J5"].values) == pytest.approx([-1.1, -0.1])
    assert len(sections([record("J5", 0, 6.0), record("J1", 1, 6.0)], {})[0].tables) == 1


def test_validation_errors_are_called_so():
    section = sections(records(validation=True), PAPER)[0]
    assert section.tables[0].title == "Differences in validation error, in points"
    assert "validation error" in section.tables[1].headings


def test_the_same_records_give_the_same_figure_whatever_the_users_settings():
    plot = sections(records(), PAPER)[1].plots[1]
    pictures = []
    for size in (10, 30):
        with matplotlib.rc_context({"font.size": size, "axes.facecolor": "red"}):
            figure = plot.draw()
        with matplotlib.rc_context({"svg.hashsalt": "test"}):
            target = io.BytesIO()
            figure.savefig(target, format="svg", metadata={"Date": None})
        pictures.append(target.getvalue())
    assert pictures[0] == pictures[1]


def test_attention_is_grouped_for_every_seed():
    section = sections(records(), PAPER)[1]
    assert [plot.name for plot in section.plots] == ["attention", "paths"]
    (table,) = section.tables
    assert len(table.rows) == 6
    assert table.rows[0] == [
        "single-step, 30 slots",
        1,
        Estimate([2] * 3, 1),
        Estimate([0.6] * 3),
        Estimate([60.0] * 3, 0),
        "3 of 3",
    ]
    assert "The paper sees 2 patterns" in table.caption


def test_paths_are_shares_of_each_digits_images():
    axis = plots.path_shares({"model": seen(0, 10)["paths"]}).axes[0]
    texts = [(text.get_position(), text.get_text()) for text in axis.texts]
    assert [text for (_, digit), text in texts if digit == 3] == ["90", "10"]
    assert ((3, 3), "90") in texts
    assert [label.get_text() for label in axis.get_xticklabels()][:3] == ["A A A", "A A B", "A B A"]


def test_lines_get_256_colours_and_pictures_keep_theirs():
    lines, picture = style.new_figure(2), style.new_figure(2)
    axis = lines.subplots()
    axis.plot([0, 1], [0, 1], color=style.BLUE)
    picture.subplots().imshow(np.random.default_rng(0).random((40, 40, 3)))
    drawn, photo = (Image.open(io.BytesIO(style.render(figure, "png"))) for figure in (lines, picture))
    assert (drawn.mode, photo.mode) == ("P", "RGBA")
    assert drawn.size == photo.size
    lines.savefig(full := io.BytesIO(), dpi=150)
    away = np.asarray(drawn.convert("RGB"), float) - np.asarray(Image.open(full).convert("RGB"), float)
    assert np.abs(away).max() <= 8


def test_figures_are_written_whole(tmp_path):
    figure = plots.error_over_steps({"a": {1: [3.0, 4.0], 2: [2.0]}}, {"b": [5.0]}, "test error")
    for name in ("figure.png", "figure.svg"):
        style.save(figure, tmp_path / "new" / name)
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == ["figure.png", "figure.svg"]
