"""The digits experiment: configurations, models, data and what a run does."""

import copy
import json

import pytest
import torch
from torch.func import functional_call, grad, stack_module_state, vmap
from torch.nn.functional import cross_entropy

import neurocoder as nc
from neurocoder.lab.data import mnist
from neurocoder.lab.experiments.digits import experiment as digits
from neurocoder.lab.experiments.digits.experiment import Digits, DigitsConfig, ShuffledDigits
from neurocoder.lab.experiments.digits.models import BEST, CONTROLS, LIMIT, PROGRAMS, VARIANTS, build_model, title

CPU = torch.device("cpu")
SMALL = DigitsConfig(epochs=1, batch=50, train_images=500)


def build(variant="J2", seed=0, config=SMALL):
    return Digits().build(config, variant, seed, CPU)


def test_presets_follow_the_paper_where_it_says_anything():
    paper = Digits.presets["paper"]
    assert (paper.optimiser, paper.batch, paper.decay, paper.validation) == ("sgd", 32, "none", False)
    assert set(Digits.presets) == set(Digits.seeds) == {"quick", "paper", "best", "small", "smoke"}
    assert all(config.train_images is None for name, config in Digits.presets.items() if name != "smoke")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"epochs": 0}, "epochs must be a whole number >= 1, got 0"),
        ({"batch": 2.5}, "batch must be a whole number >= 1, got 2.5"),
        ({"train_images": -1}, "train_images must be a whole number >= 1, got -1"),
        ({"train_images": 60_001}, "train_images must be at most 60000, got 60001"),
        ({"train_images": 50_001, "validation": True}, "train_images must be at most 50000, got 50001"),
        ({"train_images": 100, "batch": 101}, r"batch must be at most the training images \(100\), got 101"),
        ({"optimiser": "lamb"}, "optimiser must be 'adam' or 'sgd', got 'lamb'"),
        ({"decay": "linear"}, "decay must be 'cosine' or 'none', got 'linear'"),
        ({"learning_rate": 0.0}, "learning_rate must be a finite number > 0, got 0.0"),
        ({"learning_rate": float("nan")}, "learning_rate must be a finite number > 0, got nan"),
    ],
)
def test_bad_configurations_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        DigitsConfig(**changes)


def test_unknown_variant_is_refused():
    with pytest.raises(ValueError, match=r"variant must be one of linear, mlp, J1, .*; got 'J9'"):
        build("J9")


@pytest.mark.parametrize(
    ("variant", "parameters"),
    [
        ("linear", 7850),
        ("mlp", 6762),
        ("J1", 8352),
        ("J5", 8608),
        ("J8", 8608),
        ("P6-H3-J5", 7176),
        ("P6-H3-J1", 7032),
        ("P6-H1-J5", 7720),
        ("P10-H2-J5", 7100),
    ],
)
def test_sizes_are_the_stated_ones(variant, parameters):
    assert nc.count_parameters(build_model(variant))["total"] == parameters


@pytest.mark.parametrize(("control", "variant"), CONTROLS.items())
def test_a_control_has_one_program_for_all_images_and_the_parameters_of_its_variant(control, variant):
    model, images = build_model(control), torch.randn(4, 784)
    with nc.record(model) as trace:
        model(images)
    assert trace["layer.layer"].sigma.squeeze().shape == (5 * PROGRAMS[variant].heads,)
    assert nc.count_parameters(model)["total"] == nc.count_parameters(build_model(variant))["total"]
    own = build_model(variant)
    with nc.record(own) as trace:
        own(images)
    assert trace["layer"].sigma.shape == (4, 5 * PROGRAMS[variant].heads)
    assert not torch.equal(trace["layer"].sigma[0], trace["layer"].sigma[1])


def test_every_variant_classifies_and_has_a_title():
    for variant in VARIANTS:
        assert build_model(variant)(torch.randn(3, 784)).shape == (3, 10)
    assert len({title(variant) for variant in VARIANTS}) == len(VARIANTS)
    assert nc.count_parameters(build_model(BEST))["total"] <= LIMIT
    assert PROGRAMS[BEST].steps == 5


def test_a_block_is_an_epoch_in_an_order_of_seed_and_number():
    x, y = torch.arange(10.0).view(10, 1), torch.arange(10)
    stream = ShuffledDigits(x, y, batch=3, seed=4)
    place = stream.order.data_ptr()

    def block(number, stream=stream):
        stream.fill(number)
        batches = [stream.batch(torch.tensor(step)) for step in range(stream.steps)]
        for images, labels in batches:
            assert torch.equal(images.view(-1).long(), labels)
        return torch.cat([labels for _, labels in batches]).tolist()

    first, second = block(0), block(1)
    assert stream.steps == 3  # the tenth image is left out
    assert len(set(first)) == len(set(second)) == 9
    assert first != second
    assert block(0) == first
    assert stream.order.data_ptr() == place
    assert block(0, ShuffledDigits(x, y, batch=3, seed=4)) == first
    assert block(0, ShuffledDigits(x, y, batch=3, seed=5)) != first


def test_the_same_arguments_give_the_same_task_and_leave_torchs_generator_alone():
    first = build("P6-H3-J5", seed=3).model
    torch.rand(5)
    before = torch.get_rng_state()
    second = build("P6-H3-J5", seed=3).model
    assert torch.equal(torch.get_rng_state(), before)
    for name, tensor in first.state_dict().items():
        assert torch.equal(tensor, second.state_dict()[name]), name
    other = build("P6-H3-J5", seed=4).model
    assert not torch.equal(first.projection, other.projection)
    assert not torch.equal(first.layer.memory.U, other.layer.memory.U)


def test_variants_of_a_seed_share_the_projection():
    assert torch.equal(build("J1").model.projection, build("mlp").model.projection)


def test_validation_holds_out_training_images_and_never_reads_the_test_set(monkeypatch):
    asked = []

    def load(train):
        asked.append(train)
        labels = torch.arange(60_000) // 10_000  # the last 10,000 images are of class 5
        return mnist.Digits(torch.zeros(60_000, 1, 1, dtype=torch.uint8), labels)

    class Always(torch.nn.Module):
        def forward(self, x):
            return torch.nn.functional.one_hot(torch.full((len(x),), 5), 10).float()

    digits._on_device.cache_clear()
    monkeypatch.setattr(mnist, "load", load)
    try:
        task = build("linear", config=DigitsConfig(validation=True))
    finally:
        digits._on_device.cache_clear()
    assert asked == [True]
    assert len(task.stream.y) == 50_000
    assert task.evaluate(Always()) == pytest.approx({"error": 0.0, "train_error": 100.0})


def test_another_data_root_is_read_anew(monkeypatch, tmp_path):
    build("linear")
    monkeypatch.setenv("NEUROCODER_DATA", str(tmp_path))
    with pytest.raises(FileNotFoundError, match="there is no MNIST in"):
        build("linear")


def test_schedules():
    task = build(config=DigitsConfig(epochs=2, batch=50, train_images=500))
    assert task.steps == 20
    assert task.evaluate_every == 10
    rates = [task.schedule(step) for step in range(task.steps)]
    assert rates[0] == 1
    assert rates[10] == pytest.approx(0.5)
    assert 0 < rates[-1] < 0.01
    assert rates == sorted(rates, reverse=True)
    constant = build(config=DigitsConfig(decay="none", train_images=500)).schedule
    assert {constant(step) for step in range(20)} == {1.0}


@pytest.mark.parametrize(("optimiser", "kind"), [("adam", torch.optim.Adam), ("sgd", torch.optim.SGD)])
def test_optimisers_take_the_learning_rate_as_a_number_or_a_tensor(optimiser, kind):
    task = build(config=DigitsConfig(optimiser=optimiser, train_images=500))
    for rate in (0.25, torch.tensor(0.25)):
        parameter = torch.nn.Parameter(torch.ones(1))
        chosen = task.optimiser([parameter], rate)
        assert type(chosen) is kind
        parameter.grad = torch.ones(1)
        chosen.step()
        assert parameter.item() == pytest.approx(0.75)


class Objective(torch.nn.Module):
    """Lets `functional_call` exchange the parameters that a loss reads."""

    def __init__(self, model, loss):
        super().__init__()
        self.model, self.loss = model, loss

    def forward(self, x, y):
        return self.loss(self.model, (x, y))


@pytest.mark.parametrize("variant", ["linear", "mlp", "J2"])
def test_loss_and_gradients_of_stacked_seeds_are_those_of_each(variant):
    tasks = [build(variant, seed) for seed in range(3)]
    for task in tasks:
        for parameter in task.model.parameters():  # off the orthonormal start, where L_o has a kink
            parameter.data.add_(torch.randn_like(parameter), alpha=0.05)
    task = tasks[0]
    task.stream.fill(0)
    batch = task.stream.batch(torch.tensor(1))
    parameters, buffers = stack_module_state([task.model for task in tasks])
    base = Objective(copy.deepcopy(task.model).to("meta"), task.loss)

    def loss(parameters, buffers):
        tensors = {f"model.{name}": tensor for name, tensor in (parameters | buffers).items()}
        return functional_call(base, tensors, batch)

    losses = vmap(loss)(parameters, buffers)
    gradients = vmap(grad(loss))(parameters, buffers)
    for index, task in enumerate(tasks):
        expected = task.loss(task.model, batch)
        torch.testing.assert_close(losses[index], expected)
        expected.backward()
        for name, parameter in task.model.named_parameters():
            torch.testing.assert_close(gradients[name][index], parameter.grad, rtol=1e-4, atol=1e-6)


def test_loss_is_cross_entropy_plus_the_auxiliary_loss():
    task = build("J2")
    with torch.no_grad():
        task.model.layer.memory.U.mul_(2)
    x, y = task.stream.x[:20], task.stream.y[:20]
    extra = task.loss(task.model, (x, y)) - cross_entropy(task.model(x), y)
    torch.testing.assert_close(extra, nc.auxiliary_loss(task.model))
    assert extra > 0.1


def train(task):
    optimiser = task.optimiser(task.model.parameters(), task.learning_rate)
    for step in range(task.steps):
        block, place = divmod(step, task.stream.steps)
        if place == 0:
            task.stream.fill(block)
        optimiser.param_groups[0]["lr"] = task.learning_rate * task.schedule(step)
        optimiser.zero_grad()
        task.loss(task.model, task.stream.batch(torch.tensor(place))).backward()
        optimiser.step()


def test_a_short_run_learns_and_is_observed():
    task = build("P6-H3-J1", config=DigitsConfig(epochs=1, batch=64, train_images=8_000, learning_rate=2e-2))
    with torch.no_grad():
        before = task.evaluate(task.model)
    train(task)
    with torch.no_grad():
        after, seen = task.evaluate(task.model), task.observe(task.model)
    assert before["error"] > 70
    assert after["error"] < 40
    assert after["train_error"] < 40
    assert json.loads(json.dumps(seen)) == seen
    assert torch.tensor(seen["mean"]).shape == (10, 3, 6)
    assert torch.tensor(seen["paths"]).sum(1).tolist() == mnist.load(False).labels.bincount().tolist()
    assert len(seen["components"]) == 3
    assert seen["bits"] > 0.3


def test_plain_models_have_nothing_to_observe():
    task = build("mlp")
    assert task.observe(task.model) == {}
