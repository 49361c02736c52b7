"""Loops: the graph's operations agree with the plain loop, evaluations come when they are due."""

import gc
import math
import weakref

import pytest
import torch
from lines import Config, Lines, outcome, run

from neurocoder.lab.train.capture import captured
from neurocoder.lab.train.context import Context, RunHooks, TrainingError
from neurocoder.lab.train.graphs import GraphStepper
from neurocoder.lab.train.loop import Stepper, Training

gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
CLOSE = 1e-5
"""Relative and absolute, in float64. The graph's learning rate is a float32."""


@pytest.fixture(autouse=True)
def double(request):
    """Float64 where loops are compared: Adam divides by gradients that may be mere rounding."""
    torch.set_default_dtype(torch.float64 if "plain" in request.fixturenames else torch.float32)
    yield
    torch.set_default_dtype(torch.float32)


def started(variant="linear", device="cpu", hooks=None, **changes):
    """A context, and its task."""
    config, device = Config(**changes), torch.device(device)
    return Context(config, variant, 0, device, hooks=hooks), Lines().build(config, variant, 0, device)


def stepper_of(kind, variant="linear", **changes):
    """A stepper of a new task."""
    context, task = started(variant, **changes)
    return kind(task, context)


def trained(kind, variant="program", device="cpu", **changes):
    """History and model after a whole training."""
    context, task = started(variant, device, **changes)
    Training(context, task, kind(task, context)).run()
    return context.history, task.model


def assert_close(history, model, expected, member, tolerance):
    assert len(history) == len(expected) == 4
    for found, wanted in zip(history, expected, strict=True):
        assert found == pytest.approx(wanted, rel=tolerance, abs=tolerance)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.cpu(), member.get_parameter(name), rtol=tolerance, atol=tolerance)


@pytest.fixture(
    params=[{"optimiser": "adam"}, {"optimiser": "sgd"}, {"optimiser": "sgd", "clip": 0.5}],
    ids=lambda settings: "-".join(map(str, settings.values())),
)
def plain(request):
    """The settings, and history and model of a plain training."""
    return request.param, *trained(Stepper, **request.param)


def test_the_operations_of_the_graph_agree_with_the_plain_loop(plain):
    settings, expected, member = plain
    assert_close(*trained(GraphStepper, **settings), expected, member, CLOSE)


@gpu
def test_a_captured_graph_agrees_with_the_plain_loop_on_a_cpu(plain):
    settings, expected, member = plain
    assert_close(*trained(GraphStepper, device="cuda", **settings), expected, member, CLOSE)


@gpu
def test_a_capture_survives_garbage():
    """The graph of an earlier run, unreachable but in a cycle, would end the capture when the collector frees it."""
    x, side, holder = torch.zeros(3, device="cuda"), torch.cuda.Stream(), []
    with captured(side) as earlier:
        x.add_(1)
    holder += [holder, earlier]
    del holder, earlier
    with captured(side) as graph:
        for _ in range(2_000):  # what makes the collector run
            x.add_(torch.ones_like(x))
            _ = [[] for _ in range(100)]
    graph.replay()
    assert x.tolist() == [2_000.0] * 3


@gpu
def test_loops_on_a_gpu_agree_in_float32(tmp_path):
    for name in ("graph", "plain"):
        assert run("--variants", "program", "--device", "cuda", "--loop", name, "--output", tmp_path / name) == 0
    for seed in (0, 1):
        found, expected = outcome(tmp_path / "graph", "program", seed), outcome(tmp_path / "plain", "program", seed)
        assert (found["loop"], found["device"]) == ("graph", "cuda")
        for entry, wanted in zip(found["history"], expected["history"], strict=True):
            assert entry == pytest.approx(wanted, rel=1e-2)


@gpu
def test_the_same_run_on_a_gpu_gives_the_same_record(tmp_path):
    for name in ("one", "two"):
        assert run("--variants", "program", "--device", "cuda", "--loop", "graph", "--output", tmp_path / name) == 0
    assert outcome(tmp_path / "one", "program", 1) == outcome(tmp_path / "two", "program", 1)


def test_nothing_in_the_operations_waits_for_the_device(monkeypatch):
    """A captured step may not read numbers; on a CPU all that can be seen of it are calls of `item` from Python."""
    stepper = stepper_of(GraphStepper, "program")
    stepper.step()
    for name in ("item", "tolist", "__bool__", "__int__", "__float__", "__index__"):
        monkeypatch.setattr(torch.Tensor, name, None)
    stepper.step()


def test_the_graph_reads_the_learning_rate_of_its_step():
    stepper = stepper_of(GraphStepper, optimiser="sgd")
    for step in range(3):
        stepper.step()
        for group in stepper.optimiser.param_groups:
            assert float(group["lr"]) == pytest.approx(0.02 * (1 - step / 40))
            assert group["fused"]


@pytest.mark.parametrize(("clip", "length"), [(1e-4, 1e-4), (1e9, 1.0)])
def test_gradients_are_clipped_to_the_limit_but_never_scaled_up(monkeypatch, clip, length):
    """Over all parameters, also single numbers."""
    stepper = stepper_of(Stepper, optimiser="sgd", clip=clip)
    weight = stepper._spec.model.weight
    stepper.loss = lambda position: 0.6 * weight[0, 0] + 0.8 * stepper._spec.model.bias[0]
    stepper.step()
    parameters = stepper._spec.model.parameters()
    norm = torch.cat([parameter.grad.flatten() for parameter in parameters]).norm().item()
    assert norm == pytest.approx(length, rel=1e-2)  # torch divides by the norm + 1e-6


def test_the_record_says_which_loop_was_used(tmp_path):
    assert run("--variants", "program", "--loop", "plain", "--seeds", 0, "--output", tmp_path) == 0
    assert outcome(tmp_path, "program")["loop"] == "plain"


def test_the_loss_is_the_mean_since_the_last_evaluation():
    context, task = started(steps=25)
    losses, modes, whole = [], [], task.loss

    def loss(model, batch):
        modes.append((model.training, torch.is_grad_enabled()))
        losses.append(whole(model, batch))
        return losses[-1]

    task.loss = loss
    Training(context, task, Stepper(task, context)).run()
    means = [torch.stack(losses[first:last]).double().mean().item() for first, last in ((0, 10), (10, 20), (20, 25))]
    assert [entry["loss"] for entry in context.history] == pytest.approx(means, rel=1e-12)
    assert set(modes) == {(True, True)}


def test_evaluations_are_in_eval_mode_without_gradients():
    context, task = started(steps=12)
    modes = []
    task.evaluate = lambda model: modes.append((model.training, torch.is_grad_enabled())) or {}
    Training(context, task, Stepper(task, context)).run()
    assert modes == [(False, False)] * 2


def test_a_loss_that_is_not_finite_ends_the_run_and_names_the_step():
    with pytest.raises(TrainingError, match="the training loss is nan at step 10"):
        trained(Stepper, "diverging")


def test_progress_is_reported(monkeypatch):
    monkeypatch.setattr("neurocoder.lab.train.context.REPORT_EVERY", -1.0)
    seen = []
    context, task = started(steps=12, hooks=RunHooks(report=lambda *progress: seen.append(progress)))
    Training(context, task, Stepper(task, context)).run()
    assert [(step, steps) for step, steps, _ in seen] == [(step, 12) for step in range(1, 13)]
    assert all(shown.startswith("loss ") and math.isfinite(float(shown[5:])) for _, _, shown in seen)


def test_bfloat16_trains_as_well(tmp_path):
    assert run("--variants", "program", "--precision", "bf16-mixed", "--seeds", 0, "--output", tmp_path) == 0
    assert run("--variants", "program", "--seeds", 0, "--output", tmp_path / "whole") == 0
    found, whole = outcome(tmp_path, "program"), outcome(tmp_path / "whole", "program")
    assert found["precision"] == "bf16-mixed"
    assert found["metrics"]["error"] == pytest.approx(whole["metrics"]["error"], rel=0.1)
    assert found["metrics"] != whole["metrics"]


def test_parameter_groups_keep_their_own_rates():
    for kind in (Stepper, GraphStepper):
        context, task = started()

        def optimiser(parameters, rate):
            groups = [{"params": [entry], "lr": rate * (0.1 if name == "bias" else 1)} for name, entry in parameters]
            return torch.optim.SGD(groups, fused=True)

        task.optimiser = optimiser
        stepper = kind(task, context)
        for step in range(2):
            stepper.step()
            rates = [float(group["lr"]) for group in stepper.optimiser.param_groups]
            assert rates == pytest.approx([0.02 * (1 - step / 40), 0.002 * (1 - step / 40)])


def test_the_place_of_torchs_generators_is_not_overwritten():
    context, _ = started()
    with pytest.raises(ValueError, match="save must not be given 'generators'"):
        context.save(generators=1)


@pytest.mark.parametrize("kind", [Stepper, GraphStepper])
def test_a_stepper_is_freed_at_once(kind):
    """A graph's memory is freed with its stepper, before the next run needs it."""
    stepper = stepper_of(kind, "program")
    stepper.step()
    alive = weakref.ref(stepper)
    gc.disable()
    try:
        del stepper
        assert alive() is None
    finally:
        gc.enable()
