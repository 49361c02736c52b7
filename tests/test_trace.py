"""`record` and `control`."""

import pytest
import torch
from torch import nn

import neurocoder as nc
from conftest import randomised, small


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


def assert_same_programs(actual, expected):
    for name, value in expected._asdict().items():
        if value is None:
            assert getattr(actual, name) is None
        else:
            torch.testing.assert_close(getattr(actual, name), value)


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
    assert torch.equal(layer.memory.U.grad, expected)
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


def test_recordings_do_not_mix():
    layer, x = nc.Linear(4, 3, program=small()), torch.randn(2, 4)
    with nc.record(layer) as outer:
        layer(x)
        with nc.record(layer) as inner:
            layer(x)
            layer(x)
        layer(x)
    assert (len(outer.calls("")), len(inner.calls(""))) == (2, 2)


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


def steered():
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))
    nc.recode(model, "0", small(), control_dim=3)
    nc.recode(model, "2", small())
    return randomised(model, 0.5)


def test_control_steers_and_is_undone():
    model, x, z = steered(), torch.randn(5, 4), torch.randn(5, 3)
    expected = model[2](model[0](x, control=z).tanh())
    with nc.control(model, z):
        torch.testing.assert_close(model(x), expected)
    with pytest.raises(ValueError, match=r"control must be given: this Linear has control_dim=3; .*nc\.control"):
        model(x)


def test_control_nests_and_survives_exceptions():
    model, x = steered(), torch.randn(5, 4)
    z, other = torch.randn(5, 3), torch.randn(5, 3)
    with nc.control(model, z):
        expected = model(x)
        with nc.control(model, other):
            assert (model(x) - expected).abs().max() > 1e-3
        torch.testing.assert_close(model(x), expected)
        with pytest.raises(ValueError, match="x must have shape"), nc.control(model, other):
            model(torch.randn(5, 3))
        torch.testing.assert_close(model(x), expected)
    assert model[0].ambient_control is None


def test_an_argument_overrides_the_surrounding_control():
    model, x, z = steered(), torch.randn(5, 4), torch.randn(5, 3)
    with nc.control(model, torch.randn(5, 3)):
        inside = model[0](x, control=z)
    torch.testing.assert_close(inside, model[0](x, control=z))


def test_control_carries_gradients():
    model, x, z = steered(), torch.randn(5, 4), torch.randn(5, 3, requires_grad=True)
    with nc.control(model, z):
        model(x).square().sum().backward()
    assert z.grad.abs().max() > 0


def test_control_and_record_together():
    model, x, z = steered(), torch.randn(5, 4), torch.randn(5, 3)
    with nc.control(model, z), nc.record(model) as trace:
        model(x)
    assert_same_programs(trace["0"], model[0].programs(x, control=z))


def test_control_of_a_compiled_model():
    torch._dynamo.reset()
    model, x = steered(), torch.randn(5, 4)
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    for _ in range(3):
        with nc.control(compiled, torch.randn(5, 3)):
            torch.testing.assert_close(compiled(x), model(x))


@pytest.mark.parametrize("z", [torch.randn(5, 4), torch.randn(3, 5), torch.tensor(1.0)])
def test_control_of_the_wrong_width_is_refused_before_anything_happens(z):
    model = steered()
    with pytest.raises(ValueError, match=r"control must have shape \(\.\.\., 3\), got \("):
        nc.control(model, z).__enter__()
    assert model[0].ambient_control is None


def test_control_of_the_wrong_batch_is_refused():
    model, x = steered(), torch.randn(5, 4)
    with (
        nc.control(model, torch.randn(4, 3)),
        pytest.raises(ValueError, match=r"leading dimensions must be the first of .* \(5,\), got \(4,\)"),
    ):
        model(x)


def test_control_without_a_layer_to_steer():
    with pytest.raises(ValueError, match=r"model must have a layer that was built with control_dim, found none"):
        nc.control(nc.Linear(4, 3, program=small()), torch.randn(2, 3)).__enter__()
