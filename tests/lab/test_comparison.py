"""Configurations of one preset side by side."""

from dataclasses import replace

from toy import Toy, record, write

from neurocoder.lab.records.record import plain
from neurocoder.lab.report import build as report
from neurocoder.lab.report import compare as comparison


def test_configurations_of_a_preset_are_compared_in_one_table(toy, tmp_path, capsys):
    """Each in its own folder; the preset's own has its whole chapter too."""
    write(tmp_path / "in" / "a", record(seed=0, error=5.0), record(seed=1, error=6.0), record("linear", error=7.0))
    for epochs, error in ((2, 9.0), (10, 8.0)):
        write(
            tmp_path / "in" / f"e{epochs}", *(record(seed=seed, error=error + seed, epochs=epochs) for seed in (0, 1))
        )
    write(tmp_path / "in" / "z", record(seed=0, error=1.0))
    report.main(report.Options(records=tmp_path / "in", target=tmp_path / "out"))
    page = (tmp_path / "out" / "toy.md").read_text()
    whole, compared = page.split("## Preset best, 3 configurations\n")
    assert "## Preset best\n" in whole
    assert "epochs" not in whole
    assert "linear" not in compared  # ran with no other settings
    rows = [line for line in compared.splitlines() if line.startswith("| epochs")]
    assert rows == [
        "| epochs 2 | 9.50 ± 0.71 |",
        "| epochs 10 | 8.50 ± 0.71 |",
        "| epochs 20 | 5.50 ± 0.71 |",
    ]
    assert "neurocoder run toy --preset best --seeds 0-1 --variants J5 --epochs 2" in compared
    assert "repeats J5 seed 0 of another folder; left out" in capsys.readouterr().err


def test_one_configuration_says_its_options(toy, tmp_path, capsys):
    write(tmp_path, record(epochs=2, validation=True))
    report.main(report.Options(records=tmp_path, target=tmp_path / "out"))
    assert "## Preset best, epochs 2, validation\n" in (tmp_path / "out" / "toy.md").read_text()
    assert (tmp_path / "out" / "images" / "toy-best-epochs-2-validation-curve.png").exists()


def test_variants_with_one_other_configuration_have_a_whole_chapter(toy, tmp_path):
    """Nothing of them can be compared."""
    write(tmp_path / "in", record("linear"), record(epochs=2))
    report.main(report.Options(records=tmp_path / "in", target=tmp_path / "out"))
    page = (tmp_path / "out" / "toy.md").read_text()
    assert [line for line in page.splitlines() if line.startswith("## ")] == [
        "## Preset best",
        "## Preset best, epochs 2",
    ]
    assert "Settings compared" not in page


def test_only_variants_with_several_configurations_are_compared(toy, tmp_path):
    write(tmp_path / "in" / "a", record("J1"), record("linear", epochs=3), record("J5", epochs=2))
    write(tmp_path / "in" / "b", record("J1", epochs=4))
    report.main(report.Options(records=tmp_path / "in", target=tmp_path / "out"))
    page = (tmp_path / "out" / "toy.md").read_text()
    titles = [line.removeprefix("## Preset ") for line in page.splitlines() if line.startswith("## ")]
    assert titles == ["best", "best, epochs 2", "best, epochs 3", "best, 2 configurations"]
    compared = page.partition("2 configurations")[2]
    assert "J1" in compared
    assert "linear" not in compared
    assert "J5" not in compared


def test_settings_that_differ_make_the_label():
    rates = {"rate_gru": 0.1, "rate_multi": 0.2}
    preset = {"rates": rates, "clip": 0.1, "decay": "cosine", "validation": False}

    def told(**changes):
        return comparison.label(comparison.diff_config(preset | changes, preset))

    assert told() == ""
    assert told(rates={"rate_gru": 0.3, "rate_multi": 0.3}, clip=None) == "rate 0.3, no clip"
    assert told(rates=rates | {"rate_multi": 0.3}, validation=True) == "rate multi 0.3, validation"


def test_models_that_differ_make_the_label():
    def model(**changes):
        return {"out": {"slots": 4, "sharpness": 1.0, "start": {"gate": -1.0, "spread": 0.1}} | changes}

    usual = [record(seed=seed, model=model()) for seed in range(4)]
    other = record(seed=4, model=model(sharpness=5.0)), record(seed=5, model=model(start={"gate": 0.0, "spread": 0.1}))
    larger = record("linear", model=model(slots=9))
    rows = comparison.configurations([*usual, *other, larger], plain(Toy.presets["best"]))
    assert [comparison.label(settings) for settings, _ in rows] == ["", "gate 0.0", "sharpness 5.0"]
    assert rows[0][1] == [*usual, larger]
    halves = comparison.configurations([usual[0], other[0]], plain(Toy.presets["best"]))
    assert [comparison.label(settings) for settings, _ in halves] == ["sharpness 1.0", "sharpness 5.0"]
    layers = [record(seed=seed, model={"a": {"slots": 4}, "b": {"slots": 4 + seed}}) for seed in (0, 1)]
    rows = comparison.configurations(layers, plain(Toy.presets["best"]))
    assert [comparison.label(settings) for settings, _ in rows] == ["b slots 4", "b slots 5"]


def test_models_that_differ_as_their_settings_say_are_not_told_apart_again():
    runs = [record(seed=seed, epochs=2 + seed, model={"out": {"slots": 4 + seed}}) for seed in range(2)]
    rows = comparison.configurations(runs, plain(Toy.presets["best"]))
    assert [comparison.label(settings) for settings, _ in rows] == ["epochs 2", "epochs 3"]


def test_models_that_differ_are_told_apart_where_a_run_lacks_a_setting():
    """A record of an earlier version, from before the setting was there."""
    runs = [record(model={"out": {"slots": 30}}), record(model={"out": {"slots": 60}})]
    runs[1] = replace(runs[1], config={name: value for name, value in runs[1].config.items() if name != "validation"})
    rows = comparison.configurations(runs, plain(Toy.presets["best"]))
    assert [comparison.label(settings) for settings, _ in rows] == ["slots 30", "slots 60"]


def test_records_that_are_older_than_a_setting_have_its_default():
    old, new = ({"fc": {"slots": 4} | more} for more in ({}, {"normalise": False}))
    runs = [replace(record(seed=seed), model=model) for seed, model in enumerate((old, new, new))]
    assert comparison.models(runs) == [{}, {}, {}]
    runs[0] = replace(runs[0], model={"fc": {"slots": 4, "normalise": True}})
    assert comparison.models(runs) == [{"normalise": True}, {}, {}]


def test_runs_of_one_command_stay_together(toy, tmp_path, monkeypatch):
    """A setting without effect on the baseline would else set it apart from what is compared with it."""
    effective = lambda self, config, variant: config if variant == "J5" else {}  # noqa: E731
    monkeypatch.setattr(Toy, "effective", effective, raising=False)
    write(tmp_path / "in", *(record(variant, epochs=2) for variant in ("linear", "J5")))
    report.main(report.Options(records=tmp_path / "in", target=tmp_path / "out"))
    page = (tmp_path / "out" / "toy.md").read_text()
    assert "## Preset best, epochs 2\n" in page
    assert "configurations" not in page


def test_settings_without_effect_on_a_variant_are_not_compared():
    runs = [record("linear", epochs=2), record(epochs=2)]

    def effective(config, variant):
        return {name: value for name, value in config.items() if (name, variant) != ("epochs", "linear")}

    rows = comparison.configurations(runs, plain(Toy.presets["best"]), effective)
    assert [(comparison.label(settings), *(run.variant for run in own)) for settings, own in rows] == [
        ("", "linear"),
        ("epochs 2", runs[1].variant),
    ]


def test_small_numbers_are_compared_in_their_own_unit():
    runs = [record(seed=seed, error=(2 + seed) * 1e-4) for seed in range(2)], [record(error=8e-3, epochs=1)]
    rows = [({}, runs[0]), ({"epochs": 1}, runs[1])]
    (table,) = comparison.section(rows, {"epochs": 3}, ["J5"], "error").tables
    assert table.title == "Error, 1e-4"
    assert table.rows == [["epochs 1", "80.00"], ["epochs 3", "2.50 ± 0.71 (n=2)"]]


def test_many_variants_are_rows_instead_of_columns():
    names = ["J1", "J2", "J3"]
    rows = [({"epochs": n}, [record(name, error=n + k / 10, epochs=n) for k, name in enumerate(names)]) for n in (1, 2)]
    (table,) = comparison.section(rows, {"epochs": 3}, names, "error").tables
    assert table.headings == ["variant", "epochs 1", "epochs 2"]
    assert table.rows == [["J1", "1.00", "2.00"], ["J2", "1.10", "2.10"], ["J3", "1.20", "2.20"]]
