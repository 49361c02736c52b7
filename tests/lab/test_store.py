"""Where records are found: loose, packed, or both."""

import gzip
import json
from dataclasses import replace

import pytest
from test_results import record

from neurocoder.lab.records import pack, store
from neurocoder.lab.records.record import CorruptFileError, Record


def run(variant="linear", seed=0, error=0.5, **changes):
    return record(
        variant=variant, seed=seed, metrics={"error": error}, history=[{"step": 3, "error": error}], **changes
    )


def place(output, one):
    return output / one.experiment / one.preset / one.variant / f"seed{one.seed}.json"


def loose(output, *runs):
    for one in runs:
        one.write(place(output, one))


def told(found):
    return [(one.preset, one.variant, one.seed, one.metrics["error"]) for one in found]


def test_loose_and_packed_runs_are_found_sorted_and_once(tmp_path):
    pack.write(tmp_path / "lines" / "best.jsonl.gz", [run(seed=2), run(seed=10), run("gru")])
    loose(tmp_path, run(seed=10, error=0.25), run(seed=1), run("gru", preset="paper"))
    (tmp_path / "lines" / "best" / "linear" / "seed3.checkpoint.safetensors").write_text("")
    (tmp_path / "lines" / "best" / "linear" / "seed3.json.damaged").write_text("")
    assert told(store.records(tmp_path, "lines", pytest.fail)) == [
        ("best", "gru", 0, 0.5),
        ("best", "linear", 1, 0.5),
        ("best", "linear", 2, 0.5),
        ("best", "linear", 10, 0.25),
        ("paper", "gru", 0, 0.5),
    ]
    assert store.records(tmp_path, "circles", pytest.fail) == []


def test_two_configurations_in_one_packed_file_are_two_runs(tmp_path):
    other = [
        run(config={"steps": 4}),
        run(model={"layer": {"slots": 4, "sharpness": 5.0}}),
        run(precision="bf16-mixed"),
    ]
    pack.write(tmp_path / "lines" / "best.jsonl.gz", [run(), *other])
    assert len(store.records(tmp_path, "lines", pytest.fail)) == 4
    found = store.find(tmp_path, "lines", "best", "linear", 0)
    assert sorted(map(store.key, found)) == sorted(map(store.key, [run(), *other]))
    loose(tmp_path, replace(other[0], seconds=9.0))
    first, *rest = store.find(tmp_path, "lines", "best", "linear", 0)
    assert (first.seconds, first.config, len(rest)) == (9.0, {"steps": 4}, 3)
    assert store.find(tmp_path, "lines", "best", "linear", 1) == store.find(tmp_path, "lines", "paper", "gru", 0) == []


def test_a_packed_file_is_parsed_once_until_it_changes(tmp_path, monkeypatch):
    target = tmp_path / "lines" / "best.jsonl.gz"
    pack.write(target, [run(), run(seed=1)])
    parse, parsed = Record.parse, []
    monkeypatch.setattr(Record, "parse", lambda *arguments: parsed.append(1) or parse(*arguments))
    for _ in range(5):
        assert told(store.find(tmp_path, "lines", "best", "linear", 1)) == [("best", "linear", 1, 0.5)]
    assert len(parsed) == 2
    pack.write(target, [run(), run(seed=1, error=0.4)])
    assert told(store.find(tmp_path, "lines", "best", "linear", 1)) == [("best", "linear", 1, 0.4)]


def edit(target, change):
    target.write_bytes(gzip.compress(change(gzip.decompress(target.read_bytes()).decode()).encode()))


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (
            lambda path: edit(path, lambda text: text.replace('{"error": 0.25}', '{"error": 0.2}')),
            "line 2 does not match",
        ),
        (lambda path: edit(path, lambda text: text.replace("\n{", "\n", 1)), "line 2 is not a record"),
        (lambda path: path.write_bytes(path.read_bytes()[:-10]), "is damaged after line"),
        (lambda path: path.write_bytes(path.read_bytes()[:-100]), "is damaged after line"),
        (lambda path: path.write_bytes(b""), "is damaged after line 0: it is empty"),
        (lambda path: path.write_bytes(b"no gzip"), "is damaged after line 0: Not a gzipped file"),
        (
            lambda path: path.write_bytes(path.read_bytes()[:10] + b"\xff" + path.read_bytes()[11:]),
            "is damaged after line",
        ),
    ],
)
def test_what_is_damaged_is_named_in_one_line_and_left_out(tmp_path, damage, problem):
    target, warnings = tmp_path / "lines" / "best.jsonl.gz", []
    pack.write(target, [run(), run(seed=1, error=0.25)])
    damage(target)
    found = store.records(tmp_path, "lines", warnings.append)
    assert ("best", "linear", 1, 0.25) not in told(found) or "after line 2" in warnings[0]
    assert problem in warnings[-1]
    assert all(line.startswith(f"{target} ") and "\n" not in line for line in warnings)
    assert store.find(tmp_path, "lines", "best", "linear", 0) == [one for one in found if one.seed == 0]


def test_a_packed_file_holds_what_its_name_says(tmp_path):
    warnings = []
    pack.write(tmp_path / "lines" / "paper.jsonl.gz", [run()])
    assert store.records(tmp_path, "lines", warnings.append) == []
    assert warnings == [f"{tmp_path / 'lines' / 'paper.jsonl.gz'} line 1 says that it is lines/best"]


def test_an_edited_loose_record_is_named_and_the_packed_one_counts(tmp_path):
    pack.write(tmp_path / "lines" / "best.jsonl.gz", [run()])
    loose(tmp_path, run(error=0.25))
    path, warnings = place(tmp_path, run()), []
    path.write_text(path.read_text().replace("0.25", "0.125"))
    assert told(store.records(tmp_path, "lines", warnings.append)) == [("best", "linear", 0, 0.5)]
    assert warnings == [f"{path} does not match its digest: was it edited?"]
    with pytest.raises(CorruptFileError, match="was it edited"):
        store.find(tmp_path, "lines", "best", "linear", 0)


def test_everything_is_found_at_any_depth(tmp_path):
    pack.write(tmp_path / "selection" / "lines" / "best.jsonl.gz", [run()])
    loose(tmp_path, run("gru"), run(experiment="circles"))
    loose(tmp_path / "selection" / "rate", run(seed=5))
    (tmp_path / "bench").mkdir()
    (tmp_path / "bench" / "seed1.json").write_text(json.dumps({}))
    found = store.everything(tmp_path, pytest.fail)
    assert [(folder.as_posix(), one.experiment, one.variant, one.seed) for folder, one in found] == [
        (".", "circles", "linear", 0),
        (".", "lines", "gru", 0),
        ("selection", "lines", "linear", 0),
        ("selection/rate", "lines", "linear", 5),
    ]
    assert store.everything(tmp_path / "lines", pytest.fail) == []
