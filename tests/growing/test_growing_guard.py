"""A step that would move slots without growing them is an error, and other optimisers pay nothing for that."""

import copy
import gc
import io
import os
import pickle
import subprocess
import sys

import pytest
import torch
from growing_helpers import LAYERS, batch, copied, filled, small
from torch import nn
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

import neurocoder as nc
from neurocoder.growing import GrowingLinear, grow, guard

OPTIMISERS = {
    "sgd": lambda p: torch.optim.SGD(p, 0.1),
    "sgd, one by one": lambda p: torch.optim.SGD(p, 0.1, foreach=False),
    "sgd, fused": lambda p: torch.optim.SGD(p, 0.1, fused=True),  # moves parameters without changing their version
    "adam": lambda p: torch.optim.Adam(p, 0.1),
    "adam, fused": lambda p: torch.optim.Adam(p, 0.1, fused=True),
    "adagrad": lambda p: torch.optim.Adagrad(p, 0.1),
}


def backward(layer, optimiser, x=None):
    optimiser.zero_grad()
    layer(batch("linear") if x is None else x).square().sum().backward()


def step(layer, optimiser, x=None, count=1):
    for _ in range(count):
        backward(layer, optimiser, x)
        optimiser.step()


def refused():
    return pytest.raises(RuntimeError, match=r"call nc\.grow\(model, optimiser\) once, before training")


@pytest.fixture
def looks(monkeypatch):
    """Grows by one with each look for optimisers."""
    found, look = [], guard._optimisers
    monkeypatch.setattr(guard, "_optimisers", lambda: found.append(1) or look())
    return found


def test_no_hook_of_all_optimisers_is_ever_installed():
    code = """
import torch, neurocoder as nc
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks
assert not _global_optimizer_pre_hooks and not _global_optimizer_post_hooks
"""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment, timeout=120)
    layer, other = filled("linear"), nn.Linear(2, 2)
    optimisers = [torch.optim.SGD(model.parameters(), 0.1) for model in (layer, other)]
    backward(layer, optimisers[0])
    grow(layer, optimisers[0])
    step(layer, optimisers[0])
    assert not _global_optimizer_pre_hooks
    assert not _global_optimizer_post_hooks
    assert not optimisers[1]._optimizer_step_pre_hooks


@pytest.mark.parametrize("name", OPTIMISERS)
def test_a_step_without_grow_is_refused_before_it_moves_anything(name):
    layer = filled("linear")
    optimiser = OPTIMISERS[name](layer.parameters())
    backward(layer, optimiser)
    before = copied(layer)
    with refused():
        optimiser.step()
    assert all(torch.equal(value, before[key]) for key, value in layer.state_dict().items())
    with refused():  # again
        step(layer, optimiser)
    growth = grow(layer, optimiser)
    step(layer, optimiser)
    assert not torch.equal(layer.memory.U, before["memory.U"])
    growth.remove()
    with refused():
        optimiser.step()
    layer.requires_grad_(False).zero_grad()
    optimiser.step()  # has nothing to train


def assigned(layer):
    layer.load_state_dict({key: value.clone() for key, value in layer.state_dict().items()}, assign=True)
    return layer


def one_set_anew(layer):
    with torch.no_grad():
        layer.memory.U = nn.Parameter(layer.memory.U.clone())
    return layer


def frozen_and_thawed(layer):
    return copy.deepcopy(layer.requires_grad_(False)).requires_grad_()


def saved_whole(layer):
    file = io.BytesIO()
    torch.save(layer, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def without_data(layer):
    return layer.to("meta").to_empty(device="cpu")


def grown_larger(layer):
    optimiser = torch.optim.SGD(layer.parameters(), 0.1)
    grow(layer, optimiser).make_room(30)
    return layer


WAYS = {
    "eval": lambda layer: layer.eval(),
    "half frozen": lambda layer: layer.memory.U.requires_grad_(False) is not None and layer,
    "other half frozen": lambda layer: layer.memory.V.requires_grad_(False) is not None and layer,
    "copied": copy.deepcopy,
    "pickled": lambda layer: pickle.loads(pickle.dumps(layer)),
    "saved whole": saved_whole,
    "converted": lambda layer: layer.double().float(),
    "without data": without_data,
    "assigned": assigned,
    "one set anew": one_set_anew,
    "frozen and thawed": frozen_and_thawed,
    "grown larger": grown_larger,
}


@pytest.mark.parametrize("way", WAYS)
def test_a_layer_is_guarded_whatever_became_of_it(way):
    layer = WAYS[way](filled("linear"))
    optimiser = torch.optim.SGD([p for p in layer.parameters() if p.requires_grad], 0.1, fused=True)
    with refused():
        step(layer, optimiser)


@pytest.mark.parametrize("kind", LAYERS)
def test_every_kind_of_layer_is_guarded(kind):
    layer = LAYERS[kind]()
    optimiser = torch.optim.SGD(layer.parameters(), 0.1)
    with refused():
        step(layer, optimiser, batch(kind))


@pytest.mark.slow
@pytest.mark.filterwarnings(
    "ignore:<class 'torch.autograd.function.Function'> should not be:DeprecationWarning"
)  # dynamo
def test_compiled_code_is_guarded():
    layer = filled("linear")
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    optimiser = torch.optim.Adam(layer.parameters(), 0.1, fused=True)
    backward(compiled, optimiser)
    with refused():
        optimiser.step()


def test_a_step_that_differentiates_is_refused_after_the_first():
    layer = filled("linear")
    optimiser = torch.optim.SGD(layer.parameters(), 0.1)

    def closure():
        optimiser.zero_grad()
        loss = layer(batch("linear")).square().sum()
        loss.backward()
        return loss

    optimiser.step(closure)
    layer.zero_grad()
    before = copied(layer)
    with refused():
        optimiser.step(closure)
    assert all(torch.equal(value, before[key]) for key, value in layer.state_dict().items())


@pytest.mark.parametrize("name", OPTIMISERS)
def test_an_optimiser_made_after_the_first_backward_is_refused_soon(name):
    for earlier in (1, 2, 7):
        layer = filled("linear")
        for _ in range(earlier):
            layer(batch("linear")).sum().backward()
        optimiser = OPTIMISERS[name](layer.parameters())
        with refused():
            step(layer, optimiser, count=earlier + 1)


def test_a_second_optimiser_beside_the_one_that_grows_the_slots():
    layer = filled("linear", 2)
    first, second = (torch.optim.SGD(layer.parameters(), 0.1, fused=True) for _ in range(2))
    grow(layer, first)
    for _ in range(3):
        for _ in range(4):
            layer(batch("linear")).sum().backward()  # four at most before a step
        first.step()
        first.zero_grad()
    with refused():
        step(layer, second, count=5)
    step(layer, first)


def test_the_next_optimiser_of_a_sequence_of_tasks_is_refused_at_once():
    layer = filled("linear", 2)
    first = torch.optim.SGD(layer.parameters(), 0.1)
    growth = grow(layer, first)
    step(layer, first)
    del first
    gc.collect()
    before = copied(layer)
    with refused():
        step(layer, torch.optim.SGD(layer.parameters(), 0.1))
    assert all(torch.equal(value, before[key]) for key, value in layer.state_dict().items())
    del growth


def test_who_takes_no_steps_is_not_refused():
    """Gradients of inputs and parameters, evaluation, and whatever changes parameters but an optimiser."""
    layer, x = filled("linear"), batch("linear")
    optimiser = torch.optim.SGD(layer.parameters(), 0.1)
    other = copied(filled("linear"))
    for model in (layer, layer.eval(), layer.train()):
        model(x.clone().requires_grad_()).sum().backward()
        with torch.no_grad():
            layer.memory.U.mul_(0.9)  # by hand
            model(x)
        layer.load_state_dict(other)
        layer.reset_parameters()
        layer.zero_grad(set_to_none=False)
    layer.zero_grad()
    optimiser.step()  # moves nothing
    grow(layer, optimiser)
    kept = copied(layer)
    for _ in range(4):
        step(layer, optimiser)
        backward(layer, optimiser)
        layer.load_state_dict(kept)  # as one puts averaged parameters in place for an evaluation
        with torch.no_grad():
            layer.memory.V.clamp_(-1, 1)
    step(layer, optimiser)
    assert int(layer.memory.steps) == int(kept["memory.steps"]) + 1


def test_looks_for_optimisers_are_few(looks):
    layer = filled("linear", 2)
    for _ in range(100):
        layer(batch("linear")).sum().backward()
    assert len(looks) <= 7
    looks.clear()
    optimiser = torch.optim.SGD(layer.parameters(), 0.001)
    growth = grow(layer, optimiser)
    for _ in range(10):
        step(layer, optimiser)
    assert not looks
    for _ in range(10):  # gradients of four batches
        optimiser.zero_grad()
        for _ in range(4):
            layer(batch("linear")).sum().backward()
        optimiser.step()
    assert len(looks) <= 2
    assert growth.optimiser is optimiser


def test_layers_share_a_look(monkeypatch):
    asked, real = [], gc.get_referrers
    monkeypatch.setattr(gc, "get_referrers", lambda *kinds: asked.append(1) or real(*kinds))
    model = nn.Sequential(*[GrowingLinear(7, 7, growing=small()) for _ in range(5)])
    optimiser = torch.optim.SGD(model.parameters(), 0.1)
    with refused():
        step(model, optimiser)
    assert len(asked) == 1


class Unfinished(torch.optim.Optimizer):
    """An optimiser that has no groups yet."""

    def __init__(self):
        pass


def test_a_half_built_optimiser_is_passed_over():
    unfinished, layer = Unfinished(), filled("linear")
    optimiser = torch.optim.SGD(layer.parameters(), 0.1)
    with refused():
        step(layer, optimiser)
    assert unfinished is not None


def test_surgery_knows_whose_hook_it_is():
    model = nn.Sequential(filled("linear", 0))
    nc.restore(nn.Sequential(copy.deepcopy(model[0])))
    model[0].memory.U.register_post_accumulate_grad_hook(lambda bank: None)
    with pytest.raises(ValueError, match="cannot restore '0': it has hooks, which would be lost"):
        nc.restore(model)
