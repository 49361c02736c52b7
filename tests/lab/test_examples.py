"""The complete experiments in docs/lab.md: they run, report, and resume exactly after kill -9."""

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from neurocoder.lab.cli import main
from neurocoder.lab.records.checkpoint import Checkpoint
from neurocoder.lab.records.record import CorruptFileError

PAGE = (Path(__file__).parents[2] / "docs" / "lab.md").read_text()
EXAMPLES = {
    re.match(r'"""(\w+)\.py', code)[1]: code for code in re.findall(r"^```python\n(.*?)^```$", PAGE, re.M | re.S)
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with the examples, which can be imported."""
    for name, code in EXAMPLES.items():
        (tmp_path / f"{name}.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    for name in EXAMPLES:
        sys.modules.pop(name, None)


def record(output, name, variant):
    return json.loads((output / name / "best" / variant / "seed0.json").read_text())


@pytest.mark.parametrize(
    ("name", "variant", "metric", "low", "high"),
    [
        ("circle", "linear", "error", 30, 60),
        ("circle", "program", "error", 0, 15),
        ("sequence", "plain", "first", 40, 52),  # forgotten
        ("sequence", "anchored", "first", 54, 90),
        ("corridor", "program", "score", 0.95, 1),
    ],
)
def test_an_example_learns_and_reports(folder, monkeypatch, name, variant, metric, low, high):
    monkeypatch.setattr("neurocoder.lab.train.context.REPORT_EVERY", -1.0)
    reference = f"{name}:{name.capitalize()}"
    assert main(["run", reference, "--seeds", "0", "--variants", variant]) == 0
    found = record(folder / "runs", name, variant)
    assert low <= found["metrics"][metric] <= high
    assert bool(found["model"]) == (variant in ("program", "anchored") or name == "sequence")
    assert main(["report", "--experiments", reference, "--records", "runs", "--target", "runs/report"]) == 0
    page = (folder / "runs" / "report" / f"{name}.md").read_text()
    assert f"| {variant} |" in page
    assert f"neurocoder run {reference} --preset best --seeds 0 --variants {variant}" in page


@pytest.mark.parametrize(
    ("name", "variant"), [("sequence", "anchored"), pytest.param("corridor", "program", marks=pytest.mark.long)]
)
def test_a_killed_example_resumes_to_the_same_record(folder, name, variant):
    words = ["run", f"{name}:{name.capitalize()}", "--seeds", "0", "--variants", variant]
    assert main([*words, "--output", "whole"]) == 0
    process = subprocess.Popen(
        [sys.executable, "-m", "neurocoder.lab", *words, "--checkpoint-seconds", "0"],
        env=os.environ | {"PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
    )
    path = folder / "runs" / name / "best" / variant / "seed0.checkpoint.safetensors"

    def position():
        """Steps or episodes in the checkpoint."""
        try:
            state = Checkpoint.read(path).state
        except (CorruptFileError, OSError):
            return 0
        return state["step"] if name == "sequence" else len(state["scores"])

    after = 210 if name == "sequence" else 30  # in the second task, where there is a penalty
    while process.poll() is None and position() < after:
        time.sleep(0.01)
    process.kill()
    assert process.wait() == -9
    assert position() >= after
    assert main([*words, "--resume"]) == 0
    found, whole = (record(output, name, variant) for output in (folder / "runs", folder / "whole"))
    for part in ("metrics", "history", "model", "parameters"):
        assert found[part] == whole[part]


def test_a_loop_that_a_procedure_does_not_know_is_refused(folder, capsys, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    assert main(["run", "sequence:Sequence", "--loop", "graph"]) == 2
    assert "--loop must be among plain for this experiment, got graph" in capsys.readouterr().err
