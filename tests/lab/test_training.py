"""Loops: the graph's operations and stacked seeds agree with the plain loop, evaluations come when they are due."""

import gc
import math
import weakref

import pytest
import torch
from lines import Config, Lines, outcome, run
from torch import nn

from neurocoder.lab.runner.runs import Setup
from neurocoder.lab.train.capture import captured
from neurocoder.lab.train.context import Context, Guard, TrainingError
from neurocoder.lab.train.graphs import GraphStepper
from neurocoder.lab.train.loop import Single, Stepper, Training
from neurocoder.lab.train.stacked import Stacked

gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
CLOSE = {Stepper: 1e-9, GraphStepper: 1e-5}
"""Relative and absolute, in float64. The graph's learning rate is a float32."""


@pytest.fixture(autouse=True)
def double(request):
    """Float64 where loops are compared: Adam divides by gradients that may be mere rounding."""
    torch.set_default_dtype(torch.float64 if "plain" in request.fixturenames else torch.float32)
    yield
    torch.set_default_dtype(torch.float32)


def trained(stepper, stack, variant="program", seeds=(0, 1, 2), device="cpu", **changes):
    """Histories and models after a whole training."""
    precision = "64-true" if torch.get_default_dtype() == torch.float64 else "32-true"
    fabric = Setup(output=None, device=device, precision=precision).fabric()
    tasks = [Lines().build(Config(**changes), variant, seed, fabric.device) for seed in seeds]
    learner = Stacked(tasks, fabric) if stack else Single(tasks[0], fabric)
    context = Context(Config(**changes), variant, tuple(seeds), fabric)
    Training(context, tasks, learner, stepper(learner, tasks, fabric)).run()
    return [run.history for run in context.runs.values()], learner.models()


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
    """The settings, and histories and models of three seeds, each trained alone."""
    alone = [trained(Stepper, False, seeds=(seed,), **request.param) for seed in range(3)]
    return request.param, [histories[0] for histories, _ in alone], [models[0] for _, models in alone]


@pytest.mark.parametrize("stepper", [Stepper, GraphStepper])
def test_stacked_seeds_agree_with_seeds_alone(plain, stepper):
    settings, expected, members = plain
    histories, models = trained(stepper, True, **settings)
    for index in range(3):
        assert_close(histories[index], models[index], expected[index], members[index], CLOSE[stepper])


def test_the_operations_of_the_graph_agree_with_the_plain_loop(plain):
    settings, expected, members = plain
    histories, models = trained(GraphStepper, False, seeds=(0,), **settings)
    assert_close(histories[0], models[0], expected[0], members[0], CLOSE[GraphStepper])


@gpu
@pytest.mark.parametrize("stack", [False, True])
def test_a_captured_graph_agrees_with_the_plain_loop_on_a_cpu(plain, stack):
    settings, expected, members = plain
    histories, models = trained(GraphStepper, stack, seeds=range(3) if stack else (0,), device="cuda", **settings)
    for index in range(len(models)):
        assert_close(histories[index], models[index], expected[index], members[index], CLOSE[GraphStepper])


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
@pytest.mark.parametrize("loop", ["graph", "stacked"])
def test_loops_on_a_gpu_agree_in_float32(tmp_path, loop):
    for name in (loop, "plain"):
        assert run("--variants", "program", "--device", "cuda", "--loop", name, "--output", tmp_path / name) == 0
    for seed in (0, 1):
        found, expected = outcome(tmp_path / loop, "program", seed), outcome(tmp_path / "plain", "program", seed)
        assert (found["loop"], found["device"]) == (loop, "cuda")
        for entry, wanted in zip(found["history"], expected["history"], strict=True):
            assert entry == pytest.approx(wanted, rel=1e-2)


@gpu
@pytest.mark.parametrize("loop", ["graph", "stacked"])
def test_the_same_run_on_a_gpu_gives_the_same_record(tmp_path, loop):
    for name in ("one", "two"):
        assert run("--variants", "program", "--device", "cuda", "--loop", loop, "--output", tmp_path / name) == 0
    assert outcome(tmp_path / "one", "program", 1) == outcome(tmp_path / "two", "program", 1)


def test_nothing_in_the_operations_waits_for_the_device(monkeypatch):
    """A captured step may not read numbers; on a CPU all that can be seen of it are calls of `item` from Python."""
    fabric = Setup(output=None).fabric()
    tasks = [Lines().build(Config(), "program", 0, fabric.device)]
    learner = Single(tasks[0], fabric)
    stepper = GraphStepper(learner, tasks, fabric)
    stepper.step()
    for name in ("item", "tolist", "__bool__", "__int__", "__float__", "__index__"):
        monkeypatch.setattr(torch.Tensor, name, None)
    stepper.step()


def test_the_graph_reads_the_learning_rate_of_its_step():
    fabric = Setup(output=None).fabric()
    tasks = [Lines().build(Config(optimiser="sgd"), "linear", 0, fabric.device)]
    learner = Single(tasks[0], fabric)
    stepper = GraphStepper(learner, tasks, fabric)
    for step in range(3):
        stepper.step()
        for group in stepper.optimiser.param_groups:
            assert float(group["lr"]) == pytest.approx(0.02 * (1 - step / 40))
            assert group["fused"]


def test_gradients_are_clipped_to_the_limit_but_never_scaled_up():
    fabric = Setup(output=None).fabric()
    tasks = [Lines().build(Config(), "linear", seed, fabric.device) for seed in (0, 1)]
    stacked, alone = Stacked(tasks, fabric), Single(tasks[0], fabric)
    for (
        parameter
    ) in stacked.parameters.values():  # five numbers each: 3, 3, 3, 3, 0 and 0.1, 0.1, 0.1, 0.1, 0 have norms 6, 0.2
        value = 1.0 if parameter.dim() == 3 else 0.0
        parameter.grad = torch.stack([torch.full_like(parameter[0], scale * value) for scale in (3.0, 0.1)])
    for parameter, both in zip(alone.parameters.values(), stacked.parameters.values(), strict=True):
        parameter.grad = both.grad[0].clone()
    for learner in (stacked, alone):
        learner.clip(2.0)
    for parameter, both in zip(alone.parameters.values(), stacked.parameters.values(), strict=True):
        value = 1.0 if both.dim() == 3 else 0.0
        torch.testing.assert_close(parameter.grad, torch.full_like(parameter, value))
        torch.testing.assert_close(both.grad[0], torch.full_like(parameter, value))
        torch.testing.assert_close(both.grad[1], torch.full_like(parameter, 0.1 * value))


def test_gradients_of_single_numbers_are_clipped_too():
    class Number(nn.Module):
        def __init__(self):
            super().__init__()
            self.value = nn.Parameter(torch.tensor(1.0))

    fabric = Setup(output=None).fabric()
    tasks = [Lines().build(Config(), "linear", seed, fabric.device) for seed in (0, 1)]
    for task in tasks:
        task.model = Number()
    stacked = Stacked(tasks, fabric)
    stacked.parameters["value"].grad = torch.tensor([5.0, 0.5])
    stacked.clip(2.0)
    torch.testing.assert_close(stacked.parameters["value"].grad, torch.tensor([2.0, 0.5]))


def test_the_record_says_which_loop_was_used(tmp_path):
    assert run("--variants", "program", "--loop", "stacked", "--output", tmp_path) == 0
    assert run("--variants", "program", "--loop", "plain", "--output", tmp_path / "plain") == 0
    for seed in (0, 1):
        stacked, alone = outcome(tmp_path, "program", seed), outcome(tmp_path / "plain", "program", seed)
        assert (stacked["loop"], alone["loop"]) == ("stacked", "plain")
        assert stacked["parameters"] == alone["parameters"]
        assert stacked["metrics"] == pytest.approx(alone["metrics"], rel=1e-4)
        assert stacked["observations"]["first"][0] == pytest.approx(alone["observations"]["first"][0], rel=1e-3)


def test_the_loss_is_the_mean_since_the_last_evaluation():
    fabric = Setup(output=None).fabric()
    task = Lines().build(Config(steps=25), "linear", 0, fabric.device)
    losses, modes, whole = [], [], task.loss

    def loss(model, batch):
        modes.append((model.training, torch.is_grad_enabled()))
        losses.append(whole(model, batch))
        return losses[-1]

    task.loss = loss
    learner = Single(task, fabric)
    context = Context(Config(steps=25), "linear", (0,), fabric)
    Training(context, [task], learner, Stepper(learner, [task], fabric)).run()
    means = [torch.stack(losses[first:last]).double().mean().item() for first, last in ((0, 10), (10, 20), (20, 25))]
    assert [entry["loss"] for entry in context.runs[0].history] == pytest.approx(means, rel=1e-12)
    assert set(modes) == {(True, True)}


def test_evaluations_are_in_eval_mode_without_gradients():
    fabric = Setup(output=None).fabric()
    task = Lines().build(Config(steps=12), "linear", 0, fabric.device)
    modes = []
    task.evaluate = lambda model: modes.append((model.training, torch.is_grad_enabled())) or {}
    learner = Single(task, fabric)
    Training(Context(None, "linear", (0,), fabric), [task], learner, Stepper(learner, [task], fabric)).run()
    assert modes == [(False, False)] * 2


def test_a_loss_that_is_not_finite_ends_the_run_and_names_the_step():
    with pytest.raises(TrainingError, match="the training loss is nan at step 10"):
        trained(Stepper, False, "diverging", seeds=(0,))


def test_one_seed_of_a_stack_may_diverge_alone(tmp_path, capsys, monkeypatch):
    whole = Lines.build

    def build(self, config, variant, seed, device):
        task = whole(self, config, variant, seed, device)
        if seed == 0:
            nn.init.constant_(task.model.bias, math.inf)
        return task

    assert run("--variants", "linear", "--seeds", "1", "--output", tmp_path / "alone") == 0
    monkeypatch.setattr(Lines, "build", build)
    assert run("--variants", "linear", "--seeds", "0,1", "--loop", "stacked", "--output", tmp_path) == 1
    assert "linear seed 0 failed: the training loss is not finite at step 10" in capsys.readouterr().out
    assert outcome(tmp_path, seed=1)["metrics"] == pytest.approx(
        outcome(tmp_path / "alone", seed=1)["metrics"], rel=1e-4
    )
    assert not (tmp_path / "lines" / "best" / "linear" / "seed0.json").exists()


def test_progress_is_reported(monkeypatch):
    monkeypatch.setattr("neurocoder.lab.train.context.REPORT_EVERY", -1.0)
    fabric = Setup(output=None).fabric()
    task = Lines().build(Config(steps=12), "linear", 0, fabric.device)
    learner, seen = Single(task, fabric), []
    context = Context(None, "linear", (0,), fabric, guard=Guard(report=lambda *progress: seen.append(progress)))
    Training(context, [task], learner, Stepper(learner, [task], fabric)).run()
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
    fabric = Setup(output=None).fabric()
    for kind in (Stepper, GraphStepper):
        task = Lines().build(Config(), "linear", 0, fabric.device)

        def optimiser(parameters, rate):
            groups = [{"params": [entry], "lr": rate * (0.1 if name == "bias" else 1)} for name, entry in parameters]
            return torch.optim.SGD(groups, fused=True)

        task.optimiser = optimiser
        learner = Single(task, fabric)
        stepper = kind(learner, [task], fabric)
        for step in range(2):
            stepper.step()
            rates = [float(group["lr"]) for group in stepper.optimiser.param_groups]
            assert rates == pytest.approx([0.02 * (1 - step / 40), 0.002 * (1 - step / 40)])


def test_stacked_seeds_refuse_a_loss_with_tensors_of_its_own():
    fabric = Setup(output=None).fabric()
    tasks = [Lines().build(Config(), "linear", seed, fabric.device) for seed in (0, 1)]
    for task in tasks:
        anchor = task.model.weight.detach().clone()
        task.loss = lambda model, batch, anchor=anchor: (model.weight - anchor).square().sum()
    with pytest.raises(TrainingError, match="loss holds tensors"):
        Stacked(tasks, fabric)


def test_the_place_of_torchs_generators_is_not_overwritten():
    context = Context(None, "linear", (0,), Setup(output=None).fabric())
    with pytest.raises(ValueError, match="save must not be given 'generators'"):
        context.save(generators=1)


@pytest.mark.parametrize("kind", [Stepper, GraphStepper])
def test_a_stepper_is_freed_at_once(kind):
    """A graph's memory is freed with its stepper, before the next run needs it."""
    fabric = Setup(output=None).fabric()
    tasks = [Lines().build(Config(), "program", 0, fabric.device)]
    stepper = kind(Single(tasks[0], fabric), tasks, fabric)
    stepper.step()
    alive = weakref.ref(stepper)
    gc.disable()
    try:
        del stepper
        assert alive() is None
    finally:
        gc.enable()
