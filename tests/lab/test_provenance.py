"""Records that cannot mislead: changed source and changed settings show in record, report and export."""

import csv
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from lines import run

import neurocoder as nc
from neurocoder.lab.cli import main
from neurocoder.lab.records import environment
from neurocoder.lab.records.checkpoint import Checkpoint


def git(folder, *words):
    return subprocess.run(
        ["git", "-c", "user.name=a", "-c", "user.email=a@b", *words], cwd=folder, check=True, capture_output=True
    )


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """A repository of its own with this package, without the data."""
    top = tmp_path_factory.mktemp("checkout")
    shutil.copytree(
        environment.PACKAGE, top / "src" / "neurocoder", ignore=shutil.ignore_patterns("mnist", "__pycache__")
    )
    (top / ".gitignore").write_text("__pycache__/\n")
    for words in (("init", "-q"), ("add", "."), ("commit", "-q", "-m", "all")):
        git(top, *words)
    return top


def lab(checkout, output, *words, **variables):
    path = os.pathsep.join([str(checkout / "src"), str(Path(__file__).parent)])
    usual = {name: value for name, value in os.environ.items() if name != "NEUROCODER_COMMIT"}
    return subprocess.run(
        [sys.executable, "-m", "neurocoder.lab", *words, "--output", str(output)],
        env=usual | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"} | variables,
        check=True,
        capture_output=True,
        text=True,
    )


RUN = ("run", "lines:Lines", "--preset", "smoke", "--variants", "program", "--seeds", "0")


@pytest.mark.parametrize(
    ("edited", "given"),
    [
        pytest.param(False, True, marks=pytest.mark.long),
        (True, False),
        pytest.param(True, True, marks=pytest.mark.long),
    ],
)
def test_a_run_from_edited_source_is_marked_in_record_report_and_export(checkout, tmp_path, edited, given):
    commit = git(checkout, "rev-parse", "HEAD").stdout.decode().strip()
    file = checkout / "src" / "neurocoder" / "version.py"
    before = file.read_text()
    try:
        file.write_text(before + "\n# edited\n" * edited)
        said = lab(checkout, tmp_path, *RUN, **({"NEUROCODER_COMMIT": commit} if given else {})).stdout
    finally:
        file.write_text(before)
    record = json.loads((tmp_path / "lines" / "smoke" / "program" / "seed0.json").read_text())["environment"]
    assert (record["commit"], record["changed"]) == (commit, "yes" if edited else "no")
    assert (f"{commit[:12]}+" in said) == edited
    lab(checkout, tmp_path, "export", str(tmp_path / "runs.csv"))
    (row,) = csv.DictReader((tmp_path / "runs.csv").read_text().splitlines())
    assert (row["changed"], row["source"]) == ("yes" if edited else "no", record["source"])


def test_source_is_compared_with_a_commit_where_git_knows_it():
    head = environment.git("rev-parse", "HEAD").decode().strip()
    assert environment.source_changed(head, environment.committed(head)) == "no"
    assert environment.source_changed(head, "0" * 64) == "yes"
    assert environment.source_changed("f" * 40, "0" * 64) == "unknown"
    assert environment.source_changed(head + "+", environment.committed(head)) == "yes"
    assert environment.source_changed(head, None) == "unknown"


def test_the_hash_in_a_commit_is_that_of_its_files(checkout):
    code = "from neurocoder.lab.records import environment as e; print(e.source() == e.committed('HEAD'))"
    words = [sys.executable, "-c", code]
    found = subprocess.run(
        words, env=os.environ | {"PYTHONPATH": str(checkout / "src")}, capture_output=True, text=True
    )
    assert found.stdout == "True\n", found.stderr


def test_a_run_that_was_begun_on_other_source_is_marked(tmp_path):
    wish = ("--variants", "linear", "--seeds", 0, "--output", tmp_path)
    path = tmp_path / "lines" / "best" / "linear" / "seed0.checkpoint.safetensors"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("neurocoder.lab.train.context.Context.should_save", True)
        whole = Checkpoint.write

        def write(checkpoint, target):
            checkpoint.sources = ["other"]
            whole(checkpoint, target)
            raise KeyboardInterrupt

        patch.setattr(Checkpoint, "write", write)
        assert run(*wish) == 130
    assert Checkpoint.read(path).sources == ["other"]
    assert run(*wish, "--resume") == 0
    found = json.loads((path.parent / "seed0.json").read_text())["environment"]
    assert (found["changed"], found["earlier_sources"], found["source"]) == ("yes", "other", environment.running())


def test_an_edited_experiment_outside_the_package_is_noticed(tmp_path, capsys, monkeypatch):
    code = Path(__file__).with_name("lines.py").read_text()
    (tmp_path / "ours.py").write_text(code.replace("class Lines(", "class Ours("))
    monkeypatch.syspath_prepend(tmp_path)
    words = ["run", "ours:Ours", "--preset", "smoke", "--variants", "linear", "--output", str(tmp_path / "runs")]
    assert main(words) == 0
    capsys.readouterr()
    (tmp_path / "ours.py").write_text(code.replace("class Lines(", "class Ours(") + "# edited\n")
    environment.origin.cache_clear()
    assert main([*words, "--dry-run"]) == 0
    assert "1 finished run made with other source code" in capsys.readouterr().err


def test_records_that_differ_in_sharpness_alone_differ_in_the_file(tmp_path, monkeypatch):
    found = {}
    for sharpness in (1.0, 2.0):
        whole = nc.ProgramConfig
        with monkeypatch.context() as patch:
            patch.setattr(nc, "ProgramConfig", lambda s=sharpness, whole=whole, **fields: whole(**fields, sharpness=s))
            output = tmp_path / str(sharpness)
            assert run("--preset", "smoke", "--variants", "program", "--output", output) == 0
        record = json.loads((output / "lines" / "smoke" / "program" / "seed0.json").read_text())
        found[sharpness] = record["model"][""]
    assert {name for name in found[1.0] if found[1.0][name] != found[2.0][name]} == {"sharpness"}
    assert found[1.0]["start"]["gate_bias"] == -1.0


def test_records_of_other_source_are_named(tmp_path, capsys, monkeypatch):
    wish = ("--variants", "linear", "--seeds", 0, "--output", tmp_path)
    assert run(*wish) == 0
    assert "other source" not in capsys.readouterr().err
    monkeypatch.setattr(environment, "running", lambda: "0" * 64)
    assert run(*wish) == 0
    assert "1 finished run made with other source code; kept, --overwrite replaces" in capsys.readouterr().err
