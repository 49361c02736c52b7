"""`record` and `control`."""

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import neurocoder as nc
from conftest import assert_same_programs, randomised, small


class Recurrent(nn.Module):
    """Calls one program layer at every step, another once, a third never."""

    def __init__(self):
        super().__init__()
        self.cell = nn.ModuleDict({"fc": nc.Linear(4, 4, program=small())})
        self.head = nc.Linear(4, 2, program=small(residual=False))
        self.idle = nc.Linear(4, 2, program=small())
        self.states = []

    def forward(self, x):
        h, self.states = torch.zeros_like(x[:, 0]), []
        for t in range(x.shape[1]):
            self.states.append(x[:, t] + h)
            h = self.cell["fc"](self.states[-1]).tanh()
        return self.head(h)


def test_last_and_all_calls_by_nested_name():
    model, x = randomised(Recurrent(), 0.5), torch.randn(5, 3, 4)
    with nc.record(model) as trace:
        model(x)
    assert list(trace) == ["cell.fc", "head"]
    assert len(trace) == 2
    assert "cell.fc" in trace
    assert "idle" not in trace
    assert "nothing" not in trace
    calls = trace.calls("cell.fc")
    assert len(calls) == 3
    for call, state in zip(calls, model.states, strict=True):
        assert_same_programs(call, model.cell["fc"].programs(state))
    assert_same_programs(trace["cell.fc"], model.cell["fc"].programs(model.states[-1]))
    assert trace["head"].gate is None
    assert trace.calls("idle") == []
    with pytest.raises(KeyError, match="layer 'idle' was not called while recording"):
        trace["idle"]
    with pytest.raises(KeyError, match=r"no program layer 'cell' in the model; there is 'cell.fc', 'head', 'idle'"):
        trace["cell"]


def test_the_last_call_wins():
    layer = randomised(nc.Linear(4, 3, program=small()))
    first, second = torch.randn(2, 4), torch.randn(5, 6, 4)
    with nc.record(layer) as trace:
        layer(first)
        layer(second)
    assert trace[""].u.shape == (5, 6, 6, 6)
    assert_same_programs(trace.calls("")[0], layer.programs(first))
    assert_same_programs(trace[""], layer.programs(second))


def test_recorded_values_are_detached_and_training_is_unaffected():
    layer, x = randomised(nc.Conv2d(2, 3, 3, program=small())), torch.randn(2, 2, 6, 6)
    layer(x).sum().backward()
    expected = layer.memory.U.grad.clone()
    layer.zero_grad()
    with nc.record(layer) as trace:
        layer(x).sum().backward()
    torch.testing.assert_close(layer.memory.U.grad, expected, rtol=1e-5, atol=1e-4)
    assert not any(field.requires_grad for field in trace[""] if field is not None)


def test_recording_ends_with_the_block():
    layer, x = nc.Linear(4, 3, program=small()), torch.randn(2, 4)
    with nc.record(layer) as trace:
        layer(x)
    layer(x)
    assert len(trace.calls("")) == 1
    assert layer.recorded is None


def test_recording_ends_with_an_exception():
    layer, x = nc.Linear(4, 3, program=small()), torch.randn(2, 4)
    with pytest.raises(ValueError, match="x must have shape"), nc.record(layer) as trace:
        layer(torch.cat([layer(x), layer(x)], dim=-1))
    layer(x)
    assert len(trace.calls("")) == 2


def test_a_call_is_recorded_in_every_block_around_it():
    model = randomised(nc.recode(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3)), "*", small()), 0.5)
    inputs = [torch.randn(n, 4) for n in (1, 2, 3, 4)]
    with nc.record(model) as outer:
        model(inputs[0])
        with nc.record(model[1]) as inner, nc.record(model) as innermost:
            model(inputs[1])
            model(inputs[2])
        model(inputs[3])
        assert model[0].recorded is not None
    assert [model[0].recorded, model[1].recorded] == [None, None]
    assert [len(call.u) for call in outer.calls("0")] == [1, 2, 3, 4]
    assert [len(call.u) for call in outer.calls("1")] == [1, 2, 3, 4]
    assert [len(call.u) for call in inner.calls("")] == [2, 3]
    assert [len(call.u) for call in innermost.calls("0")] == [2, 3]
    for call, x in zip(outer.calls("0"), inputs, strict=True):
        assert_same_programs(call, model[0].programs(x))


def test_blocks_may_end_in_another_order():
    layer, x = nc.Linear(4, 3, program=small()), torch.randn(2, 4)
    first, second = nc.record(layer), nc.record(layer)
    one, two = first.__enter__(), second.__enter__()
    layer(x)
    first.__exit__(None, None, None)
    layer(x)
    second.__exit__(None, None, None)
    layer(x)
    assert (len(one.calls("")), len(two.calls(""))) == (1, 2)
    assert layer.recorded is None


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_calls_that_the_backward_repeats_are_not_recorded(use_reentrant):
    layer, x = randomised(nc.Linear(4, 3, program=small()), 0.5), torch.randn(2, 4, requires_grad=True)
    with nc.record(layer) as trace:
        checkpoint(layer, x, use_reentrant=use_reentrant).sum().backward()
    assert layer.memory.U.grad.any()
    assert len(trace.calls("")) == 1


def test_a_shared_layer_is_found_under_each_name():
    fc = nn.Linear(4, 4)
    model, x = nc.recode(nn.Sequential(fc, nn.Tanh(), fc), "0", small()), torch.randn(2, 4)
    randomised(model)
    with nc.record(model) as trace:
        model(x)
    assert list(trace) == ["0"]
    assert len(trace.calls("2")) == 2
    assert_same_programs(trace["2"], model[2].programs(model[1](model[0](x))))


def test_only_program_layers_are_recorded():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    nc.recode(model, "0", nc.MixtureConfig())
    with pytest.raises(ValueError, match=r"model must have a program layer to record, found none: use nc\.recode"):
        nc.record(model).__enter__()
    nc.recode(model, "1", small())
    with nc.record(model) as trace:
        model(torch.randn(2, 4))
    assert list(trace) == ["1"]


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled_models_are_recorded_without_compiling_anew(backend):
    from torch._dynamo.testing import CompileCounterWithBackend  # takes seconds

    torch._dynamo.reset()
    counter = CompileCounterWithBackend(backend)
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))
    randomised(nc.recode(model, "*", small(steps=1)), 0.5)
    compiled = torch.compile(model, backend=counter, fullgraph=True)
    compiled(torch.randn(2, 4))
    for _ in range(2):
        with nc.record(compiled) as trace:
            for _ in range(10):
                x = torch.randn(2, 4)
                y = compiled(x)
        assert list(trace) == ["0", "2"]
        assert len(trace.calls("2")) == 10
        assert_same_programs(trace["0"], model[0].programs(x))
        torch.testing.assert_close(compiled(x), y)
        assert len(trace.calls("2")) == 10
    assert counter.frame_count == 1


@pytest.mark.parametrize("outside", [True, False])
def test_a_compiled_part_of_a_model_is_recorded(outside):
    torch._dynamo.reset()
    model = randomised(nc.recode(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2)), "*", small()), 0.5)
    if outside:
        model[0] = torch.compile(model[0], backend="eager", fullgraph=True)
    else:
        model[0].compile(backend="eager", fullgraph=True)
    x = torch.randn(2, 4)
    model(x)
    with nc.record(model) as trace:
        model(x)
    assert list(trace) == ["0", "1"]
    assert_same_programs(trace["1"], model[1].programs(model[0](x)))


def test_blocks_that_overlap_leave_compiled_code_compiled():
    """The first to begin is the first to end, as in two threads."""
    torch._dynamo.reset()
    model, x = nc.recode(nn.Sequential(nn.Linear(4, 2)), "*", small()), torch.randn(2, 4)
    graphs = []
    compiled = torch.compile(model, backend=lambda graph, _: graphs.append(graph) or graph.forward)
    first, second = nc.record(compiled), nc.record(compiled)
    first.__enter__()
    trace = second.__enter__()
    first.__exit__(None, None, None)
    compiled(x)
    second.__exit__(None, None, None)
    assert (len(trace.calls("0")), len(graphs)) == (1, 0)
    compiled(x)
    assert (len(trace.calls("0")), len(graphs)) == (1, 1)


def test_a_model_compiled_inside_the_block_is_one_graph():
    """Nothing was compiled before it, so nothing runs uncompiled."""
    torch._dynamo.reset()
    model, x = nc.recode(nn.Sequential(nn.Linear(4, 2)), "*", small()), torch.randn(2, 4)
    with nc.record(model) as outer, nc.record(model) as inner, torch.compiler.set_stance("default"):
        torch.compile(model, backend="eager", fullgraph=True)(x)
    for trace in (outer, inner):
        assert_same_programs(trace["0"], model[0].programs(x))
