"""What a visit is: a step that used a slot, however many inputs did, or each input; and slots that freeze too early."""

import copy
import json
import warnings
from pathlib import Path

import pytest
import torch
from growing_helpers import copied, fill, small, unit_rows
from torch import nn

import neurocoder as nc
from neurocoder.growing import GrowingConfig, GrowingLinear, grow

SAVED = Path(__file__).parents[1] / "golden" / "saved" / "growing-residual-true-linear"


def by_hand(**changes):
    """A layer whose control is two numbers, so that cosines are known."""
    config = small(slots=4, top_k=2, rank=1, max_similarity=0.9, residual=False, count="steps", **changes)
    layer = fill(GrowingLinear(3, 2, False, config, control_dim=2, dtype=torch.float64), 2)
    with torch.no_grad():
        layer.memory.keys[:2] = unit_rows([1, 0], [0, 1], dtype=torch.float64)
        layer.memory.visits.zero_()
    return layer


@pytest.mark.parametrize("repeat", [1, 7])
def test_a_step_counts_once_however_large_its_batch(repeat):
    layer = by_hand(sharpness=50.0)
    optimiser = torch.optim.SGD(layer.parameters(), 0.1)
    grow(layer, optimiser)
    old = copied(layer)
    z = torch.tensor([[1.0, 0.0]], dtype=torch.float64).repeat(repeat, 1)
    x = torch.ones(repeat, 3, dtype=torch.float64)
    layer(x, z).sum(1).mean().backward()
    gradient = layer.memory.V.grad.clone()
    optimiser.step()
    torch.testing.assert_close(layer.memory.visits, torch.tensor([1.0, 0, 0, 0], dtype=torch.float64))
    # One visit at c = 2: the step is scaled by 1 / (1 + 1/2).
    expected = old["memory.V"][0] - 0.1 * gradient[0] / 1.5
    torch.testing.assert_close(layer.memory.V[0], expected)


def test_less_than_one_input_counts_as_a_part():
    layer = by_hand()
    optimiser = torch.optim.SGD(layer.parameters(), 0.1)
    grow(layer, optimiser)
    z = torch.tensor([[1.0, 1.0]], dtype=torch.float64)  # as near to one key as to the other
    layer(torch.ones(1, 3, dtype=torch.float64), z).sum().backward()
    optimiser.step()
    torch.testing.assert_close(layer.memory.visits, torch.tensor([0.5, 0.5, 0, 0], dtype=torch.float64))


@pytest.mark.parametrize("count", ["steps", "inputs"])
def test_momentum_moves_only_slots_that_are_used_where_steps_count(count):
    layer = by_hand(sharpness=50.0)
    layer.config = layer.memory.config = (
        copy.replace(layer.config, count=count)
        if hasattr(copy, "replace")
        else (GrowingConfig.from_dict(layer.config.to_dict() | {"count": count}))
    )
    optimiser = torch.optim.Adam(layer.parameters(), 0.1)
    grow(layer, optimiser)
    x, (first, second) = torch.ones(1, 3, dtype=torch.float64), torch.eye(2, dtype=torch.float64).split(1)
    for z in (first, second):
        kept = copied(layer)
        optimiser.zero_grad()
        layer(x, z).sum().backward()
        optimiser.step()
    assert not torch.equal(layer.memory.V[1], kept["memory.V"][1])
    assert torch.equal(layer.memory.V[0], kept["memory.V"][0]) is (count == "steps")


def test_what_was_saved_before_there_was_a_choice_counts_inputs():
    saved = json.loads((SAVED / "neurocoder.json").read_text())["layers"]["0"]["config"]
    assert "count" not in saved
    assert GrowingConfig.from_dict(saved).count == "inputs"
    assert GrowingConfig.from_dict({}) == GrowingConfig(count="inputs", consolidation=30.0)
    for config in (GrowingConfig(), GrowingConfig(count="inputs")):
        assert GrowingConfig.from_dict(config.to_dict()) == config


TASKS, NOISE = 4, 0.25


def learned(layer, rate, batch, steps=150):
    """Mean squared errors of four linear tasks just after each was learned, and of the first after the last."""
    generator = torch.Generator().manual_seed(0)
    codes = torch.linalg.qr(torch.randn(TASKS, TASKS, generator=generator))[0]
    matrices = torch.randn(TASKS, 8, 4, generator=generator)
    optimiser = torch.optim.Adam(layer.parameters(), rate)
    if isinstance(layer, GrowingLinear):
        grow(layer, optimiser)

    def outputs(index, count):
        x = torch.randn(count, 8, generator=generator)
        goal = x @ matrices[index] + NOISE * torch.randn(count, 4, generator=generator)
        y = layer(x, codes[index].expand(count, -1)) if isinstance(layer, GrowingLinear) else layer(x)
        return (y - goal).square().mean()

    @torch.no_grad()
    def error(index):
        return outputs(index, 2000).item()

    just = []
    for index in range(TASKS):
        for _ in range(steps):
            optimiser.zero_grad()
            outputs(index, batch).backward()
            optimiser.step()
        just.append(error(index))
    return just, error(0)


def growing(**changes):
    torch.manual_seed(0)
    config = GrowingConfig(slots=16, residual=False, **changes)
    return GrowingLinear(8, 4, False, config, control_dim=TASKS)


def test_tasks_in_sequence_are_learned_and_kept_alike_at_any_batch_size():
    """At the defaults; `results/sweeps/growing.py` has the whole table."""
    found = {}
    for batch in (4, 256):
        just, last = learned(growing(), 0.02, batch, steps=400)
        plain, _ = learned(nn.Linear(8, 4, bias=False), 0.03, batch, steps=400)
        assert all(ours < 2 * theirs for ours, theirs in zip(just, plain, strict=True)), (batch, just, plain)
        assert last < 1.2 * just[0], (batch, just, last)
        found[batch] = sum(just) / TASKS
    assert max(found.values()) < 1.2 * min(found.values()), found


def test_slots_that_freeze_while_they_would_learn_are_announced_once():
    with pytest.warns(UserWarning, match=r"'': most slots in use are frozen, .* than 30, which counts inputs") as said:
        just, _ = learned(growing(count="inputs", consolidation=30.0), 0.02, 256)
    assert len(said) == 1
    assert just[0] > 1.0  # for less, it would be no harm


@pytest.mark.parametrize("changes", [{}, {"consolidation": 8.0}])
def test_slots_that_have_learned_freeze_in_silence(changes):
    """With 8, steps are scaled by less than a tenth from step 72 on, when little is left to learn."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        learned(growing(**changes), 0.05, 16)


@pytest.mark.parametrize("missing", ["keys", "written", "visits"])
def test_slots_without_their_keys_do_not_load(missing):
    """As where someone saves what requires gradients: keys are buffers."""
    layer = by_hand()
    part = {name: tensor for name, tensor in layer.state_dict().items() if name != f"memory.{missing}"}
    with pytest.raises(RuntimeError, match=rf"memory\.{missing} missing: .* save all tensors of the layer"):
        by_hand().load_state_dict(part, strict=False)


def test_tensors_saved_by_requires_grad_do_not_load_and_other_layers_do():
    model = nc.recode(nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2)), "1", GrowingConfig(slots=4))
    trained = {name: parameter.detach() for name, parameter in model.named_parameters() if parameter.requires_grad}
    with pytest.raises(RuntimeError, match=r"1\.memory\.keys, .* missing: no input finds a slot without its key"):
        copy.deepcopy(model).load_state_dict(trained, strict=False)
    others = {name: tensor for name, tensor in trained.items() if ".memory." not in name}
    assert not model.load_state_dict(others, strict=False).unexpected_keys
