"""Memory that grows and shrinks: parameters, buffers and the optimiser's state together."""

import copy
import warnings

import pytest
import torch
from growing_helpers import batch, copied, fill, filled, small, unit_rows
from torch import nn

import neurocoder as nc
from neurocoder.growing import GrowingLinear, grow, shrink

OPTIMISERS = {
    "momentum": lambda p: torch.optim.SGD(p, 0.01, momentum=0.9),
    "adam": lambda p: torch.optim.Adam(p, 0.01, amsgrad=True),
    "adagrad": lambda p: torch.optim.Adagrad(p, 0.01, initial_accumulator_value=0.5),
    "rmsprop": lambda p: torch.optim.RMSprop(p, 0.01, momentum=0.5),
    "rmsprop, centred": lambda p: torch.optim.RMSprop(p, 0.01, centered=True),
    "rprop": lambda p: torch.optim.Rprop(p, 0.02),
    "adadelta": lambda p: torch.optim.Adadelta(p, 0.5),
    "adamax": lambda p: torch.optim.Adamax(p, 0.01),
    "adamw": lambda p: torch.optim.AdamW(p, 0.01),
    "nadam": lambda p: torch.optim.NAdam(p, 0.01),
    "radam": lambda p: torch.optim.RAdam(p, 0.01),
    "asgd": lambda p: torch.optim.ASGD(p, 0.01),
    "rate as a tensor": lambda p: torch.optim.Rprop(p, torch.tensor(0.03)),
}


def fresh_state(make, bank):
    """The state of an optimiser of this kind that has seen no gradient but zero: the same number for each element."""
    probe = torch.zeros_like(bank, requires_grad=True)
    optimiser = make([probe])
    probe.grad = torch.zeros_like(probe)
    optimiser.step()
    states = {key: value for key, value in optimiser.state[probe].items() if value.shape == bank.shape}
    assert states
    assert all(len(value.unique()) == 1 for value in states.values())
    return {key: value.flatten()[0] for key, value in states.items()}


def step(layer, optimiser, x=None):
    optimiser.zero_grad()
    loss = layer(batch("linear") if x is None else x).square().sum()
    loss.backward()
    optimiser.step()
    return loss


def training(make, count=3, **changes):
    layer = fill(GrowingLinear(7, 3, growing=small(**({"slots": 4, "max_similarity": 1.0} | changes))), count)
    optimiser = make(layer.parameters())
    return layer, optimiser, grow(layer, optimiser)


@pytest.mark.parametrize("name", OPTIMISERS)
def test_a_full_memory_grows_with_its_optimiser_state(name):
    layer, optimiser, _ = training(OPTIMISERS[name], 2)
    memory = layer.memory
    kept = [step(layer, optimiser)]  # holds the graph of an earlier step
    parameters = list(layer.parameters())  # an optimiser and others hold these
    old = copied(layer)
    states = {key: value.clone() for key, value in optimiser.state[memory.U].items() if value.dim() == 3}
    assert states
    kept.append(step(layer, optimiser))
    assert int(memory.written) == 4
    assert memory.capacity == layer.config.slots == memory.config.slots == 8
    assert all(a is b for a, b in zip(layer.parameters(), parameters, strict=True))
    for tensor in (memory.U, memory.V, memory.keys, memory.visits, memory.born, memory.notes.visits, memory.U.grad):
        assert len(tensor) == 8
    assert torch.equal(memory.keys[:3], old["memory.keys"][:3])
    for key, value in states.items():
        now = optimiser.state[memory.U][key]
        assert now.shape == memory.U.shape
        assert not torch.equal(now[:3], value[:3])  # went on from the earlier state
        expected = fresh_state(OPTIMISERS[name], memory.U)[key].expand_as(now[4:])
        torch.testing.assert_close(now[4:], expected, rtol=1e-6, atol=1e-7)  # Adamax adds 1e-8 in each step
    assert memory.U[4:].std() > 0.1
    assert memory.V[4:].count_nonzero() == 0  # a new slot outputs zero until trained
    for _ in range(3):
        kept.append(step(layer, optimiser))
    assert int(memory.written) == 7


def test_growing_changes_no_output_and_continues_as_a_larger_memory_would():
    torch.manual_seed(1)
    layer, optimiser, growth = training(OPTIMISERS["adam"], 3)
    xs = [batch("linear") for _ in range(3)]
    step(layer, optimiser, xs[0])  # full, so it grew
    assert layer.memory.capacity == 8
    twin = copy.deepcopy(layer)
    other = OPTIMISERS["adam"](twin.parameters())
    other.load_state_dict(copy.deepcopy(optimiser.state_dict()))
    grow(twin, other)
    before = layer(xs[1])
    assert growth.make_room(free=10) == [""]
    assert layer.memory.capacity == 16
    torch.testing.assert_close(layer(xs[1]), before)
    for x in xs[1:]:
        step(layer, optimiser, x)
        step(twin, other, x)
    for name in ("U", "V", "keys", "visits", "born"):
        a, b = getattr(layer.memory, name)[:6], getattr(twin.memory, name)[:6]
        torch.testing.assert_close(a, b, msg=lambda m, n=name: f"{n}: {m}")


def test_it_grows_by_the_factor_up_to_max_slots_and_says_once_that_it_is_full():
    layer, optimiser, growth = training(OPTIMISERS["momentum"], 3, growth=1.4, max_slots=7)
    capacities = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(8):
            step(layer, optimiser)
            capacities.append(layer.memory.capacity)
    assert capacities == [6, 6, 7, 7, 7, 7, 7, 7]
    assert int(layer.memory.written) == 7
    said = [str(one.message) for one in caught]
    assert len(said) == 1
    assert "growing layer '' is full: 7 slots, which is max_slots" in said[0]
    assert growth.make_room() == []


def test_the_host_asks_the_device_only_when_the_memory_may_be_full():
    layer, optimiser, _ = training(OPTIMISERS["momentum"], 0, slots=8, max_similarity=0.999)
    asked = []
    real = torch.Tensor.__int__
    torch.Tensor.__int__ = lambda tensor: asked.append(1) or real(tensor)
    try:
        for _ in range(7):
            step(layer, optimiser)
    finally:
        torch.Tensor.__int__ = real
    assert not asked


def test_a_grown_layer_saves_and_loads(tmp_path):
    def plain():
        return nn.Sequential(nn.Linear(7, 3))

    model = nc.recode(plain(), "0", small(slots=4, max_similarity=1.0))
    optimiser = torch.optim.Adam(model.parameters(), 0.01)
    grow(model, optimiser)
    for _ in range(6):
        step(model, optimiser)
    x = batch("linear")
    nc.save(model, tmp_path)
    loaded = nc.load(tmp_path, plain())
    assert loaded[0].memory.capacity == 8
    assert torch.equal(loaded(x), model(x))
    other = nc.recode(plain(), "0", small(slots=4, max_similarity=1.0))
    other.load_state_dict(model.state_dict())
    assert other[0].config.slots == 8
    assert torch.equal(other(x), model(x))
    resumed = torch.optim.Adam(other.parameters(), 0.01)
    resumed.load_state_dict(copy.deepcopy(optimiser.state_dict()))
    grow(other, resumed)
    for net, one in ((model, optimiser), (other, resumed)):
        step(net, one, x)
    for (name, a), b in zip(model.state_dict().items(), other.state_dict().values(), strict=True):
        assert torch.equal(a, b), name


@pytest.mark.parametrize("times", [0, 5])
@pytest.mark.parametrize("name", OPTIMISERS)
def test_training_goes_on_from_a_state_of_another_capacity(name, times):
    """As one takes the best weights back; the optimiser keeps its state, as with a plain layer."""
    layer, optimiser, _ = training(OPTIMISERS[name], 3)
    step(layer, optimiser)
    other, another, _ = training(OPTIMISERS[name], 3)
    for _ in range(times):
        step(other, another)
    layer.load_state_dict(other.state_dict())
    assert layer.memory.capacity == other.memory.capacity
    for _ in range(5):
        step(layer, optimiser)
    for key, value in optimiser.state[layer.memory.U].items():
        assert not isinstance(value, torch.Tensor) or value.dim() == 0 or value.shape == layer.memory.U.shape, key
    assert int(layer.memory.written) > int(other.memory.written)


def test_a_checkpoint_of_another_capacity_loads_into_a_coded_model(tmp_path):
    """Of a bare layer too; the configuration is then the saved one, and a rank of its own is still another layer."""
    large = fill(GrowingLinear(7, 3, growing=small(slots=12, top_k=3)), 5)
    nc.save(large, tmp_path / "large")
    layer = fill(GrowingLinear(7, 3, growing=small(slots=4, top_k=2)), 2)
    optimiser = torch.optim.Adam(layer.parameters())
    grow(layer, optimiser)
    nc.load(tmp_path / "large", layer)
    assert layer.config == layer.memory.config == large.config
    x = torch.randn(6, 7)
    torch.testing.assert_close(layer(x), large(x))
    layer(x).sum().backward()
    optimiser.step()
    nc.save(fill(GrowingLinear(7, 3, growing=small(slots=2, top_k=1)), 1), tmp_path / "small")
    assert nc.load(tmp_path / "small", layer).memory.capacity == 2
    with pytest.raises(nc.CheckpointError, match="or a layer that was built so"):
        nc.load(tmp_path / "large", GrowingLinear(7, 3, growing=small(slots=12, top_k=3, rank=1)))
    other = fill(GrowingLinear(6, 3, growing=small(slots=4)), 2)
    before = {name: tensor.clone() for name, tensor in other.state_dict().items()}
    with pytest.raises(nc.CheckpointError, match="is of another architecture"):
        nc.load(tmp_path / "large", other)
    for name, tensor in other.state_dict().items():
        assert torch.equal(tensor, before[name]), name


def test_layers_that_share_a_memory_do_not_grow():
    model = nn.Sequential(GrowingLinear(4, 4, growing=small()), GrowingLinear(4, 4, growing=small()))
    model[1].memory = model[0].memory
    with pytest.raises(ValueError, match="growing layers must not share a memory"):
        grow(model, torch.optim.SGD(model.parameters(), 0.1))


def test_a_step_in_eval_mode_says_that_no_slot_moves():
    layer = fill(GrowingLinear(7, 3, growing=small(count="steps")), 2)
    optimiser = torch.optim.SGD(layer.parameters(), 0.1)
    grow(layer, optimiser)
    layer.eval()(torch.randn(6, 7)).square().sum().backward()
    with pytest.warns(UserWarning, match="in eval mode, where no visits are noted: this step moves none of its slots"):
        optimiser.step()


def test_shrink_finds_the_optimiser_that_grows_the_layer():
    layer = fill(GrowingLinear(7, 3, growing=small(slots=8)), 5)
    optimiser = torch.optim.Adam(layer.parameters())
    grow(layer, optimiser)
    layer(torch.randn(6, 7)).sum().backward()
    optimiser.step()
    shrink(layer, below=0, slots=7)
    assert len(optimiser.state[layer.memory.U]["exp_avg"]) == 7


def test_the_optimisers_state_is_loaded_after_the_models():
    def made(slots):
        layer = fill(GrowingLinear(7, 3, growing=small(slots=slots)), 2)
        return layer, torch.optim.Adam(layer.parameters())

    (large, saved), (layer, optimiser) = made(8), made(4)
    grow(large, saved)
    large(torch.randn(6, 7)).sum().backward()
    saved.step()
    grow(layer, optimiser)
    optimiser.load_state_dict(saved.state_dict())
    with pytest.raises(ValueError, match="load the model's state before the optimiser's"):
        layer.load_state_dict(large.state_dict())


def test_lbfgs_is_refused_where_slots_come_and_go():
    model = nn.Sequential(nn.Linear(7, 7), filled("linear", 2))
    optimiser = torch.optim.LBFGS(model.parameters())
    with pytest.raises(ValueError, match=r"optimiser must keep a state for each parameter.*got LBFGS: use Adam"):
        grow(model, optimiser)


def test_an_optimiser_whose_state_cannot_grow_is_refused_at_once():
    layer = filled("linear", 2)
    optimiser = torch.optim.Adafactor(layer.parameters(), 0.01)
    grow(layer, optimiser)
    for attempt in (lambda: step(layer, optimiser), lambda: grow(layer, optimiser)):
        with pytest.raises(
            ValueError, match=r"optimiser must keep a state like U \(6, 2, 7\) or a scalar.*got row_var"
        ):
            attempt()
    layer = GrowingLinear(7, 3, growing=small(max_slots=6))
    optimiser = torch.optim.Adafactor(layer.parameters(), 0.01)
    grow(layer, optimiser)
    step(layer, optimiser)  # a memory that cannot grow may have any optimiser


def shrinkable():
    """Two busy slots, and one little used near the second."""
    layer = GrowingLinear(3, 2, False, small(slots=4, top_k=3, rank=1, residual=False), control_dim=2)
    fill(layer, 3)
    with torch.no_grad():
        layer.memory.keys[:3] = unit_rows([1, 0], [0.1, 1], [0, 1])
        layer.memory.visits[:3] = torch.tensor([10.0, 1.0, 3.0])
    return layer


def test_shrink_by_hand():
    for merge in (True, False):
        layer = shrinkable()
        old = copied(layer)
        assert shrink(layer, below=2.0, merge=merge) == {"": 1}
        memory = layer.memory
        assert int(memory.written) == 2
        assert memory.capacity == 4
        torch.testing.assert_close(memory.keys[:2], unit_rows([1, 0], [0, 1]))
        assert memory.visits.tolist() == ([10.0, 4.0, 0.0, 0.0] if merge else [10.0, 3.0, 0.0, 0.0])
        U = old["memory.U"]
        torch.testing.assert_close(memory.U[:2], torch.stack([U[0], (3 * U[2] + U[1]) / 4 if merge else U[2]]))
        assert not torch.equal(memory.U[2], U[2])  # a free slot has starting values


def test_shrink_takes_the_optimiser_along_and_frees_memory():
    layer = shrinkable()
    x, z = torch.randn(5, 3), torch.randn(5, 2)
    optimiser = torch.optim.Adagrad(layer.parameters(), 0.01, initial_accumulator_value=0.25)
    grow(layer, optimiser)

    def learn():
        optimiser.zero_grad()
        layer(x, z).square().sum().backward()
        optimiser.step()

    before = optimiser.state[layer.memory.U]["sum"].clone()
    with torch.no_grad():
        before[:] = torch.arange(4.0).view(4, 1, 1) + 1
        optimiser.state[layer.memory.U]["sum"].copy_(before)
    assert shrink(layer, optimiser, below=2.0, slots=3) == {"": 1}
    state = optimiser.state[layer.memory.U]["sum"]
    assert state.shape == layer.memory.U.shape == (3, 1, 3)
    assert torch.equal(state[:2], before[[0, 2]])
    assert (state[2] == 0.25).all()
    assert layer.config.slots == 3
    learn()
    assert int(layer.memory.written) == 3


def test_shrinking_everything_and_nothing():
    layer = shrinkable()
    before = copied(layer)
    assert shrink(layer, below=0.0) == {"": 0}
    for name in ("memory.keys", "memory.visits", "memory.written"):
        assert torch.equal(layer.state_dict()[name], before[name])
    assert shrink(layer, below=1e9) == {"": 3}
    assert int(layer.memory.written) == 0
    assert layer(torch.randn(2, 3), torch.randn(2, 2)).count_nonzero() == 0


def test_wrong_arguments_of_shrink():
    layer = shrinkable()
    for options, message in (
        ({"below": -1}, "below must be a number >= 0, got -1"),
        ({"below": 1, "merge": 3}, "merge must be True or False, got 3"),
        ({"below": 1, "slots": 0}, "slots must be a whole number >= 1, got 0"),
        ({"below": 2.0, "slots": 1}, "slots must be at least the 2 that stay in layer '', got 1"),
    ):
        with pytest.raises(ValueError, match=message):
            shrink(layer, **options)
    with pytest.raises(ValueError, match="free must be a whole number >= 1, got 0"):
        training(OPTIMISERS["adam"])[2].make_room(0)
