"""Continual learning as an experiment: variants, data and models of the published protocol, exact resume."""

import json
import math
import time
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch
from lines import command

import neurocoder as nc
from neurocoder.lab.cli import main
from neurocoder.lab.data import cifar, mnist, sources
from neurocoder.lab.experiments.split.data import backbone, prepare, tasks_of
from neurocoder.lab.experiments.split.experiment import Split, SplitConfig, results
from neurocoder.lab.experiments.split.figures import LOOKS
from neurocoder.lab.experiments.split.growing import SIZES
from neurocoder.lab.experiments.split.models import build_growing, build_model
from neurocoder.lab.experiments.split.variants import CHOSEN, MODELS, make_method, make_optimiser, parse, variants
from neurocoder.lab.records.checkpoint import Checkpoint

EVERY = SplitConfig(recode="all", hidden=32)
CPU = torch.device("cpu")


def test_variants_name_data_set_scenario_method_and_model():
    assert parse("mnist-domain-online-ewc-neurocoder-plain") == ("mnist", "domain", "online-ewc", "neurocoder-plain")
    assert len(variants()) == len(set(variants()))
    assert {parse(f"mnist-{scenario}-adam-mlp").outputs for scenario in ("task", "domain")} == {2}
    assert parse("mnist-class-adam-mlp").outputs == 10
    with pytest.raises(ValueError, match="variant must be DATASET-SCENARIO-METHOD-MODEL"):
        parse("mnist-domain-adam")


def test_tasks_are_pairs_of_digits_padded_as_published():
    tasks = tasks_of(parse("mnist-domain-adam-mlp"), CPU)
    digits = mnist.load(True)
    assert [len(task.train[1]) for task in tasks] == [int((digits.labels // 2 == pair).sum()) for pair in range(5)]
    first = digits.images[digits.labels // 2 == 0][0].float() / 255
    image = tasks[0].train[0][0].view(32, 32)
    torch.testing.assert_close(image[2:-2, 2:-2], (first - 0.1) / 0.2752)
    assert image[0].unique().item() == pytest.approx(-0.1 / 0.2752)
    assert sum(len(task.test[1]) for task in tasks) == 10_000


def test_validation_holds_out_training_samples_and_leaves_the_test_set_alone(monkeypatch):
    whole = mnist.load

    def load(train):
        assert train, "the test set was read"
        return whole(train)

    monkeypatch.setattr(mnist, "load", load)
    tasks = tasks_of(parse("mnist-task-adam-mlp"), CPU, validation=True)
    assert sum(len(task.train[1]) for task in tasks) == 54_000
    assert sum(len(task.test[1]) for task in tasks) == 6_000
    assert [task.head for task in tasks] == [0, 1, 2, 3, 4]


def test_cifar_needs_a_backbone(monkeypatch, capsys, tmp_path):
    monkeypatch.delenv("NEUROCODER_BACKBONE", raising=False)
    monkeypatch.setenv("NEUROCODER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(cifar, "prepare", lambda name: None)
    words = ["run", "split", "--preset", "smoke", "--variants", "cifar10-task-adam-mlp", "--output", str(tmp_path)]
    assert main(words) == 2
    said = capsys.readouterr().err
    assert "ResNet-18 is not there, and could not be downloaded" in said
    assert "resnet18-f37072fd.pth (SHA256 f37072fd" in said
    assert said.endswith("and give it by --backbone or NEUROCODER_BACKBONE\n")
    assert main([*words, "--backbone", str(tmp_path / "none")]) == 2
    assert "--backbone must be a file" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
    with pytest.raises(FileNotFoundError, match=r"needs the weights of a ResNet-18, there are none in .*; get https"):
        backbone()

    def retrieve(source, folder):
        (file := Path(folder, "download")).write_bytes(b"weights")
        return file

    monkeypatch.setattr(sources, "retrieve", retrieve)
    prepare(["cifar10"])
    assert backbone() == tmp_path / "cache" / "data" / "resnet18-f37072fd.pth"
    assert backbone().read_bytes() == b"weights"


def test_cifar_tasks_are_standardised_features_of_all_classes(monkeypatch, tmp_path):
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(400) % 100
    made = {train: (3 + 2 * torch.randn(400, 512, generator=generator), y) for train in (True, False)}
    monkeypatch.setattr("neurocoder.lab.experiments.split.features.features", lambda name, train, *_: made[train])
    monkeypatch.setenv("NEUROCODER_BACKBONE", str(tmp_path / "weights"))
    tasks = tasks_of(parse("cifar100-class-adam-mlp"), CPU, size=224)
    assert [task.labels for task in tasks] == [tuple(range(first, first + 5)) for first in range(0, 100, 5)]
    x = torch.cat([task.train[0] for task in tasks])
    torch.testing.assert_close(x.mean(0), torch.zeros(512), atol=1e-5, rtol=0)
    model = build_model("neurocoder", 512, 100, None, EVERY, slots=100)
    assert (model.trunk[0].config.slots, model.trunk[0].out_features) == (100, 512)


def test_coefficients_are_those_of_the_benchmark_times_the_strength():
    method, coefficient = make_method(parse("mnist-domain-si-mlp"), 10.0)
    assert (type(method).__name__, coefficient) == ("SI", 30_000.0)
    assert make_method(parse("mnist-domain-adam-mlp"), 10.0)[1] is None
    weight = torch.nn.Parameter(torch.zeros(1))
    rates = {m: make_optimiser(m, [weight], 0.1).param_groups[0]["lr"] for m in ("adam", "adagrad", "ewc")}
    assert rates == pytest.approx({"adam": 1e-4, "adagrad": 1e-3, "ewc": 1e-4})


@pytest.mark.parametrize(
    ("model", "heads", "total"),
    [
        # 1024 x 256 + 256, 256 x 256 + 256, and 256 x 2 + 2 for each head
        ("mlp", None, 262_400 + 65_792 + 514),
        ("mlp", 5, 262_400 + 65_792 + 5 * 514),
        ("mlp-400", None, 410_000 + 160_400 + 802),
        ("mlp-wide", 5, 479_700 + 219_492 + 5 * 938),
    ],
)
def test_models_have_the_sizes_of_the_benchmark(model, heads, total):
    built = build_model(model, 1024, 2, heads, EVERY)
    assert nc.count_parameters(built)["total"] == total


def test_the_presets_recode_what_they_say():
    paper, best = (build_model("neurocoder", 1024, 2, 5, config) for config in (EVERY, Split.presets["best"]))
    layers = [name for name, module in paper.named_modules() if isinstance(module, nc.Linear)]
    assert layers == ["trunk.0", "trunk.2", *(f"heads.{index}" for index in range(5))]
    assert paper.trunk[0].config.residual is False
    assert (paper.trunk[0].config.slots, paper.trunk[0].config.heads, paper.trunk[0].config.orthogonality) == (
        50,
        10,
        10,
    )
    assert [name for name, module in best.named_modules() if isinstance(module, nc.Linear)] == ["trunk.0", "trunk.2"]
    assert best.trunk[0].config.residual is True
    assert build_model("neurocoder-plain", 1024, 2, 5, EVERY).trunk[0].config.residual == "plain"


def test_heads_may_share_one_layer_with_its_memory():
    """Head i has the outputs 2 i and 2 i + 1 of the layer; the count is near the paper's 348K with a smaller LSTM."""
    model = build_model("neurocoder", 1024, 2, 5, SplitConfig(recode="shared", hidden=21))
    assert [name for name, module in model.named_modules() if isinstance(module, nc.Linear)] == [
        "trunk.0",
        "trunk.2",
        "heads.0",
    ]
    assert nc.count_parameters(model)["total"] == pytest.approx(348_000, rel=0.02)
    x = torch.randn(3, 1024)
    every = model.heads[0](model.trunk(x))
    assert every.shape == (3, 10)
    for head in range(5):
        torch.testing.assert_close(model(x, head), every[:, 2 * head : 2 * head + 2])
    model(x, 3).square().sum().backward()
    assert model.heads[0].bias.grad.nonzero().flatten().tolist() == [6, 7]
    single, separate = (
        build_model("neurocoder", 1024, 2, None, SplitConfig(recode=way, hidden=21)) for way in ("shared", "all")
    )
    assert [*map(str, single.state_dict())] == [*map(str, separate.state_dict())], (
        "with one head there is no difference"
    )


def test_paper_leaves_what_is_recoded_to_the_data_set():
    """On Split MNIST it is what has the 348K of Table 6; what a record says stays."""
    paper = asdict(Split.presets["paper"])
    for variant, expected in {
        "mnist-task-adam-neurocoder": ("shared", 21),
        "mnist-domain-adam-neurocoder": ("shared", 21),
        "cifar10-task-adam-neurocoder": ("all", 32),
    }.items():
        found = Split().effective(paper, variant)
        assert (found["recode"], found["hidden"]) == expected
        older = Split().effective({**paper, "recode": "all", "hidden": 32}, variant)
        assert (older["recode"], older["hidden"]) == ("all", 32)


def test_every_model_has_a_look_of_its_own():
    assert set(LOOKS) == set(MODELS)
    assert len(set(LOOKS.values())) == len(MODELS)


def test_hidden_layers_have_the_width_asked_for():
    frozen = 11_176_512  # of the ResNet-18, without its output layer
    totals = [
        nc.count_parameters(build_model("mlp", 512, outputs, heads, SplitConfig(width=940)))["total"]
        for outputs, heads in ((2, 5), (5, 20))
    ]
    assert frozen + sum(totals) / 2 == pytest.approx(12_600_000, rel=0.001), "Table 6's count is that of both"
    assert build_model("neurocoder", 512, 2, 5, replace(EVERY, width=940)).trunk[2].in_features == 940
    assert Split().effective({"epochs": 4}, "mnist-task-adam-mlp") == {"epochs": 4, "width": None}


def test_the_memory_of_neurocoders_has_the_slots_asked_for():
    layers = build_model("neurocoder", 512, 2, 5, EVERY, SplitConfig(slots=25).slots).trunk
    assert layers[0].config.slots == 25
    paper = asdict(Split.presets["paper"])
    assert "slots" not in Split().effective(paper, "cifar10-task-adam-neurocoder")  # as older records
    assert Split().effective({**paper, "slots": 25}, "cifar10-task-adam-neurocoder")["slots"] == 25
    assert "slots" not in Split().effective({**paper, "slots": 25}, "cifar10-task-adam-mlp")


def test_results_by_hand():
    matrix = torch.tensor([[90.0, 50.0], [60.0, 80.0]])
    found = results(matrix, [50.0, 45.0])
    assert found == {
        "average_accuracy": 70.0,
        "forgetting": 30.0,
        "backward_transfer": -30.0,
        "forward_transfer": 5.0,
        "learned": 85.0,
    }


def record(output, variant):
    return json.loads((output / "split" / "smoke" / variant / "seed0.json").read_text())


@pytest.mark.long
@pytest.mark.parametrize("variant", ["mnist-domain-si-mlp", "mnist-task-si-neurocoder"])
def test_a_run_killed_in_the_middle_of_a_task_resumes_to_the_same_record(tmp_path, variant):
    words = ["run", "split", "--preset", "smoke", "--samples", "256", "--variants", variant]
    process = command(*words, "--output", tmp_path, "--checkpoint-seconds", 0)
    path = tmp_path / "split" / "smoke" / variant / "seed0.checkpoint.safetensors"

    def place():
        if not path.exists():
            return (0, 0)
        state = Checkpoint.read(path).state["trainer"]
        return (state["task"], state["step"])

    while process.poll() is None and place() < (2, 1):
        time.sleep(0.01)
    process.kill()
    process.communicate()
    assert (2, 1) <= place() < (4, 2)
    assert main([*words, "--output", str(tmp_path), "--resume"]) == 0
    assert main([*words, "--output", str(tmp_path / "whole")]) == 0
    found, whole = record(tmp_path, variant), record(tmp_path / "whole", variant)
    for part in ("metrics", "history", "observations", "model"):
        assert found[part] == whole[part]
    assert all(math.isfinite(value) for value in found["metrics"].values())
    assert len(found["observations"]["matrix"]) == 5
    if "neurocoder" in variant:
        assert [len(row) for row in found["observations"]["usage"]["trunk.0"]] == [50] * 5
        last = torch.tensor(found["observations"]["usage"]["trunk.0"]).mean(0)
        drift = torch.tensor(found["observations"]["drift"]["trunk.0"])
        assert drift.shape == (5, 50)
        torch.testing.assert_close(drift[-1], last, atol=1e-4, rtol=0)


def test_settings_of_other_models_have_no_effect():
    config = {"epochs": 4, "hidden": 32, "writes": 1, "width": 99}
    models = {
        "mlp": ["width"],
        "mlp-wide": [],
        "neurocoder-plain": ["width", "hidden", "recode"],
        "growing-small": ["writes"],
    }
    for model, own in models.items():
        assert {*Split().effective(config, f"mnist-task-adam-{model}")} == {"epochs", *own}


def test_a_run_whose_factor_was_chosen_anew_is_another_one(tmp_path, monkeypatch, capsys):
    variant = "mnist-domain-l2-mlp"
    words = ["run", "split", "--preset", "smoke", "--samples", "16", "--strength", "None", "--variants", variant]
    words += ["--device", "cpu", "--output", str(tmp_path)]
    assert main(words) == 0
    assert main([*words, "--dry-run"]) == 0
    monkeypatch.setitem(CHOSEN, "mnist-domain-l2", {"mlp": 20})
    assert main([*words, "--dry-run"]) == 2
    assert "coefficient is 5.0 there and 10.0 here; choose another --output" in capsys.readouterr().err


def test_sizes_of_growing_models_are_those_of_the_table_unless_they_are_given():
    config = SplitConfig(rank=3)
    found = Split().chosen(config, "cifar10-task-adagrad-growing-small")["size"]
    assert found == SIZES["growing-small", "features"]._replace(rank=3)._asdict()
    assert build_growing("growing-small", 4, 2, None, config, "features").memory(0).U.shape[:2] == (980, 3)
