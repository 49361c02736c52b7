"""The experiment of one pass: runs, records and the report."""

import json

import pytest
import torch

from neurocoder.lab.cli import main
from neurocoder.lab.experiments.exact.experiment import blurred
from neurocoder.lab.experiments.exact.learners import LEARNERS, make


def test_learners_have_about_the_features_asked_for():
    for name in LEARNERS:
        learner = make(name, 40, 5, features=99, residual=False, ridge=None, seed=0, device=None)
        assert learner.numbers()["learn"] >= 0
    for name, width in {"local": 99, "local-16": 85, "rbf": 99, "relu": 99, "fourier": 99, "ridge": 40}.items():
        assert make(name, 40, 5, features=99, residual=False, ridge=None, seed=0, device=None).width == width + 1


def test_blurred_images_are_centred_and_of_unit_length():
    z = blurred(torch.randn(3, 1024))
    torch.testing.assert_close(z.sum(1), torch.zeros(3), atol=1e-4, rtol=0)
    torch.testing.assert_close(z.norm(dim=1), torch.ones(3))


@pytest.mark.slow
def test_a_run_is_recorded_and_reported(tmp_path, capsys):
    words = ["run", "exact", "--preset", "smoke", "--variants", "mnist-local,mnist-slda", "--output", str(tmp_path)]
    assert main(words) == 0
    record = json.loads((tmp_path / "exact" / "smoke" / "mnist-local" / "seed0.json").read_text())
    metrics, numbers = record["history"][-1], record["observations"]["numbers"]
    assert 60 < metrics["average_accuracy"] <= metrics["domain_accuracy"] < 100
    assert numbers["learn"] > numbers["answer"] > 0
    assert main(["report", "--records", str(tmp_path), "--target", str(tmp_path / "page")]) == 0
    page = (tmp_path / "page" / "exact.md").read_text()
    assert "local programs, rank 32" in page
    assert "streaming LDA" in page
    assert (tmp_path / "page" / "images" / "exact-smoke-mnist-numbers.png").exists()
