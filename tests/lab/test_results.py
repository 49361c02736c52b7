"""Records: written whole, read back, and refused where they are damaged or edited."""

import dataclasses
import json
import math

import pytest
from lines import outcome, run

from neurocoder.lab.records.record import CorruptFileError, Record, digest


def record(**changes):
    values = {
        "experiment": "lines",
        "preset": "best",
        "variant": "linear",
        "seed": 0,
        "config": {"steps": 3},
        "model": {"layer": {"slots": 4, "sharpness": 1.0}},
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
        (lambda text: text.replace('"format": 2', '"format": 1'), "format 1, this version reads 2"),
        (lambda text: text.replace('"digest"', '"digests"'), "KeyError: 'digest'"),
        (lambda text: text.replace('"metrics": {"error": 0.3', '"metrics": {"error": 0.2'), "was it edited?"),
        (lambda text: text.replace("0.30000000000000004", "0.30000000000000005"), None),
        (lambda text: text.replace("0.30000000000000004", "0.3"), "was it edited?"),
        (lambda text: text.replace('"sharpness": 1.0', '"sharpness": 5.0'), "was it edited?"),
        (lambda text: text.replace('"torch": "2"', '"torch": "3"'), "was it edited?"),
        (lambda text: text.replace('"seed": 0', '"seed": 0, "more": 1'), "was it edited?"),
    ],
)
def test_what_is_not_the_record_that_was_written_is_damaged(tmp_path, damage, message):
    target = tmp_path / "seed0.json"
    record().write(target)
    target.write_bytes(damage(target.read_text()).encode(errors="surrogateescape"))
    if message is None:  # the same number in other digits
        assert Record.read(target) == record()
        return
    with pytest.raises(CorruptFileError, match=message) as found:
        Record.read(target)
    assert str(found.value).startswith(f"{target} ")


WRONG = [
    ({"seed": "0"}, "seed must be a int, got '0'"),
    ({"model": ["layer"]}, r"model must be a dict \| None, got \['layer'\]"),
    ({"seconds": None}, "seconds must be a number, got None"),
    ({"metrics": {"error": 0.5}}, "metrics must be those of the last entry of history, .*0.3.*, got .*0.5"),
    ({"metrics": {}}, "metrics must be those of the last entry of history"),
    ({"metrics": {"error": [1]}}, r"error must be a number, got \[1\]"),
    ({"history": []}, "history must have entries"),
    ({"history": [{"error": 0.1 + 0.2}]}, "history must have entries, each with its step"),
]


@pytest.mark.parametrize(("changes", "message"), WRONG)
def test_what_could_not_be_read_is_not_written(tmp_path, changes, message):
    target = tmp_path / "seed0.json"
    with pytest.raises(ValueError, match=message):
        record(**changes).write(target)
    assert list(tmp_path.iterdir()) == []
    content = vars(record(**changes))
    target.write_text(json.dumps({**content, "digest": digest(content)}))
    with pytest.raises(CorruptFileError, match=message):
        Record.read(target)


@pytest.mark.parametrize("changes", [{"model": None}, {"model": {}}, {"history": [{"step": 3, "error": 0.1 + 0.2}]}])
def test_a_record_may_lack_program_layers_and_a_loss(tmp_path, changes):
    record(**changes).write(tmp_path / "seed0.json")
    assert Record.read(tmp_path / "seed0.json") == record(**changes)


def test_numbers_that_json_lacks_come_back_from_valid_json(tmp_path):
    target = tmp_path / "seed0.json"
    numbers = {"error": math.inf, "worst": -math.inf, "none": math.nan}
    words = {"said": ['"NaN"', "x NaN"], "NaN": [math.nan]}
    changes = {"metrics": numbers, "history": [{"step": 3, **numbers}], "observations": words, "variant": "NaN"}
    record(**changes, config={"clip": math.inf}).write(target)

    def refuse(constant):
        raise AssertionError(constant)

    json.loads(target.read_text(), parse_constant=refuse)
    found = Record.read(target)
    assert (found.metrics["error"], found.metrics["worst"], found.config) == (math.inf, -math.inf, {"clip": math.inf})
    assert math.isnan(found.metrics["none"])
    assert math.isnan(found.history[0]["none"])
    assert (found.variant, found.observations["said"]) == ("NaN", words["said"])
    assert math.isnan(found.observations["NaN"][0])
    target.write_text(target.read_text().replace('"Infinity"', "1.0", 1))
    with pytest.raises(CorruptFileError, match="was it edited"):
        Record.read(target)


def test_the_digest_is_of_the_content_not_of_its_order():
    row = record().row()
    assert row.pop("digest") == digest(dict(reversed(row.items())))
    assert digest(row) != record(config={"steps": 4}).row()["digest"]


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
