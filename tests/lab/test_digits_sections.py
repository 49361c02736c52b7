"""The digits experiment's tables, findings and figures from records."""

import io

import matplotlib
import numpy as np
import pytest

from neurocoder.lab.experiments.digits import Digits, DigitsConfig
from neurocoder.lab.experiments.digits_errors import fall, pieces
from neurocoder.lab.experiments.digits_variants import BEST, VARIANTS
from neurocoder.lab.experiments.patterns import MOST, Turns
from neurocoder.lab.plots import digits as plots
from neurocoder.lab.plots import style
from neurocoder.lab.results import Record
from neurocoder.lab.sections import Ours

PAPER = {"gain_up_to": 5.0, "single_step_patterns": 2, "parameters": {"original": 7800, "neurocoder": 7300}}


def found(random, k, slots):
    return {
        "centres": random.random((k, slots)).tolist(),
        "deviations": random.random((k, slots)).tolist(),
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
    table = sections(records(), PAPER)[0].tables[0]
    rows = {row[1]: row for row in table.rows}
    assert list(rows) == list(VARIANTS)
    assert all(len(row) == len(table.headings) for row in table.rows)
    assert rows["linear"][2:5] == [7000, 7800, Ours([7.4, 7.5, 7.6000000000000005])]
    assert rows["J5"][3] == 7300
    assert rows[BEST][3] is None
    assert "(best)" in rows[BEST][0]
    assert "test error" in table.headings


def test_validation_errors_are_called_so():
    section = sections(records(validation=True), PAPER)[0]
    assert "validation error" in section.tables[0].headings
    assert not any("test error" in text for text in section.text)


def test_means_beside_a_fall_are_of_the_same_seeds():
    some = [record for record in records() if (record.variant, record.seed) != ("J5", 2)]
    text = " ".join(sections(some, PAPER)[0].text)
    assert "At H=1 the error is 7.05% with J=1 and 6.05% with J=5 (1.00 points less; 95% interval" in text


def test_findings_are_computed_from_the_records():
    text = " ".join(sections(records(), PAPER)[0].text)
    assert "5.90%, the linear classifier (7,000) one of 7.50%: 1.60 points less" in text
    assert "At H=1 the error is 7.10% with J=1 and 6.10% with J=5 (1.00 points less; 95% interval" in text
    assert "3 seeds): steps help." in text
    assert "the difference is not statistically significant" in text
    assert "seeds): not significant." in text
    assert "the lowest mean is 6.10%, at J=5" in text
    assert "has 8,608" in text
    assert "7.3K" in text
    assert "A 200-32-10 MLP" in text


def test_a_rise_is_called_a_rise():
    worse = [record("J1", seed, 5.0 + seed / 100) for seed in range(3)] + [record("J5", seed, 6.0) for seed in range(3)]
    assert "steps hurt" in " ".join(sections(worse, {})[0].text)
    assert fall(worse, "J1", "J5").clear is False
    assert fall(worse, "J5", "J1").clear is True
    assert fall(worse, "J5", "J2") is None
    assert fall(worse[:1] + worse[3:4], "J1", "J5").clear is None


def test_the_arithmetic_of_the_papers_configuration_adds_up():
    assert pieces() == {
        "slots M_U, M_V, M_S": 6 * 211,
        "key networks": 2 * 211 + 6,
        "LSTM, from the input": 32 * 201,
        "LSTM, from its state": 32 * 8,
        "queries and gates": 9 * 24,
        "bias of the output": 10,
    }
    assert sections(records(), PAPER)[0].tables[1].rows[-1][-1] == 8608


def test_attention_findings():
    section = sections(records(), PAPER)[1]
    assert [plot.name for plot in section.plots] == ["attention", "patterns", "tree"]
    assert len(section.tables[0].rows) == 6
    single, multi, tree = section.text
    assert "of 9 cases (components and seeds) two is the best number of patterns in 9" in single
    assert "two is the best number of patterns in 0" in multi
    assert "The paper sees 2 patterns" in single
    assert "The paper" not in multi
    assert "{0 8}, {1 9}, {2}, {3}, {4}, {5}, {6}, {7}" in tree
    assert "90% of a digit's images" in tree


def test_the_same_records_give_the_same_figure_whatever_the_users_settings():
    plot = sections(records(), PAPER)[1].plots[2]
    pictures = []
    for size in (10, 30):
        with matplotlib.rc_context({"font.size": size, "axes.facecolor": "red"}):
            figure = plot.draw()
        with matplotlib.rc_context({"svg.hashsalt": "test"}):
            target = io.BytesIO()
            figure.savefig(target, format="svg", metadata={"Date": None})
        pictures.append(target.getvalue())
    assert pictures[0] == pictures[1]


def test_a_node_of_the_tree_lies_in_the_middle_of_its_children():
    leaves = [(0, 0), (0, 1), (1, 1)]
    places = plots.place(leaves, {(0, 0): 3.0, (0, 1): 2.0, (1, 1): 1.0})
    heights = {node: y for node, (_, y) in places.items()}
    assert heights == {(0, 0): 3.0, (0, 1): 2.0, (1, 1): 1.0, (0,): 2.5, (1,): 1.0, (): 1.75}
    assert places[()][0] < places[(0,)][0] < places[(0, 0)][0]


def test_the_tree_shows_each_digit_once_and_shares_on_its_edges():
    ways = [Turns((digit % 2, 0), (0.8, 0.5)) for digit in range(10)]
    figure = plots.decision_tree(ways, np.zeros((10, 28, 28)))
    texts = [text.get_text() for text in figure.axes[0].texts]
    assert len(figure.axes[0].images) == 10
    assert texts.count("80%") == 2
    assert texts.count("50%") == 2
    assert texts.count("40%") == 10
    assert "0 2 4 6 8" in texts


def test_figures_are_written_whole(tmp_path):
    figure = plots.error_over_steps({"a": {1: [3.0, 4.0], 2: [2.0]}}, {"b": [5.0]}, "test error")
    for name in ("figure.png", "figure.svg", "figure.pdf"):
        style.save(figure, tmp_path / "new" / name)
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == ["figure.pdf", "figure.png", "figure.svg"]
    assert b"test error" in (tmp_path / "new" / "figure.svg").read_bytes()
