"""The growing layers' branches of CUDA graphs, without a GPU: none disturbs another, and all are joined."""

import pytest
import torch
from growing_helpers import fill, small

from neurocoder.growing import GrowingLinear, grow

pytest.importorskip("triton")
from neurocoder.ops.launch import SideStream
from races import Race, look_at, watching

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="streams are made up here")


@pytest.fixture
def watch(monkeypatch):
    with watching(monkeypatch, "neurocoder.growing.functional.is_traced") as found:
        yield found


def built(d_in, d_out, **changes):
    return fill(GrowingLinear(d_in, d_out, growing=small(max_slots=6, max_similarity=1.0, **changes)))


def step(watch, *layers, wants_x=True):
    """Forward and backward through all layers, the optimiser's step, and a look at every gradient."""
    optimiser = torch.optim.SGD([p for layer in layers for p in layer.parameters() if p.requires_grad], 0.1)
    grow(torch.nn.ModuleList(layers), optimiser)
    x = torch.randn(5, layers[0].in_features, requires_grad=wants_x)
    with watch:
        y = x
        for layer in layers:
            y = layer(y).sin()
        y.sum().backward()
        optimiser.step()
        look_at((x, *(parameter for layer in layers for parameter in layer.parameters())))
    assert all(int(layer.memory.written) == 6 for layer in layers)


@pytest.mark.filterwarnings("ignore:growing layer")
@pytest.mark.parametrize("wants_x", [True, False])
@pytest.mark.parametrize("residual", [True, False, "frozen"])
def test_no_races(watch, residual, wants_x):
    step(watch, built(7, 5, residual=residual), built(5, 6, residual=residual), wants_x=wants_x)


@pytest.mark.filterwarnings("ignore:growing layer")
def test_no_races_in_a_layer_that_is_used_twice(watch):
    layer = built(7, 7)
    optimiser = torch.optim.SGD(layer.parameters(), 0.1)
    grow(layer, optimiser)
    with watch:
        layer(layer(torch.randn(5, 7)).sin()).sum().backward()
        optimiser.step()


def test_no_races_where_notes_look_at_gradients(watch):
    layer, x = built(7, 5), torch.randn(5, 7)
    with watch:
        for _ in range(2):
            layer(x).sum().backward()
            layer.zero_grad(set_to_none=False)
        layer(x).sum().backward()
        look_at(layer.parameters())
    assert float(layer.memory.notes.visits.sum()) == pytest.approx(5)


@pytest.mark.filterwarnings("ignore:growing layer")
@pytest.mark.parametrize("method", ["join", "await_mark"])
def test_a_missing_wait_is_found(monkeypatch, watch, method):
    monkeypatch.setattr(SideStream, method, lambda *args: None)
    with pytest.raises(Race):
        step(watch, built(7, 5), built(5, 6))
