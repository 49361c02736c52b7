"""Records: written whole, read back, and refused where they are damaged."""

import dataclasses
import json

import pytest
from lines import outcome, run

from neurocoder.lab.results import Damaged, Record


def record(**changes):
    values = {
        "experiment": "lines",
        "preset": "best",
        "variant": "linear",
        "seed": 0,
        "config": {"steps": 3},
        "loop": "plain",
        "device": "cpu",
        "precision": "32-true",
        "processes": 1,
        "parameters": {"total": 5},
        "metrics": {"error": 0.1 + 0.2},
        "history": [{"step": 3, "loss": 1e-17, "error": 0.1 + 0.2}],
        "observations": {"first": [[1.0, 2.0]]},
        "seconds": 1.5,
        "environment": {"torch": "2"},
    }
    return Record(**(values | changes))


def test_a_record_comes_back_as_it_was_and_leaves_nothing_else(tmp_path):
    target = tmp_path / "new" / "seed0.json"
    record().write(target)
    assert Record.read(target) == record()
    assert [file.name for file in target.parent.iterdir()] == ["seed0.json"]


def test_a_record_that_cannot_be_written_leaves_the_old_one(tmp_path):
    target = tmp_path / "seed0.json"
    record().write(target)
    with pytest.raises(ValueError, match="observations must be JSON-serializable"):
        record(observations={"first": object()}).write(target)
    assert Record.read(target) == record()
    assert [file.name for file in tmp_path.iterdir()] == ["seed0.json"]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda text: text[: len(text) // 2], "JSONDecodeError"),
        (lambda text: "", "JSONDecodeError"),
        (lambda text: "[]", "TypeError"),
        (lambda text: "\udcff", "UnicodeDecodeError"),
        (lambda text: text.replace('"format": 1', '"format": 7'), "format 7, this version reads 1"),
        (lambda text: text.replace('"metrics"', '"metric"'), "KeyError: 'metrics'"),
        (lambda text: text.replace('"seed": 0', '"seed": "0"'), "seed is not a int"),
        (lambda text: text.replace('"seconds": 1.5', '"seconds": null'), "seconds is not a number"),
        (lambda text: text.replace('"metrics": {', '"metrics": {"other": 1, '), "metrics are not those of the last"),
        (lambda text: text.replace('"metrics": {', '"metrics": {"other": [1], '), "other is not a number"),
    ],
)
def test_what_is_not_a_record_is_damaged(tmp_path, damage, message):
    target = tmp_path / "seed0.json"
    record().write(target)
    target.write_bytes(damage(target.read_text()).encode(errors="surrogateescape"))
    with pytest.raises(Damaged, match=message):
        Record.read(target)


def test_a_record_says_all_about_its_run(tmp_path):
    assert run("--variants", "program", "--seeds", "1", "--steps", "25", "--output", tmp_path) == 0
    found = Record.read(tmp_path / "lines" / "best" / "program" / "seed1.json")
    assert (found.experiment, found.preset, found.variant, found.seed) == ("lines", "best", "program", 1)
    assert found.config["steps"] == 25
    assert found.config["learning_rate"] == 0.02
    assert (found.loop, found.device, found.precision, found.processes) == ("plain", "cpu", "32-true", 1)
    assert found.parameters["total"] > found.parameters["memory"] == 48
    assert [entry["step"] for entry in found.history] == [10, 20, 25]
    assert all(set(entry) == {"step", "loss", "error"} for entry in found.history)
    assert found.metrics == {"error": found.history[-1]["error"]}
    assert found.observations["training"] is False
    assert found.seconds > 0
    assert {"commit", "torch", "python", "neurocoder", "hardware"} <= set(found.environment)
    assert json.dumps(outcome(tmp_path, "program", 1)["history"]) == json.dumps(dataclasses.asdict(found)["history"])
