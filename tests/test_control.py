"""Steering a model by another tensor: `nc.control`."""

import threading
import warnings

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import neurocoder as nc
from conftest import assert_same_programs, randomised, small


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


def test_blocks_of_generators_that_overlap_are_warned_of_and_end():
    model, x = steered(), torch.randn(5, 4)

    def stream(z):
        with nc.control(model, z):
            yield model(x)

    first, second = stream(torch.randn(5, 3)), stream(torch.randn(5, 3))
    next(first), next(second)
    with pytest.warns(UserWarning, match="overlapped, as those of generators that yield inside of one do"):
        first.close()
    second.close()
    with pytest.raises(ValueError, match="control must be given"):
        model(x)
    assert model[0].ambient_control is None


def test_a_block_that_another_thread_ends_steers_no_more():
    model, x = steered(), torch.randn(5, 4)
    block = nc.control(model, torch.randn(5, 3))
    block.__enter__()
    found = []

    def end():
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            block.__exit__(None, None, None)
        found.extend(str(one.message) for one in seen)

    thread = threading.Thread(target=end)
    thread.start()
    thread.join()
    assert "overlapped" in found[0]
    with pytest.raises(ValueError, match="control must be given"):
        model(x)


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


def test_two_threads_with_blocks_at_once_are_an_error_in_compiled_code():
    """Compiled code cannot tell threads apart."""
    torch._dynamo.reset()
    model, x = steered(), torch.randn(5, 4)
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    z, other = torch.randn(5, 3), torch.randn(5, 3)
    entered, leave = threading.Event(), threading.Event()

    def steer():
        with nc.control(model, other):
            entered.set()
            leave.wait()

    with nc.control(model, z):
        expected = model(x)
        torch.testing.assert_close(compiled(x), expected)
        thread = threading.Thread(target=steer)
        thread.start()
        entered.wait()
        torch.testing.assert_close(model(x), expected)
        with pytest.raises((ValueError, torch._dynamo.exc.Unsupported), match="several threads or tasks steer"):
            compiled(x)
        leave.set()
        thread.join()
        torch.testing.assert_close(compiled(x), expected)


def test_another_thread_is_not_steered():
    model, x, errors = steered(), torch.randn(5, 4), []

    def run():
        try:
            model(x)
        except ValueError as error:
            errors.append(str(error))

    with nc.control(model, torch.randn(5, 3)):
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
    assert len(errors) == 1
    assert errors[0].startswith("control must be given")


def test_a_backward_in_a_thread_of_its_own_computes_the_forward_again_with_the_control():
    """As on a GPU, whose backward has a thread of its own."""
    model, x, z = steered(), torch.randn(5, 4, requires_grad=True), torch.randn(5, 3)
    with nc.control(model, z):
        model(x).sum().backward()
        expected, x.grad = x.grad, None
        y = checkpoint(model, x, use_reentrant=False).sum()
        thread = threading.Thread(target=y.backward)
        thread.start()
        thread.join()
    torch.testing.assert_close(x.grad, expected)


def test_compiled_code_without_a_control_says_so():
    model = nn.Sequential(nc.CoreLinear(4, 3, control_dim=2))
    with pytest.raises(torch._dynamo.exc.Unsupported, match="control must be given: this CoreLinear has control_dim=2"):
        torch.compile(model, backend="eager", fullgraph=True)(torch.randn(2, 4))
