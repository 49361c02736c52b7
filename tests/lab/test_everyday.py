"""Many networks trained as one are what a plain loop trains, one by one; and how cells are judged."""

import copy
import math

import pytest
import torch

import neurocoder as nc
from neurocoder.lab.experiments.everyday import models, report
from neurocoder.lab.experiments.everyday.edges import EDGES, edge
from neurocoder.lab.experiments.everyday.experiment import evaluate, rates
from neurocoder.lab.experiments.everyday.stacked import OPTIMISERS, Stack
from neurocoder.lab.experiments.everyday.tasks import TASKS, Data, Task, errors, load

TORCH = {
    "sgd": torch.optim.SGD,
    "momentum": lambda p, lr: torch.optim.SGD(p, lr=lr, momentum=0.9),
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "adagrad": torch.optim.Adagrad,
}


def regression():
    """A task of 30 samples with three outputs, in float64."""
    generator = torch.Generator().manual_seed(3)
    x, y = (torch.randn(50, width, generator=generator).double() for width in (6, 3))
    return Task("", lambda n, g: (x, y), 30, (17,), "tanh"), Data(x[:30], y[:30], x[30:], y[30:])


@pytest.mark.parametrize("contender", ["plain", "core", "gate", "paper", "normalised"])
def test_a_stack_learns_what_each_of_its_networks_learns_alone(contender):
    task, data = regression()
    torch.manual_seed(0)
    start = models.Loss(models.build(contender, task, data)).double()
    cells = [(name, rate) for name in OPTIMISERS for rate in (1e-3, 1e-2)]
    stack = Stack(start, cells)
    alone = [copy.deepcopy(start) for _ in cells]
    optimisers = [TORCH[name](model.parameters(), lr=rate) for (name, rate), model in zip(cells, alone, strict=True)]
    for step in range(5):
        rows = torch.arange(step, 30, 3)
        losses = stack.train(data.x[rows], data.y[rows])
        for index, (model, optimiser) in enumerate(zip(alone, optimisers, strict=True)):
            loss = model(data.x[rows], data.y[rows])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            torch.testing.assert_close(losses[index], loss.detach(), rtol=1e-6, atol=1e-9)
    for name, stacked in stack.parameters.items():
        expected = torch.stack([model.get_parameter(name) for model in alone])
        torch.testing.assert_close(stacked, expected, rtol=1e-6, atol=1e-9)
    variance = data.test_y.var(0, correction=0).mean()
    expected = [(m.model(data.test_x) - data.test_y).square().mean() / variance for m in alone]
    torch.testing.assert_close(evaluate(stack, data), torch.stack(expected).detach(), rtol=1e-6, atol=0)


def test_a_network_that_diverges_does_not_touch_the_others():
    task, data = regression()
    torch.manual_seed(0)
    model = models.Loss(models.build("plain", task, data)).double()
    both, alone = Stack(model, [("sgd", 1e-2), ("sgd", 1e9)]), Stack(model, [("sgd", 1e-2)])
    for _ in range(40):
        losses = both.train(data.x, data.y)
        expected = alone.train(data.x, data.y)
    assert not losses[1].isfinite()
    torch.testing.assert_close(losses[:1], expected)
    assert evaluate(both, data)[1] == 10


def test_errors_by_hand():
    outputs = torch.tensor([[[1.0, 0.0], [0.0, 1.0]], [[1.0, 0.0], [1.0, 0.0]], [[math.nan, 0.0], [0.0, 1.0]]])
    assert errors(outputs, torch.tensor([0, 1])).tolist() == [0, 0.5, 0.5]
    values = torch.tensor([[[1.0], [3.0]], [[2.0], [2.0]], [[1e9], [3.0]]])
    assert errors(values, torch.tensor([[1.0], [3.0]])).tolist() == [0, 1, 10]


def test_every_task_has_data_and_networks_of_the_sizes_compared():
    assert len(TASKS) == 20
    assert TASKS.keys() == EDGES.keys()
    for name, task in TASKS.items():
        data = load(name, validation=False)
        assert (len(data.x), len(data.test_x)) == (task.samples, 1_000)
        assert len(load(name, validation=True).x) == task.samples - task.samples // 5
        with torch.random.fork_rng():
            sizes = {
                contender: models.count(models.build(contender, task, data))
                for contender in ("plain", "core", "gate", "wide", "paper", "wider")
            }
        assert sizes["plain"] <= sizes["gate"] <= sizes["core"]
        assert abs(sizes["wide"] / sizes["core"] - 1) < 0.035
        assert abs(sizes["wider"] / sizes["paper"] - 1) < 0.035


def test_contenders_start_as_the_plain_network_does():
    data = load("clusters", validation=False)
    outputs = []
    for contender in ("plain", "noise", "core", "gate", "paper", "normalised"):
        torch.manual_seed(1)
        outputs.append(models.build(contender, TASKS["clusters"], data)(data.x[:9]))
    for found in outputs[1:]:
        torch.testing.assert_close(found, outputs[0], rtol=1e-4, atol=1e-5)


def test_the_gate_alone_is_a_core_layer_without_programs():
    core = nc.CoreLinear(3, 16, core=nc.CoreConfig())
    assert core.memory is None
    plain = torch.nn.Linear(3, 16)
    gated = models.GatedLinear(plain)
    torch.nn.init.normal_(gated.w)
    state = {"R": plain.weight, "bias": plain.bias, "reader.gate": gated.w}
    core.load_state_dict({name: value.detach() for name, value in state.items()})
    x = torch.randn(7, 3)
    torch.testing.assert_close(gated(x), core(x))


def test_cells_are_judged_by_two_standard_errors_and_five_percent():
    def compare(ours, plain):
        found = report.Comparison("", "", ours, plain)
        return found.worse, found.better

    assert compare([1.1, 1.1], [1.0, 1.0]) == (True, False)
    assert compare([1.0, 1.0], [1.1, 1.1]) == (False, True)
    assert compare([1.04, 1.04], [1.0, 1.0]) == (False, False)  # clear, but too little
    assert compare([1.1, 2.1], [1.0, 2.0]) == (True, False)  # seeds differ more than the two of each
    assert compare([0.9, 1.5], [1.0, 1.0]) == (False, False)  # a standard error of 0.3
    assert report.Comparison("", "", [1.0, 3.0], [4.0]).ratio == 0.5


def test_core_layers_may_be_worse_twice_as_often_as_chance_or_in_a_few_cells():
    def cells(worse, count=100):
        return [report.Comparison("", "", [2.0 if n < worse else 1.0], [1.0]) for n in range(count)]

    assert report.asked(cells(5), cells(2)).endswith("so 4 of 100. They are in 5: missed.")
    assert report.asked(cells(4), cells(2)).endswith("They are in 4: met.")
    assert report.asked(cells(3), cells(0)).endswith("so 3 of 100. They are in 3: met.")


def test_the_edge_is_the_largest_rate_that_still_learns():
    found = {-3: [0.6, 1.0], -2: [0.2, 0.2], -1: [0.26, 0.26], 0: [0.9]}  # 0.2 ** 0.8 * 0.8 ** 0.2 is 0.264
    assert edge(found) == -1
    assert edge(found | {-1: [0.26, 0.28]}) == -2


def test_rates_end_at_the_edge():
    found = rates("spirals", grid=False)
    assert len(found) == 20
    low, high = found["adam edge/30"], found["adam edge"]
    assert low[0] == high[0] == "adam"
    assert high[1] / low[1] == pytest.approx(10**1.5)
    assert math.log10(high[1]) == pytest.approx(EDGES["spirals"][2])
