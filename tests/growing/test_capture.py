"""A training step as one CUDA graph: nothing in it waits for the device, and replays do what eager steps do."""

import copy
import warnings

import pytest
import torch
from growing_helpers import LAYERS, batch, copied, fill, small
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from neurocoder.growing import GrowingConv2d, GrowingLinear, grow

WAITS = ("_local_scalar_dense", "item", "is_nonzero", "equal", "nonzero", "masked_select", "unique", "_unique2")
"""Operations whose result, or its shape, the host needs."""


class NoWaiting(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function.overloadpacket.__name__
        assert name not in WAITS, f"{name} waits for the device"
        # A mask as an index is a nonzero in disguise.
        indices = args[1] if name in ("index", "index_put", "index_put_") else []
        assert all(i is None or i.dtype != torch.bool for i in indices), "a mask as an index waits for the device"
        return function(*args, **(kwargs or {}))


def step(model, optimiser, x):
    optimiser.zero_grad()
    loss = model(x).square().mean()
    loss.backward()
    optimiser.step()
    return loss


def is_captured(monkeypatch, capturing=True):
    """Pretend that the current stream is being captured."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: capturing)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: capturing)


@pytest.mark.parametrize("reuse", [0.0, 2.0])
@pytest.mark.parametrize("kind", LAYERS)
def test_nothing_in_a_step_waits_for_the_device(monkeypatch, kind, reuse):
    torch.manual_seed(0)
    layer = LAYERS[kind]()
    layer.config = layer.memory.config = small(
        residual=layer.config.residual, max_slots=6, writes=2, reuse_below=reuse, max_similarity=0.99
    )
    layer.memory.renew_notes()
    optimiser = torch.optim.SGD(layer.parameters(), 0.01, momentum=0.9)  # Adam's counter lies on the host here
    grow(layer, optimiser)
    step(layer, optimiser, batch(kind))  # creates the optimiser's state
    is_captured(monkeypatch)
    with NoWaiting():
        for _ in range(8):
            step(layer, optimiser, batch(kind))
    assert int(layer.memory.written) == 6
    assert bool((layer.memory.born > 4).any()) == bool(reuse)


def test_the_mode_of_these_tests_notices_waiting():
    x = torch.randn(3)
    for wait in (
        lambda: float(x[0]),
        lambda: bool(x[0] > 0),
        lambda: x[x > 0],
        lambda: x.nonzero(),
        lambda: x.unique(),
    ):
        with pytest.raises(AssertionError, match="waits for the device"), NoWaiting():
            wait()


def test_a_captured_memory_does_not_grow_by_itself_and_says_so(monkeypatch):
    layer = fill(GrowingLinear(7, 3, growing=small(slots=4, max_similarity=1.0)), 2)
    optimiser = torch.optim.SGD(layer.parameters(), 0.01)
    growth = grow(layer, optimiser)
    is_captured(monkeypatch)
    with pytest.warns(UserWarning, match=r"\[''\] cannot grow while they are captured in a CUDA graph: call make_room"):
        step(layer, optimiser, batch("linear"))
    for _ in range(3):
        step(layer, optimiser, batch("linear"))  # says it once
    assert layer.memory.capacity == int(layer.memory.written) == 4
    is_captured(monkeypatch, False)
    layer.memory.is_captured, layer.memory.written_bound = True, 0  # as on a GPU: the host has not seen the replays
    with pytest.warns(UserWarning, match="is full: 4 slots. It cannot grow in a step that is captured"):
        step(layer, optimiser, batch("linear"))
    assert layer.memory.capacity == 4
    assert not copy.deepcopy(layer).memory.is_captured
    assert growth.make_room() == [""]
    assert layer.memory.capacity == 8
    assert not layer.memory.is_captured
    for _ in range(5):
        step(layer, optimiser, batch("linear"))
    assert layer.memory.capacity == 16  # eager steps grow it again


def test_who_makes_room_before_a_capture_is_not_told(monkeypatch):
    layer = fill(GrowingLinear(7, 3, growing=small(slots=4, max_similarity=1.0)), 2)
    optimiser = torch.optim.SGD(layer.parameters(), 0.01)
    assert grow(layer, optimiser).make_room(free=5) == [""]
    is_captured(monkeypatch)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        step(layer, optimiser, batch("linear"))


def models():
    torch.manual_seed(0)
    fields = {"slots": 24, "max_slots": 24, "max_similarity": 0.95, "writes": 2}  # a graph cannot grow
    linear = nn.Sequential(
        GrowingLinear(20, 33, growing=small(**fields)),
        nn.Tanh(),
        GrowingLinear(33, 5, False, small(**fields, residual=False)),
    )
    full = nn.Sequential(
        GrowingLinear(20, 5, growing=small(slots=8, max_slots=8, reuse_below=2.0, max_similarity=0.99))
    )
    image = nn.Sequential(GrowingConv2d(3, 4, 3, padding=1, growing=small(**fields)))
    return {"linear": (linear, (20,)), "reuse": (full, (20,)), "conv": (image, (3, 8, 8))}


@pytest.mark.skipif(not torch.cuda.is_available(), reason="CUDA graphs need a GPU")
@pytest.mark.filterwarnings("ignore:growing layer")
@pytest.mark.filterwarnings("ignore:This instance was constructed with capturable=True")
@pytest.mark.parametrize("name", ["linear", "reuse", "conv"])
@pytest.mark.parametrize(
    "make",
    [
        lambda p: torch.optim.Adagrad(p, 0.05),
        lambda p: torch.optim.Adam(p, 0.01, capturable=True, fused=True),
        lambda p: torch.optim.SGD(p, 0.05, momentum=0.9),
    ],
    ids=["adagrad", "adam", "sgd"],
)
def test_replays_are_eager_steps(name, make, monkeypatch):
    """Parameters, keys, visits and all other state after the same batches."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    model, shape = models()[name]
    model = model.cuda()
    twin = copy.deepcopy(model)
    optimisers = [make(net.parameters()) for net in (model, twin)]
    for net, optimiser in zip((model, twin), optimisers, strict=True):
        grow(net, optimiser)
    xs = torch.randn(14, 16, *shape)  # the same numbers on every GPU
    if name == "reuse":
        xs[:, 1:] = xs[0, 0] + 0.05 * xs[:, 1:]  # one input of a batch is new, and does not come again
    xs = xs.cuda()
    held = xs[0].clone()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for x in xs[:3]:
            step(model, optimisers[0], held.copy_(x))
    torch.cuda.current_stream().wait_stream(side)
    for parameter in model.parameters():
        parameter.grad = None
    before = copied(model)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = step(model, optimisers[0], held)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())  # a capture runs nothing
    assert all(layer.memory.is_captured for layer in model if hasattr(layer, "memory"))
    for x in xs[:3]:
        step(twin, optimisers[1], x)
    for index, x in enumerate(xs[3:]):
        held.copy_(x)
        graph.replay()
        torch.testing.assert_close(loss, step(twin, optimisers[1], x), rtol=1e-4, atol=1e-5)
        for (key, a), b in zip(model.state_dict().items(), twin.state_dict().values(), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4, msg=lambda m, k=key, i=index: f"step {i}, {k}: {m}")
    assert all(int(layer.memory.written) > 6 for layer in model if hasattr(layer, "memory"))
    if name == "reuse":
        assert int(model[0].memory.born.max()) > 8


@pytest.mark.skipif(not torch.cuda.is_available(), reason="CUDA graphs need a GPU")
@pytest.mark.filterwarnings("ignore:The AccumulateGrad node's stream")  # as for nn.Linear
def test_a_captured_forward_and_backward_stop_eager_steps_from_growing():
    layer = fill(GrowingLinear(7, 3, growing=small(slots=4, max_similarity=1.0)).cuda(), 3)
    optimiser = torch.optim.SGD(layer.parameters(), 0.01)
    growth = grow(layer, optimiser)
    graphed = torch.cuda.make_graphed_callables(layer, (batch("linear").cuda(),))
    with pytest.warns(UserWarning, match="is full: 4 slots. It cannot grow"):
        step(graphed, optimiser, batch("linear").cuda())
    assert layer.memory.capacity == 4
    assert growth.make_room() == [""]
