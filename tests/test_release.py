"""What a release consists of. `make wheel` builds one and tries it in an empty environment."""

import importlib.util
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

import neurocoder as nc
from neurocoder import __main__ as summary
from neurocoder.lab.cli import COMMANDS

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_the_version_is_in_one_place():
    named = re.compile(rf"version\s*[=:]\s*[\"']?{re.escape(nc.__version__)}\b", re.IGNORECASE)
    files = [ROOT / "pyproject.toml", ROOT / "CITATION.cff", ROOT / "docs/conf.py", *(ROOT / "src").rglob("*.py")]
    assert [file.name for file in files if "__version__ =" in file.read_text()] == ["version.py"]
    assert not [file.name for file in files if file.name != "version.py" and named.search(file.read_text())]
    assert PROJECT["dynamic"] == ["version"]


def test_the_public_workflow_runs_the_tests():
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "test.yml").read_text())
    (job,) = workflow["jobs"].values()
    assert job["steps"][-1] == {"run": "make test"}
    lowest = PROJECT["requires-python"].removeprefix(">=")
    assert lowest in job["strategy"]["matrix"]["python"]


def test_the_citation_names_the_paper():
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert {"cff-version", "message", "title", "authors"} <= set(cited)
    paper = cited["preferred-citation"]
    assert paper["title"] == "Neurocoder: General-Purpose Computation Using Stored Neural Programs"
    assert [author["family-names"] for author in paper["authors"]] == ["Le", "Venkatesh"]
    assert cited["license"] == PROJECT["license"]


def test_the_module_says_what_is_there():
    done = subprocess.run([sys.executable, "-m", "neurocoder"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith(f"neurocoder {nc.__version__}")
    assert all(command in done.stdout for command in COMMANDS)
    assert len(done.stdout.splitlines()) < 16


def test_the_module_takes_no_arguments():
    with pytest.raises(SystemExit, match="takes no arguments, got 'run digits': use the command `neurocoder`"):
        summary.main(["run", "digits"])


def test_extras_are_read_from_the_requirements():
    found = summary.extras(
        ["torch>=2", "rich>=14; extra == 'lab'", 'ray>=2; extra == "cluster"', 'ruff; extra == "dev"']
    )
    assert found == {"lab": ["rich"], "cluster": ["ray"]}


def test_a_missing_extra_is_told(monkeypatch):
    monkeypatch.setattr(summary, "is_installed", lambda name: name != "rich")
    assert "pip install 'neurocoder[lab]' (missing: rich)" in summary.summary()


def test_the_smoke_test_of_make_wheel_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    place = importlib.util.spec_from_file_location("release", ROOT / "tests/release.py")
    release = importlib.util.module_from_spec(place)
    place.loader.exec_module(release)
    exec(release.SMOKE.replace('assert "site-packages"', 'assert "neurocoder"'), {})  # here it is the checkout's
    assert capsys.readouterr().out == f"neurocoder {nc.__version__}\n"
