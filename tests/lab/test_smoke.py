"""The smoke preset of each experiment, as a stranger would run it, and the report of its records."""

import json
import math

import pytest

from neurocoder.lab.cli import main
from neurocoder.lab.experiments import EXPERIMENTS

VARIANTS = {
    "digits": ["linear", "mlp", "J1", "multi-10"],
    "split": ["mnist-domain-adam-mlp", "mnist-task-ewc-neurocoder", "mnist-class-lwf-mlp", "mnist-task-adam-mlp-wide"],
    "exact": ["mnist-local16", "mnist-rbf-250", "mnist-slda"],
    "fields": [
        f"mnist-{name}-700" for name in ("fourier-core", "fourier-core-constant", "siren-hyper", "siren-softmax")
    ],
    "tasks": [f"sines-{name}" for name in ("core-10-10", "mixture-10-10", "unsteered-10-10", "own-1-10")],
    "everyday": [f"spirals-{layer}" for layer in ("plain", "noise", "paper", "core", "gate", "wide")],
    "images": [
        *("cifar10-mlp-original", "cifar10-mlp-neurocoder-steered", "cifar10-lenet-neurocoder-conv"),
        *("cifar10-lenet-mixture", "cifar100-densenet-stored-program"),
    ],
    "atari": [f"seaquest-{head}" for head in ("plain", "hyper", "neurocoder", "constant", "scaled")],
    "polynomials": ["gru", "hyper", "single-2", "multi", "multi-noise", "multi-doubled"],
}
"""Every kind of model of each experiment, and every setting."""


def test_every_experiment_has_its_variants_here():
    assert set(VARIANTS) == set(EXPERIMENTS)


@pytest.mark.parametrize("name", VARIANTS)
def test_smoke_makes_records_and_a_report(name, tmp_path, capsys):
    words = ["--preset", "smoke", "--variants", ",".join(VARIANTS[name]), "--output", str(tmp_path / "records")]
    assert main(["run", name, *words]) == 0  # the report's failure would be another status
    assert f"{len(VARIANTS[name])} finished" in capsys.readouterr().out
    for variant in VARIANTS[name]:
        record = json.loads((tmp_path / "records" / name / "smoke" / variant / "seed0.json").read_text())
        assert all(math.isfinite(value) for value in record["metrics"].values())
        assert (record["device"], record["loop"]) in (("cpu", "plain"), ("cuda", "graph"))
    report = tmp_path / "records" / "report"
    for page in [*report.glob(f"{name}-*.md")] or [report / f"{name}.md"]:  # `split` has a page for each scenario
        assert f"neurocoder run {name} --preset smoke --seeds 0" in page.read_text()
        assert "its numbers mean nothing" in page.read_text()
    assert (report / f"{name}.md").exists()
    assert (report / "report.html").exists()
