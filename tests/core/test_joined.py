"""Slots and residual in one product, as compiled code on a GPU has them, against the separate products."""

import pytest
import torch
from core_helpers import CONTROL, randomised

import neurocoder as nc
from neurocoder.core import linear as core_linear
from neurocoder.layer import linear as layer_linear

SIZES = pytest.mark.parametrize("sizes", [(12, 30), (30, 17)])


def join(monkeypatch, answer=True):
    for module in (layer_linear, core_linear):
        monkeypatch.setattr(module, "joins", lambda x, R, slots: answer and slots > 0)


def results(layer, given):
    """Output, and the gradients of inputs and parameters."""
    leaves = [x.detach().requires_grad_() for x in given]
    y = layer(*leaves)
    wanted = [*leaves, *(parameter for parameter in layer.parameters() if parameter.requires_grad)]
    return [y, *torch.autograd.grad(y.float().sin().sum(), wanted)]


@SIZES
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("options", [{"slots": 4, "shift": True}, {"slots": 4, "diagonal": True}, None])
def test_values_and_gradients_are_those_of_separate_products(sizes, bias, options, monkeypatch):
    """`options` None: a layer that reads its own input, with a gate."""
    steered = options is not None
    config = nc.CoreConfig(**(options or {}))
    layer = nc.CoreLinear(*sizes, bias=bias, core=config, control_dim=CONTROL if steered else None, dtype=torch.float64)
    randomised(layer)
    for lead in ((5,), (5, 3)):
        given = [torch.randn(*lead, sizes[0], dtype=torch.float64)]
        given += [torch.randn(5, CONTROL, dtype=torch.float64)] if steered else []
        join(monkeypatch, False)
        with nc.backend("torch"):
            expected = results(layer, given)
            join(monkeypatch)
            found = results(layer, given)
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one, other)


@SIZES
@pytest.mark.parametrize("control_dim", [None, CONTROL])
def test_under_autocast_products_are_narrow_and_gradients_wide(sizes, control_dim, monkeypatch):
    layer = randomised(nc.CoreLinear(*sizes, core=nc.CoreConfig(slots=4), control_dim=control_dim), 0.2)
    given = [torch.randn(6, sizes[0])] + ([] if control_dim is None else [torch.randn(6, CONTROL)])
    expected = results(layer, given)
    join(monkeypatch)
    with torch.autocast("cpu", torch.bfloat16), nc.backend("torch"):
        found = results(layer, given)
    assert found[0].dtype == torch.bfloat16
    for one, other in zip(found[1:], expected[1:], strict=True):
        assert one.dtype == torch.float32
        assert (one - other).norm() <= 0.05 * other.norm()


@pytest.mark.parametrize(
    ("sizes", "slots", "changes", "expected"),
    [
        ((16, 48), 8, {}, True),
        ((48, 16), 8, {}, True),
        ((16, 24), 8, {}, False),  # nearly square
        ((16, 48), 4, {}, False),  # rows that are not aligned
        ((16, 48), 8, {"frozen": True}, False),  # the gradient of a frozen R would be computed
        ((16, 48), 8, {"device": "cpu"}, False),
        ((16, 48), 8, {"eager": True}, False),
    ],
)
def test_when_products_are_joined(sizes, slots, changes, expected, monkeypatch):
    monkeypatch.setattr(layer_linear, "is_traced", lambda: "eager" not in changes)

    class Somewhere:
        device = torch.device(changes.get("device", "cuda"))

    R = torch.nn.Parameter(torch.zeros(sizes[1], sizes[0]), requires_grad="frozen" not in changes)
    assert layer_linear.joins(Somewhere, R, slots) is expected
    with torch.no_grad():
        assert layer_linear.joins(Somewhere, R, slots) is (expected or "frozen" in changes)
