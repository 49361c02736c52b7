"""`neurocoder export`: records as one table."""

import csv
import math
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

import neurocoder as nc
from neurocoder.lab.cli import main
from neurocoder.lab.records import environment, pack, store
from neurocoder.lab.records.record import Record


def record(experiment="lines", variant="linear", seed=0, **metrics):
    history = [{"step": 1, "loss": 0.5, **metrics}]
    run = (experiment, "best", variant, seed, {"steps": 4}, {"": {"slots": 3}}, "plain", "cpu", "float32", 1)
    facts = {"commit": "abc", "changed": "yes", "source": "5d41", "torch": "2.13.0", "hardware": "some CPU"}
    return Record(*run, {"main": 7, "total": 7}, metrics, history, {}, 1.5, facts)


def write(output, *records):
    for one in records:
        one.write(output / one.experiment / one.preset / one.variant / f"seed{one.seed}.json")


def test_one_row_per_run_over_all_experiments(tmp_path, capsys):
    output, target = tmp_path / "results", tmp_path / "runs.csv"
    write(output, *(record(seed=seed, error=0.25) for seed in (0, 2, 10)))
    write(output / "selection" / "lr0.1", record(error=0.5), record("circles", score=3.0))
    assert main(["export", str(target), "--records", str(output)]) == 0
    assert capsys.readouterr().out == f"Wrote {target}: 5 runs of 2 experiments.\n"
    with target.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0])[:4] == ["experiment", "preset", "variant", "seed"]
    told = [(row["experiment"], row["folder"], row["seed"], row["error"], row["score"]) for row in rows]
    assert told == [
        ("lines", ".", "0", "0.25", ""),
        ("lines", ".", "2", "0.25", ""),
        ("lines", ".", "10", "0.25", ""),
        ("circles", "selection/lr0.1", "0", "", "3.0"),
        ("lines", "selection/lr0.1", "0", "0.5", ""),
    ]
    facts = {name: rows[0][name] for name in ("parameters", "seconds", "commit", "changed", "source", "hardware")}
    assert list(facts.values()) == ["7", "1.5", "abc", "yes", "5d41", "some CPU"]
    assert (rows[0]["config"], rows[0]["model"]) == ('{"steps": 4}', '{"": {"slots": 3}}')


def test_packed_runs_are_rows_too_and_no_metric_hides_a_column(tmp_path, capsys):
    output, target = tmp_path / "results", tmp_path / "runs.csv"
    older = replace(record(loop=3.0, error=0.1), model=None, environment={})
    pack.write(output / "selection" / "lines" / "best.jsonl.gz", [older, record(seed=1, error=0.2)])
    write(output / "selection", record(seed=2, error=math.nan))
    assert main(["export", str(target), "--records", str(output)]) == 0
    assert "`changed` is unknown for 1 of them: whether" in capsys.readouterr().out
    with target.open(newline="") as file:
        rows = list(csv.DictReader(file))
    told = [(row["seed"], row["loop"], row["metric.loop"], row["error"]) for row in rows]
    assert told == [("0", "plain", "3.0", "0.1"), ("1", "plain", "", "0.2"), ("2", "plain", "", "nan")]
    assert {row["folder"] for row in rows} == {"selection"}
    assert [row["changed"] for row in rows] == ["unknown", "yes", "yes"]
    assert [row["model"] for row in rows] == ["null", *['{"": {"slots": 3}}'] * 2]


def test_a_damaged_record_leaves_the_earlier_table(tmp_path, capsys):
    output, target = tmp_path / "results", tmp_path / "runs.csv"
    target.write_text("earlier")
    write(output, record(error=0.25), record(seed=1, error=0.25))
    damaged = output / "lines" / "best" / "linear" / "seed1.json"
    damaged.write_text(damaged.read_text()[:40])
    assert main(["export", str(target), "--records", str(output)]) == 2
    assert f"error: {damaged} is not a record" in capsys.readouterr().err
    assert target.read_text() == "earlier"
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["runs.csv"]


@pytest.mark.parametrize("folder", ["selection", pytest.param("", marks=pytest.mark.long)])
def test_every_committed_record_is_exported(tmp_path, folder):
    results = Path(__file__).parents[2] / "results" / folder
    assert main(["export", str(tmp_path / "runs.csv"), "--records", str(results)]) == 0
    with (tmp_path / "runs.csv").open(newline="") as file:
        assert sum(1 for _ in csv.DictReader(file)) == len(store.everything(results, pytest.fail)) > 800


@pytest.mark.parametrize("changed", ["program/linear.py", "lab/runner/sweep.py"])
def test_the_source_hash_follows_the_code_alone(tmp_path, changed):
    here = environment.source()
    copied = tmp_path / "neurocoder"
    shutil.copytree(Path(nc.__file__).parent, copied, ignore=shutil.ignore_patterns("__pycache__", "mnist"))
    assert (len(here), environment.source(copied)) == (64, here)
    (copied / changed).write_text((copied / changed).read_text() + "\n")
    assert environment.source(copied) != here
