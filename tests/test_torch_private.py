"""What the library uses of torch that torch does not document: each is called, in a case that is known."""

import re
import tomllib
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.modules import module as nn_module
from torch.utils._python_dispatch import TorchDispatchMode

from neurocoder.ops import torch_private

ROOT = Path(__file__).parents[1]
PRIVATE = re.compile(
    r"torch\._(?!_version__|dynamo|foreach)|torch\.\w+\._|_global_(forward|backward)|\._(forward|backward)_(pre_)?hooks"
)

KINDS = ["forward_hook", "forward_pre_hook", "full_backward_hook", "full_backward_pre_hook"]


def test_current_backward():
    seen = []
    x = torch.ones(1, requires_grad=True)
    x.register_hook(lambda grad: seen.append(torch_private.current_backward()))
    assert torch_private.current_backward() == -1
    (2 * x).backward()
    assert seen[0] >= 0
    assert torch_private.current_backward() == -1


def test_at_end_of_backward():
    order = []

    def register(grad):
        order.append("hook")
        torch_private.at_end_of_backward(lambda: torch_private.at_end_of_backward(lambda: order.append("last")))
        torch_private.at_end_of_backward(lambda: order.append(x.grad.item()))

    x = torch.ones(1, requires_grad=True)
    y = 2 * x
    y.register_hook(register)
    y.backward()
    assert order == ["hook", 2.0, "last"]


def test_is_dispatched():
    class Mode(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            return func(*args, **(kwargs or {}))

    assert not torch_private.is_dispatched()
    with Mode():
        assert torch_private.is_dispatched()


def test_is_exporting():
    class Model(nn.Module):
        def forward(self, x):
            return x + 1 if torch_private.is_exporting() else x - 1

    x = torch.zeros(2)
    assert torch.equal(Model()(x), x - 1)
    assert torch.equal(torch.compile(Model(), backend="eager")(x), x - 1)
    assert torch.equal(torch.export.export(Model(), (x,)).module()(x), x + 1)


def test_is_transformed():
    seen = []

    def f(x):
        seen.append(torch_private.is_transformed())
        return x.sum()

    f(torch.ones(2))
    torch.func.grad(f)(torch.ones(2))
    torch.func.vmap(f)(torch.ones(2, 2))
    with torch.autograd.forward_ad.dual_level():
        f(torch.ones(2))
    assert seen == [False, True, True, True]


@pytest.mark.parametrize(
    "register",
    [
        "register_forward_hook",
        "register_forward_pre_hook",
        "register_full_backward_hook",
        "register_full_backward_pre_hook",
    ],
)
def test_has_hooks(register):
    layer = nn.Linear(2, 2)
    assert not torch_private.has_hooks(layer)
    handle = getattr(layer, register)(lambda *_: None)
    assert torch_private.has_hooks(layer)
    handle.remove()
    assert not torch_private.has_hooks(layer)


@pytest.mark.parametrize(
    "register", ["forward_hook", "forward_pre_hook", "full_backward_hook", "full_backward_pre_hook"]
)
def test_has_global_hooks(register):
    assert not torch_private.has_global_hooks()
    handle = getattr(nn_module, f"register_module_{register}")(lambda *_: None)
    try:
        assert torch_private.has_global_hooks()
    finally:
        handle.remove()
    assert not torch_private.has_global_hooks()


def test_all_hooks():
    layer = nn.Sequential(nn.Linear(2, 2))
    assert not any(torch_private.all_hooks(layer))
    weight = layer[0].weight
    for register in (layer[0].register_forward_hook, weight.register_hook, weight.register_post_accumulate_grad_hook):
        handle = register(lambda *_: None)
        assert any(torch_private.all_hooks(layer)), register
        handle.remove()
        assert not any(torch_private.all_hooks(layer)), register

    def own(parameter):
        """As a growing layer's, which goes with its layer."""

    own.belongs_to_layer = True
    weight.register_post_accumulate_grad_hook(own)
    assert not any(torch_private.all_hooks(layer))


def test_tree_leaves():
    assert torch_private.tree_leaves((1, {"a": [2, 3]}, None)) == [1, 2, 3, None]


def test_each_is_called_here():
    tests = Path(__file__).read_text()
    assert [name for name in torch_private.__all__ if f"torch_private.{name}" not in tests] == []


def test_below_autograd():
    x = torch.ones(2, requires_grad=True)
    with torch_private.BelowAutograd():
        y = 2 * x
    assert y.grad_fn is None


def test_all_of_it_stands_in_one_file():
    library = ROOT / "src" / "neurocoder"
    files = [path for path in library.rglob("*.py") if "lab" not in path.relative_to(library).parts]
    found = {str(path.relative_to(library)) for path in files if PRIVATE.search(path.read_text())}
    assert found == {"ops/torch_private.py"}


def test_only_versions_that_were_tested_are_allowed():
    allowed = next(
        one for one in tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"] if "torch" in one
    )
    tested = re.search(r"^torch==(\d+)\.(\d+)", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    assert allowed == f"torch>=2.11,<{tested[1]}.{int(tested[2]) + 1}"
