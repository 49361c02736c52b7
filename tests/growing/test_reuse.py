"""At `max_slots`, new inputs overwrite slots of little use if the configuration lets them."""

import copy
import warnings

import pytest
import torch
from growing_helpers import copied, small, unit_rows
from torch import nn

from neurocoder.growing import GrowingLinear, grow, reference

OPTIMISERS = {
    "momentum": lambda p: torch.optim.SGD(p, 0.05, momentum=0.9),
    "adam": lambda p: torch.optim.Adam(p, 0.05),
    "adagrad": lambda p: torch.optim.Adagrad(p, 0.05, initial_accumulator_value=0.5),
    "rprop": lambda p: torch.optim.Rprop(p, 0.05),
}
STARTS = {"sum": 0.5, "step_size": 0.05}
"""What their states start from, if not from zero."""


def full(visits, born, steps=10, **changes):
    """A full memory of four slots whose keys are the axes; the control is given, so that cosines are known."""
    fields = {"slots": 4, "max_slots": 4, "top_k": 1, "rank": 1, "residual": False, "reuse_below": 3.0}
    layer = GrowingLinear(3, 2, False, small(**(fields | changes)), control_dim=5, dtype=torch.float64)
    memory = layer.memory
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.normal_()
        memory.keys.copy_(torch.eye(4, 5))
        memory.visits.copy_(torch.tensor(visits))
        memory.born.copy_(torch.tensor(born))
        memory.written.fill_(4)
        memory.steps.fill_(steps)
    return layer


def step(layer, optimiser, *controls):
    z = torch.tensor(controls, dtype=torch.float64)
    optimiser.zero_grad()
    layer(torch.ones(len(z), 3, dtype=torch.float64), z).square().sum().backward()
    optimiser.step()


NEW = [-1.0, -1.0, -1.0, -0.5, 3.0]
"""Slot 3 is the nearest, at a cosine of -0.14, and gets the visit."""


@pytest.mark.filterwarnings("ignore:growing layer '' is full")
@pytest.mark.parametrize(
    ("visits", "born", "overwritten"),
    [
        ([5.0, 2.0, 1.0, 9.0], [0, 0, 0, 0], 2),  # the fewest visits
        ([5.0, 1.0, 1.0, 9.0], [0, 0, 0, 0], 1),  # the first of equal ones
        ([5.0, 2.0, 1.0, 9.0], [0, 0, 8, 0], 1),  # slot 2 is two steps old: it has not had its three
        ([5.0, 2.0, 1.0, 9.0], [0, 8, 7, 0], 2),  # now it has
        ([5.0, 2.0, 1.0, 9.0], [9, 9, 9, 9], None),  # all are new
        ([5.0, 3.0, 4.0, 9.0], [0, 0, 0, 0], None),  # all have their visits
    ],
)
def test_the_least_useful_slot_is_overwritten_by_hand(visits, born, overwritten):
    layer = full(visits, born)
    memory, before = layer.memory, copied(layer)
    optimiser = torch.optim.Adagrad(layer.parameters(), 0.1, initial_accumulator_value=0.5)
    grow(layer, optimiser)
    step(layer, optimiser, NEW)
    for i in range(4):
        if i != overwritten:
            assert torch.equal(memory.keys[i], before["memory.keys"][i])
            assert int(memory.born[i]) == born[i]
            assert float(memory.visits[i]) == pytest.approx(visits[i] + (i == 3))
            continue
        torch.testing.assert_close(memory.keys[i], unit_rows(NEW, dtype=torch.float64)[0])
        assert int(memory.born[i]) == 10
        assert float(memory.visits[i]) == 0
        assert memory.V[i].count_nonzero() == 0
        assert memory.U[i].count_nonzero() == 3
        for bank in (memory.U, memory.V):
            assert (optimiser.state[bank]["sum"][i] == 0.5).all()
    assert (optimiser.state[memory.V]["sum"][3] > 0.5).all()
    assert int(memory.written) == 4
    assert int(memory.steps) == 11


@pytest.mark.filterwarnings("ignore:growing layer '' is full")
def test_two_new_inputs_overwrite_two_slots_and_alike_ones_one():
    axis, other = [0.0, 0.0, 0.0, 0.1, 1.0], [-1.0, -1.0, -1.0, -0.5, 0.0]
    for controls, rewritten in (([axis, other], [True, True]), ([axis, [0.0, 0.0, 0.0, 0.11, 1.0]], [True, False])):
        layer = full([5.0, 2.0, 1.0, 9.0], [0, 0, 0, 0], writes=2)
        optimiser = torch.optim.SGD(layer.parameters(), 0.1)
        grow(layer, optimiser)
        step(layer, optimiser, *controls)
        assert (layer.memory.born == 10).tolist() == [False, rewritten[1], rewritten[0], False]


@pytest.mark.filterwarnings("ignore:growing layer '' is full")
@pytest.mark.parametrize("writes", [1, 3])
@pytest.mark.parametrize("name", OPTIMISERS)
def test_training_is_the_references(name, writes):
    config = small(
        slots=5, max_slots=5, writes=writes, max_similarity=0.95, residual=False, reuse_below=2.0, sharpness=20.0
    )
    layer = GrowingLinear(5, 3, False, config, dtype=torch.float64)
    twin = copy.deepcopy(layer)
    optimiser = OPTIMISERS[name](layer.parameters())
    grow(layer, optimiser)
    banks = list(twin.memory.parameters())
    loose = [bank.detach().clone().requires_grad_() for bank in banks]
    plain = OPTIMISERS[name](loose)
    reused = 0
    for _ in range(25):
        x, goal = torch.randn(2, 5, dtype=torch.float64), torch.randn(2, 3, dtype=torch.float64)
        optimiser.zero_grad()
        (layer(x) - goal).square().sum().backward()
        optimiser.step()
        before = copied(twin)
        state = {**before, "memory.U": loose[0], "memory.V": loose[1]}
        plain.zero_grad()
        (reference.linear(state, config, x) - goal).square().sum().backward()
        plain.step()
        after = {**before, "memory.U": loose[0].detach(), "memory.V": loose[1].detach()}
        settled = reference.settle(before, after, config, [reference.control_of(row) for row in x])
        twin.load_state_dict(settled)
        is_reused = (settled["memory.born"] != before["memory.born"]) & (torch.arange(5) < before["memory.written"])
        reused += int(is_reused.sum())
        with torch.no_grad():
            for bank, value in zip(loose, banks, strict=True):
                bank.copy_(value)
                for key, entry in plain.state[bank].items():
                    if entry.dim():
                        entry[is_reused] = STARTS.get(key, 0.0)
        for key, value in layer.state_dict().items():
            torch.testing.assert_close(value, settled[key], rtol=1e-8, atol=1e-8, msg=lambda m, k=key: f"{k}: {m}")
    assert reused > 4


def test_slots_are_reused_only_at_max_slots_and_once_is_enough_to_say_so():
    layer = full([5.0, 2.0, 1.0, 9.0], [0, 0, 0, 0], max_slots=5, growth=1.1)
    optimiser = torch.optim.SGD(layer.parameters(), 0.1)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        grow(layer, optimiser)
        step(layer, optimiser, NEW)  # no slot was free, but one could still be made
        assert layer.memory.capacity == 5
        assert not (layer.memory.born == 10).any()
        for _ in range(3):
            step(layer, optimiser, [-1.0, -1.0, -1.0, -0.5, 0.0])
    assert int(layer.memory.written) == 5
    said = [str(one.message) for one in caught]
    assert len(said) == 1
    assert "which is max_slots. New inputs overwrite slots of little use, or use the nearest" in said[0]


def test_an_optimiser_whose_state_cannot_be_restarted_is_refused():
    layer = GrowingLinear(7, 3, growing=small(max_slots=6, reuse_below=1.0))
    optimiser = torch.optim.Adafactor(layer.parameters(), 0.01)
    grow(layer, optimiser)
    nn.functional.mse_loss(layer(torch.randn(4, 7)), torch.zeros(4, 3)).backward()
    with pytest.raises(ValueError, match=r"reuse_below to 0"):
        optimiser.step()
