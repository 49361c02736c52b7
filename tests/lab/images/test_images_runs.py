"""Runs of object recognition: settings, when the test set is read, records, exact resume, other loops."""

import json
import math
import signal
from dataclasses import asdict, replace

import pytest
import torch

import neurocoder as nc
from neurocoder.lab.data import cifar
from neurocoder.lab.experiments.images import data as images_data
from neurocoder.lab.experiments.images import experiment as images
from neurocoder.lab.experiments.images.data import synthetic
from neurocoder.lab.experiments.images.experiment import Images, ImagesConfig, controllers, loss
from neurocoder.lab.experiments.images.models import variants
from neurocoder.lab.experiments.images.observations import agreement, describe, unpack
from neurocoder.lab.records.checkpoint import Checkpoint
from neurocoder.lab.train.context import Context, Interrupted, RunHooks, final
from neurocoder.lab.train.loop import train

CPU = torch.device("cpu")
TINY = ImagesConfig(2, 2, 2, batch=16, train_images=64, source="synthetic", depth=7)


def perform(variant, config=TINY, start=None, hooks=None, precision="32-true"):
    context = Context(config, variant, 0, CPU, precision=precision, start=start, hooks=hooks)
    torch.manual_seed(0)
    Images().run(context)
    return context


def timeless(history):
    return [{name: value for name, value in entry.items() if name != "epoch_seconds"} for entry in history]


def test_presets():
    presets = Images.presets
    assert set(presets) == set(Images.seeds) == set(Images.minutes) == {"quick", "paper", "best", "smoke"}
    assert next(iter(presets)) == "quick"
    assert {config.batch for name, config in presets.items() if name != "smoke"} == {128}
    assert not any(config.validation for config in presets.values())
    assert presets["best"] == ImagesConfig()  # augmentation and decay for all
    assert presets["smoke"].source == "synthetic"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"epochs_lenet": 0}, "epochs_lenet must be a whole number >= 1, got 0"),
        ({"batch": 2.5}, "batch must be a whole number >= 1, got 2.5"),
        ({"train_images": -1}, "train_images must be a whole number >= 1, got -1"),
        ({"train_images": 100, "batch": 101}, r"batch must be at most the training images \(100\), got 101"),
        ({"augmentation_mlp": "mixup"}, "augmentation_mlp must be 'none' or 'flip' or 'reflect', got 'mixup'"),
        ({"decay_densenet": "step"}, "decay_densenet must be 'cosine' or 'none', got 'step'"),
        ({"source": "imagenet"}, "source must be 'cifar' or 'synthetic', got 'imagenet'"),
        ({"learning_rate": math.nan}, "learning_rate must be a finite number > 0, got nan"),
        ({"compile": True, "checkpointing": True}, "checkpointing must be False with compile.*, got True"),
    ],
)
def test_bad_configurations_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        ImagesConfig(**changes)


def test_each_network_has_its_own_schedule():
    config = ImagesConfig(3, 2, 1, "none", "flip", "reflect", "none", "cosine", "cosine", batch=32, source="synthetic")
    tasks = [Images().build(config, f"cifar10-{name}-original", 0, CPU) for name in ("mlp", "lenet")]
    assert [(task.steps, task.evaluate_every, task.stream.kind) for task in tasks] == [
        (93, 31, "none"),
        (62, 31, "flip"),
    ]
    assert {tasks[0].schedule(step) for step in range(93)} == {1.0}
    assert [tasks[1].schedule(step) for step in (0, 31)] == pytest.approx([1, 0.5])
    assert 0 < tasks[1].schedule(61) < 0.01


@pytest.mark.parametrize(
    ("variant", "without", "idle"),
    [
        ("cifar10-mlp-neurocoder", "lenet densenet", "depth checkpointing"),
        ("cifar100-lenet-original", "mlp densenet", "depth checkpointing hidden"),
        ("cifar10-mlp-original-wide", "lenet densenet", "depth checkpointing hidden"),
        ("cifar10-mlp-mixture", "lenet densenet", "depth checkpointing hidden"),
        ("cifar10-densenet-stored-program", "mlp lenet", "hidden"),
        ("cifar10-densenet-neurocoder-conv", "mlp lenet", ""),
        ("cifar10-lenet-neurocoder-lstm32", "mlp densenet", "depth checkpointing hidden"),  # it has its own size
    ],
)
def test_settings_without_effect_on_a_variant(variant, without, idle):
    config = asdict(ImagesConfig())
    of_networks = {f"{name}_{other}" for name in ("epochs", "augmentation", "decay") for other in without.split()}
    found = Images().effective(config, variant)
    assert config.keys() - found.keys() == of_networks | set(idle.split())
    assert found.items() <= config.items()


def test_of_an_unknown_variant_all_settings_count():
    config = asdict(ImagesConfig())
    assert Images().effective(config, "cifar10-mlp-of-an-older-version") == config


def test_settings_reach_the_network():
    config = replace(TINY, hidden=3, checkpointing=True)
    model = Images().build(config, "cifar10-densenet-neurocoder", 0, CPU).model
    assert (len(model.blocks[0]), model.blocks[0][0].checkpointing, model.classifier.config.hidden) == (1, True, 3)


def test_all_models_of_a_seed_see_the_same_batches():
    streams = [Images().build(TINY, f"cifar10-lenet-{name}", 5, CPU).stream for name in ("original", "neurocoder")]
    for stream in streams:
        stream.fill(1)
    for first, second in zip(*(stream.batch(torch.tensor(2)) for stream in streams), strict=True):
        assert torch.equal(first, second)


def test_controllers_of_the_fast_model_learn_faster():
    task = Images().build(TINY, "cifar10-lenet-neurocoder-fast", 0, CPU)
    optimiser = task.optimiser(task.model.named_parameters(), task.learning_rate)
    slow, fast = optimiser.param_groups
    assert (slow["lr"], fast["lr"]) == pytest.approx((1e-3, 5e-3))
    assert sum(p.numel() for p in fast["params"]) == nc.count_parameters(task.model)["controller"]
    assert len(slow["params"]) + len(fast["params"]) == len(list(task.model.parameters()))
    plain = Images().build(TINY, "cifar10-lenet-neurocoder", 0, CPU)
    assert len(plain.optimiser(plain.model.named_parameters(), 0.1).param_groups) == 1
    assert all("controller" in name for name in controllers(plain.model))


def test_the_loss_has_the_auxiliary_loss():
    task = Images().build(TINY, "cifar10-lenet-neurocoder", 0, CPU)
    with torch.no_grad():
        task.model.dense[4].memory.U.mul_(2)
    task.stream.fill(0)
    x, y = task.stream.batch(torch.tensor(0))
    extra = loss(task.model, (x, y)) - torch.nn.functional.cross_entropy(task.model(x), y)
    torch.testing.assert_close(extra, nc.auxiliary_loss(task.model))
    assert extra > 0.1


@pytest.mark.parametrize("validation", [False, True])
def test_the_test_set_is_read_once_at_the_end_or_not_at_all(monkeypatch, tmp_path, validation):
    events = []

    def load(name, train):
        events.append("train" if train else "test")
        return synthetic(10, train)

    monkeypatch.setattr(cifar, "folder", lambda name: tmp_path)
    monkeypatch.setattr(cifar, "load", load)
    whole = images.accuracy
    monkeypatch.setattr(images, "accuracy", lambda *given: events.append("epoch") or whole(*given))
    images_data._load.cache_clear()
    try:
        config = ImagesConfig(epochs_mlp=2, batch=32, train_images=64, validation=validation)
        run = perform("cifar10-mlp-original", config)
    finally:
        images_data._load.cache_clear()
    assert events == (["train", *["epoch"] * 4] if validation else ["train", "epoch", "epoch", "test"])
    found = final(run.history)
    assert ("test_accuracy" in found, "validation_accuracy" in found) == (not validation, validation)
    assert sum(run.observations["images"]) == (100 if validation else 200)
    assert [("validation_accuracy" in entry) for entry in run.history] == [validation] * 3
    assert not any("test_accuracy" in entry for entry in run.history[:-1])
    if validation:  # the last epoch's model is the one that is reported
        assert found["accuracy"] == run.history[-2]["validation_accuracy"]


def test_a_run_learns_and_its_record_has_what_the_tables_need():
    config = ImagesConfig(epochs_mlp=2, batch=32, train_images=640, source="synthetic", augmentation_mlp="none")
    run = perform("cifar10-mlp-neurocoder", config)
    found, seen = final(run.history), run.observations
    assert set(found) == {"accuracy", "test_accuracy", "train_accuracy", "epoch_seconds"}
    assert found["accuracy"] == found["test_accuracy"] > 60
    assert [entry["step"] for entry in run.history] == [20, 40, 40]
    assert found["epoch_seconds"] == run.history[1]["epoch_seconds"] > 0
    assert json.loads(json.dumps(seen)) == seen
    labels = synthetic(10, False).labels.numpy()
    predicted = unpack(seen["predictions"])
    assert 100 * (predicted == labels).mean() == pytest.approx(found["accuracy"])
    assert seen["right"] == [int(((predicted == labels) & (labels == label)).sum()) for label in range(10)]
    assert seen["images"] == [20] * 10
    assert list(seen["programs"]) == ["1", "3", "5"]
    assert seen["programs"]["1"]["distinct"] >= 1
    assert set(run.model) == {"1", "3", "5"}


def test_programs_and_agreement_by_hand():
    used = torch.tensor([[0, 1], [0, 1], [0, 1], [2, 1]]).numpy()
    found = describe(used, torch.tensor([3, 3, 1, 0]).numpy())
    assert found["distinct"] == 2
    assert found["effective"] == pytest.approx(math.exp(0.75 * math.log(4 / 3) + 0.25 * math.log(4)), abs=0.01)
    assert found["largest"] == [
        {"share": 0.75, "label": 3, "pure": 0.6667, "rows": [0, 1, 2]},
        {"share": 0.25, "label": 0, "pure": 1.0, "rows": [3]},
    ]
    assert unpack("000799").tolist() == [0, 7, 99]
    assert agreement("00010203", "00010299") == 75


@pytest.mark.parametrize("variant", ["cifar10-densenet-neurocoder-conv", "cifar10-densenet-mixture"])
def test_a_stopped_run_resumes_to_the_same_result(variant):
    whole = perform(variant)
    kept, asked = [], 0

    def stopped():
        nonlocal asked
        asked += 1
        return signal.SIGTERM if asked > 5 else 0  # in the second epoch of four steps

    with pytest.raises(Interrupted):
        perform(variant, hooks=RunHooks(stopped, save=kept.append))
    checkpoint = Checkpoint.from_bytes(kept[-1].to_bytes())
    assert 4 < checkpoint.state["taken"] < 8
    torch.rand(7)
    resumed = perform(variant, start=checkpoint)
    assert timeless(resumed.history) == timeless(whole.history)
    assert resumed.observations == whole.observations
    assert any("running_var" in name for name in checkpoint.state["model"])


def trained(variant, loop):
    """The model after a training in float64, where loops are not driven apart by rounding."""
    task = Images().build(TINY, variant, 0, CPU)
    task.model.double()
    task.stream.data = task.stream.data._replace(mean=task.stream.data.mean.double())
    task.evaluate = lambda model: {}
    train(Context(TINY, variant, 0, CPU, loop=loop), task)
    return task.model.state_dict()


def test_the_operations_of_a_graph_train_alike():
    """Batch norm's statistics too. On a CPU the graph's operations run uncaptured."""
    expected, found = (trained("cifar10-densenet-neurocoder", loop) for loop in ("plain", "graph"))
    assert any("running_var" in key for key in expected)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)  # its rate is a float32


def test_mixed_precision():
    found = perform("cifar10-lenet-neurocoder", precision="bf16-mixed").history
    assert all(math.isfinite(entry["loss"]) for entry in found[:-1])


def test_unknown_variants_are_refused():
    assert len(set(variants())) == len(variants())
    with pytest.raises(ValueError, match="variant must be DATASET-NETWORK-MODEL"):
        perform("cifar10-mlp-mnist")
