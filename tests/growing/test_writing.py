"""Writing slots and consolidating them around an optimiser's step."""

import copy
import gc
import warnings
import weakref

import pytest
import torch
from growing_helpers import batch, copied, fill, filled, small, unit_rows
from torch import nn

import neurocoder as nc
from neurocoder.growing import GrowingLinear, grow, reference

OPTIMISERS = {
    "sgd": lambda p: torch.optim.SGD(p, 0.1),
    "momentum and decay": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, weight_decay=0.1),
    "adam": lambda p: torch.optim.Adam(p, 0.05),
    "adamw": lambda p: torch.optim.AdamW(p, 0.05, weight_decay=0.2),
    "fused adam": lambda p: torch.optim.Adam(p, 0.05, fused=True),
    "adagrad": lambda p: torch.optim.Adagrad(p, 0.05),
}


def step(optimiser, loss):
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()


def by_hand():
    """A layer whose control is two numbers, so that cosines are known."""
    config = small(slots=4, top_k=2, rank=1, max_similarity=0.9, residual=False)
    return GrowingLinear(3, 2, False, config, control_dim=2, dtype=torch.float64)


def test_two_slots_by_hand():
    layer = by_hand()
    optimiser = torch.optim.SGD(layer.parameters(), 0.1)
    grow(layer, optimiser)
    memory, x = layer.memory, torch.ones(3, 3, dtype=torch.float64)
    start = memory.U.detach().clone()
    z = torch.tensor([[0.0, 0.0], [3.0, 4.0], [0.0, 2.0]], dtype=torch.float64)
    assert layer(x, z).count_nonzero() == 0  # nothing is written
    step(optimiser, layer(x, z).sum())
    # A zero control is never new; of the others, equally new, the first.
    assert int(memory.written) == 1
    torch.testing.assert_close(memory.keys[0], torch.tensor([0.6, 0.8], dtype=torch.float64))
    assert torch.equal(memory.U, start)
    assert memory.visits.count_nonzero() == 0
    # cos([0, 1], k_0) = 0.8: below 0.9, and below cos([3, 4], k_0) = 1.
    step(optimiser, layer(x[1:], z[1:]).sum())
    assert int(memory.written) == 2
    torch.testing.assert_close(memory.keys[:2], unit_rows([3, 4], [0, 1], dtype=torch.float64))
    assert memory.visits.tolist() == [2.0, 0.0, 0.0, 0.0]
    assert memory.born.tolist() == [0, 1, 0, 0]
    # w = softmax(3 * [1, 0.8]) for the first and softmax(3 * [0.8, 1]) for the second: together one each.
    step(optimiser, layer(x[1:], z[1:]).sum())
    assert int(memory.written) == 2
    torch.testing.assert_close(memory.visits, torch.tensor([3.0, 1.0, 0.0, 0.0], dtype=torch.float64))
    assert torch.equal(memory.U[2:], start[2:])
    assert not torch.equal(memory.U[:2], start[:2])


def test_the_step_is_scaled_by_hand():
    for name, make in OPTIMISERS.items():
        layer = fill(by_hand(), 2)
        plain = copy.deepcopy(layer)
        with torch.no_grad():
            layer.memory.visits.copy_(torch.tensor([1.0, 4.0, 0.0, 0.0]))
            layer.memory.keys[:2] = unit_rows([1, 0], [0, 1], dtype=torch.float64)
        plain.load_state_dict(layer.state_dict())
        optimiser = make(layer.parameters())
        grow(layer, optimiser)
        old = layer.memory.U.detach().clone()
        x, z = torch.ones(1, 3, dtype=torch.float64), torch.tensor([[1.0, 1.0]], dtype=torch.float64)
        step(optimiser, layer(x, z).square().sum())
        other = make(plain.parameters())
        grow(plain, other).remove()
        plain(x, z).square().sum().backward()
        with torch.no_grad():
            banks = [p.detach().clone().requires_grad_() for p in plain.parameters()]
        for bank, parameter in zip(banks, plain.parameters(), strict=True):
            bank.grad = parameter.grad
        make(banks).step()  # the same step, unscaled
        # Half a visit each: 1/(1 + 1.5/2) and 1/(1 + 4.5/2).
        scale = torch.tensor([1 / 1.75, 1 / 3.25, 0.0, 0.0], dtype=torch.float64).view(-1, 1, 1)
        moved = banks[0] - old
        assert moved[:2].abs().min() > 0, name
        torch.testing.assert_close(layer.memory.U - old, scale * moved, msg=lambda m, n=name: f"{n}: {m}")
        assert torch.equal(layer.memory.U[2:], old[2:]), name  # decay leaves free slots alone, to the bit


@pytest.mark.filterwarnings("ignore:growing layer '' is full")
@pytest.mark.parametrize("count", ["inputs", "steps"])
@pytest.mark.parametrize("writes", [1, 3])
@pytest.mark.parametrize("name", OPTIMISERS)
def test_training_is_the_references(name, writes, count):
    config = small(slots=8, max_slots=8, writes=writes, max_similarity=0.8, residual=False, count=count)
    layer = GrowingLinear(5, 3, False, config, dtype=torch.float64)
    twin = copy.deepcopy(layer)
    optimiser = OPTIMISERS[name](layer.parameters())
    grow(layer, optimiser)
    banks = list(twin.memory.parameters())
    loose = [bank.detach().clone().requires_grad_() for bank in banks]
    plain = OPTIMISERS[name](loose)
    for _ in range(6):
        x, goal = torch.randn(4, 5, dtype=torch.float64), torch.randn(4, 3, dtype=torch.float64)
        step(optimiser, (layer(x) - goal).square().sum())
        before = copied(twin)
        state = {**before, "memory.U": loose[0], "memory.V": loose[1]}
        step(plain, (reference.linear(state, config, x) - goal).square().sum())
        after = {**before, "memory.U": loose[0].detach(), "memory.V": loose[1].detach()}
        settled = reference.settle(before, after, config, [reference.control_of(row) for row in x])
        twin.load_state_dict(settled)
        with torch.no_grad():
            for bank, value in zip(loose, banks, strict=True):
                bank.copy_(value)
        for key, value in layer.state_dict().items():
            torch.testing.assert_close(value, settled[key], rtol=1e-9, atol=1e-9, msg=lambda m, k=key: f"{k}: {m}")
    assert int(layer.memory.written) > 4


def test_several_writes_are_new_beside_each_other():
    config = small(slots=4, top_k=1, writes=3, max_similarity=0.9, residual=False)
    layer = GrowingLinear(3, 2, False, config, control_dim=2)
    optimiser = torch.optim.SGD(layer.parameters(), 0.1)
    grow(layer, optimiser)
    z = torch.tensor([[1.0, 0.0], [1.0, 0.01], [0.0, 1.0]])
    step(optimiser, layer(torch.randn(3, 3), z).sum())
    assert int(layer.memory.written) == 2
    torch.testing.assert_close(layer.memory.keys[:2], unit_rows([1, 0], [0, 1]))


def test_accumulated_gradients_are_one_step():
    layer, x = filled("linear", 2), batch("linear", 8)
    twin = copy.deepcopy(layer)
    for model, parts in ((layer, [x]), (twin, x.split(2))):
        optimiser = torch.optim.Adam(model.parameters(), 0.01)
        grow(model, optimiser)
        for part in parts:
            model(part).square().sum().backward()
        optimiser.step()
        assert int(model.memory.written) == 3
        assert model.memory.notes.visits.count_nonzero() == 0
    for (name, a), b in zip(layer.state_dict().items(), twin.state_dict().values(), strict=True):
        torch.testing.assert_close(a, b, msg=lambda m, n=name: f"{n}: {m}", rtol=1e-4, atol=1e-4)


def test_a_layer_called_twice_notes_both_calls_and_a_retained_graph_notes_once():
    layer = filled("linear, no residual")
    model = nn.Sequential(layer, nn.Linear(3, 7), layer)
    y = model(batch("linear"))
    y.sum().backward(retain_graph=True)
    assert float(layer.memory.notes.visits.sum()) == pytest.approx(10)
    y.sum().backward()
    assert float(layer.memory.notes.visits.sum()) == pytest.approx(10)


DROPS = {
    "none": lambda layer: layer.zero_grad(),  # as after a step that a GradScaler skips
    "module": lambda layer: layer.zero_grad(set_to_none=False),
    "optimiser": lambda layer: torch.optim.SGD(layer.parameters(), 0.1).zero_grad(set_to_none=False),
    "foreach": lambda layer: torch._foreach_zero_([parameter.grad for parameter in layer.parameters()]),
    "by hand": lambda layer: [parameter.grad.zero_() for parameter in layer.memory.parameters()],
    "replaced": lambda layer: [setattr(p, "grad", torch.zeros_like(p)) for p in layer.memory.parameters()],
}


@pytest.mark.parametrize("drop", DROPS)
def test_notes_die_with_the_gradients(drop):
    layer, x = filled("linear"), batch("linear")
    notes = layer.memory.notes
    layer(x).sum().backward()
    layer(x).sum().backward()
    assert float(notes.visits.sum()) == pytest.approx(10)
    DROPS[drop](layer)
    layer(x[:1]).sum().backward()
    assert float(notes.visits.sum()) == pytest.approx(1)
    torch.testing.assert_close(notes.keys, nn.functional.normalize(reference.control_of(x[0]), dim=0)[None])
    layer(x).sum().backward()
    assert float(notes.visits.sum()) == pytest.approx(6)


CHANGES = {
    "clipped": lambda layer: nn.utils.clip_grad_norm_(layer.parameters(), 0.1),
    "scaled": lambda layer: [parameter.grad.mul_(0.5) for parameter in layer.parameters()],
    "replaced": lambda layer: [setattr(parameter, "grad", parameter.grad / 2) for parameter in layer.parameters()],
    "U alone dropped": lambda layer: setattr(layer.memory.U, "grad", None),
}


@pytest.mark.parametrize("change", CHANGES)
def test_notes_outlive_changes_of_the_gradients(change):
    layer, x = filled("linear"), batch("linear")
    layer(x).sum().backward()
    CHANGES[change](layer)
    layer(x).sum().backward()
    assert float(layer.memory.notes.visits.sum()) == pytest.approx(10)


def test_new_inputs_add_up_although_nothing_is_written_and_all_gradients_are_zero():
    layer = GrowingLinear(3, 2, growing=small(writes=2, residual=False), control_dim=2)
    x, z = torch.randn(2, 3), torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    for row in range(2):
        layer(x[row : row + 1], z[row : row + 1]).sum().backward()
    assert layer.memory.U.grad.count_nonzero() == layer.memory.V.grad.count_nonzero() == 0
    torch.testing.assert_close(layer.memory.notes.keys, z)


@pytest.mark.parametrize("frozen", ["U", "V"])
def test_notes_of_half_a_memory_add_up(frozen):
    layer, x = filled("linear"), batch("linear")
    getattr(layer.memory, frozen).requires_grad_(False)
    layer(x).sum().backward()
    layer(x).sum().backward()
    assert float(layer.memory.notes.visits.sum()) == pytest.approx(10)
    layer.zero_grad(set_to_none=False)
    layer(x).sum().backward()
    assert float(layer.memory.notes.visits.sum()) == pytest.approx(5)


def test_notes_of_a_backward_that_fails_die_with_its_gradients():
    layer, x = filled("linear"), batch("linear").requires_grad_()
    y = layer(x)
    x.register_hook(lambda grad: 1 / 0)  # after the layer has noted
    with pytest.raises(ZeroDivisionError):
        y.sum().backward()
    layer.zero_grad(set_to_none=False)
    layer(x.detach()).sum().backward()
    assert float(layer.memory.notes.visits.sum()) == pytest.approx(5)


@pytest.mark.filterwarnings("ignore:growing layer")
def test_zeroing_in_place_trains_as_dropping():
    layer = fill(GrowingLinear(7, 3, growing=small(slots=16)), 2)
    twin = copy.deepcopy(layer)
    xs = [batch("linear") for _ in range(5)]
    for model, to_none in ((layer, True), (twin, False)):
        optimiser = torch.optim.Adam(model.parameters(), 0.01)
        grow(model, optimiser)
        for index, x in enumerate(xs):
            optimiser.zero_grad(set_to_none=to_none)
            model(x).square().sum().backward()
            if index != 2:  # this batch does not count
                optimiser.step()
    for (name, a), b in zip(layer.state_dict().items(), twin.state_dict().values(), strict=True):
        torch.testing.assert_close(a, b, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.parametrize("fused", [False, True])
def test_no_write_when_a_grad_scaler_skips_the_step(fused):
    layer, x = filled("linear", 2), batch("linear")
    optimiser = torch.optim.SGD(layer.parameters(), 0.1, fused=fused)
    grow(layer, optimiser)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    before = copied(layer)
    optimiser.zero_grad()
    scaler.scale(layer(x).sum() * float("inf")).backward()
    scaler.step(optimiser)
    scaler.update()
    assert all(torch.equal(value, before[name]) for name, value in layer.state_dict().items())
    optimiser.zero_grad()
    scaler.scale(layer(x).sum()).backward()
    scaler.step(optimiser)
    scaler.update()
    assert int(layer.memory.written) == 3
    assert float((layer.memory.visits - before["memory.visits"]).sum()) == pytest.approx(5, rel=1e-4)


def test_training_under_autocast_writes_and_consolidates():
    layer = filled("linear", 2)
    optimiser = torch.optim.Adam(layer.parameters(), 0.01)
    grow(layer, optimiser)
    for _ in range(3):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = layer(batch("linear")).float().square().sum()
        step(optimiser, loss)
    assert int(layer.memory.written) > 2
    assert all(p.isfinite().all() for p in layer.parameters())


def test_a_step_with_a_closure():
    layer, x = filled("linear", 2), batch("linear")
    optimiser = torch.optim.SGD(layer.parameters(), 0.1)
    grow(layer, optimiser)

    def closure():
        optimiser.zero_grad()
        loss = layer(x).sum()
        loss.backward()
        return loss

    optimiser.step(closure)
    assert int(layer.memory.written) == 3


def test_idle_layers_stay_as_they_are():
    model = nn.ModuleList([filled("linear", 2), filled("linear", 2)])
    optimiser = torch.optim.Adam(model.parameters(), 0.1)
    grow(model, optimiser)
    before = copied(model[1])
    step(optimiser, model[0](batch("linear")).sum())
    assert all(torch.equal(value, before[name]) for name, value in model[1].state_dict().items())
    assert int(model[0].memory.written) == 3


def test_bad_inputs_are_never_written():
    layer = GrowingLinear(3, 2, growing=small(), control_dim=2)
    optimiser = torch.optim.SGD(layer.parameters(), 0.1)
    grow(layer, optimiser)
    z = torch.tensor([[float("nan"), 1.0], [0.0, 0.0], [float("inf"), 1.0]])
    step(optimiser, layer(torch.randn(3, 3), z).sum())
    assert int(layer.memory.written) == 0
    assert layer.memory.keys.isfinite().all()


def test_a_later_optimiser_replaces_an_earlier_one():
    layer, x = filled("linear", 2), batch("linear")
    first = torch.optim.SGD(layer.parameters(), 0.1)
    second = torch.optim.SGD(layer.parameters(), 0.1)
    earlier = grow(layer, first)
    grow(layer, second)
    assert not earlier._layers
    step(second, layer(x).sum())
    assert int(layer.memory.written) == 3
    with pytest.raises(RuntimeError, match=r"nc\.grow"):
        step(first, layer(x).sum())


def test_a_copied_model_grows_with_its_own_optimiser():
    layer, x = filled("linear", 2), batch("linear")
    grow(layer, torch.optim.SGD(layer.parameters(), 0.1))
    twin = copy.deepcopy(layer)
    optimiser = torch.optim.SGD(twin.parameters(), 0.1)
    with pytest.raises(RuntimeError, match=r"nc\.grow"):
        step(optimiser, twin(x).sum())


def test_models_and_optimisers_are_freed():
    layer = filled("linear", 2)
    optimiser = torch.optim.SGD(layer.parameters(), 0.1)
    grow(layer, optimiser)
    step(optimiser, layer(batch("linear")).sum())
    watched = weakref.ref(layer.memory)
    del layer, optimiser
    gc.collect()
    assert watched() is None


def test_wrong_arguments_of_grow():
    layer = filled("linear")
    optimiser = torch.optim.SGD(layer.parameters(), 0.1)
    with pytest.raises(ValueError, match="model must have a growing layer, found none"):
        grow(nn.Linear(2, 2), optimiser)
    with pytest.raises(ValueError, match="optimiser must be a torch optimiser, got float"):
        grow(layer, 0.1)
    with pytest.raises(ValueError, match=r"optimiser must hold memory\.U of growing layer 'head'"):
        grow(nn.ModuleDict({"head": layer}), torch.optim.SGD([layer.R], 0.1))
    with pytest.raises(ValueError, match="all are frozen"):
        grow(filled("linear").requires_grad_(False), optimiser)


def test_second_task_leaves_the_first_within_a_bound():
    """Inputs near keys of their own are served by slots that the other task hardly touches."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 2))
    nc.recode(
        model,
        "1",
        small(slots=32, max_similarity=0.9, sharpness=50.0, consolidation=100.0, residual="frozen"),
        control_dim=8,
    )
    model[0].requires_grad_(False)
    optimiser = torch.optim.Adagrad(model[1].memory.parameters(), 0.5)
    grow(model, optimiser)
    first, second = torch.randn(2, 64, 8) * 0.1
    first[:, 0], second[:, 1] = 1.0, 1.0
    outputs = []
    for x, goal in ((first, 1.0), (second, -1.0)):
        for _ in range(100):
            with nc.control(model, x):
                step(optimiser, (model(x) - goal).square().mean())
        with nc.control(model, first), torch.no_grad():
            outputs.append(model(first))
    assert (outputs[0] - 1.0).abs().mean() < 0.1  # learned
    moved = (outputs[1] - outputs[0]).abs()  # 2 would be to forget everything
    assert moved.mean() < 0.05
    assert moved.max() < 0.3


@pytest.mark.slow
@pytest.mark.filterwarnings(
    "ignore:<class 'torch.autograd.function.Function'> should not be:DeprecationWarning"
)  # dynamo
def test_a_compiled_model_trains_as_an_eager_one():
    layer = filled("linear", 2)
    twin = copy.deepcopy(layer)
    xs = [batch("linear") for _ in range(3)]
    for model, call in ((layer, layer), (twin, torch.compile(twin, fullgraph=True, backend="aot_eager"))):
        optimiser = torch.optim.Adam(model.parameters(), 0.01)
        grow(model, optimiser)
        for x in xs:
            step(optimiser, call(x).square().sum())
    assert int(layer.memory.written) > 3
    for (name, a), b in zip(layer.state_dict().items(), twin.state_dict().values(), strict=True):
        torch.testing.assert_close(a, b, msg=lambda m, n=name: f"{n}: {m}")


def test_nothing_is_said_while_there_is_room():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        layer = filled("linear", 2)
        optimiser = torch.optim.SGD(layer.parameters(), 0.01)
        grow(layer, optimiser)
        for _ in range(4):
            step(optimiser, layer(batch("linear")).sum())
