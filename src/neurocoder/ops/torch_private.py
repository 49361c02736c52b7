"""What the library needs of torch that torch does not document, all in one place.

A new version of torch may rename any of it: tests/test_torch_private.py calls each, and pyproject.toml allows only
versions that were tested.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch._C import _AutoDispatchBelowAutograd as BelowAutograd
from torch.nn.modules import module as _module
from torch.utils._pytree import tree_leaves

__all__ = [
    "BelowAutograd",
    "all_hooks",
    "at_end_of_backward",
    "current_backward",
    "has_global_hooks",
    "has_hooks",
    "is_dispatched",
    "is_exporting",
    "is_transformed",
    "tree_leaves",
]
# BelowAutograd: a context in which operations skip autograd, which makes each one cheaper.
# tree_leaves: the values in nested lists, tuples and dictionaries.


def current_backward() -> int:
    """The number of the backward pass that this thread runs; -1 outside of one."""
    return torch._C._current_graph_task_id()


def at_end_of_backward(call: Callable[[], None]) -> None:
    """Call this when the backward pass that this thread runs has ended; after what was registered before."""
    torch.autograd.Variable._execution_engine.queue_callback(call)


def is_dispatched() -> bool:
    """Whether a `TorchDispatchMode`, such as fake tensors, receives the operations."""
    return torch._C._len_torch_dispatch_stack() > 0


def is_exporting() -> bool:
    """Whether `torch.export` records operations. `torch.compiler.is_exporting()`, which reads the same flag, is always
    true to torch.compile before 2.13."""
    return torch.compiler._is_exporting_flag


def is_transformed() -> bool:
    """Whether `torch.func` or forward-mode differentiation is active; they support only torch operations."""
    return torch._C._are_functorch_transforms_active() or torch.autograd.forward_ad._current_level >= 0


def has_hooks(module: nn.Module) -> bool:
    """Whether a forward or backward hook is registered for this module."""
    forward = module._forward_hooks, module._forward_pre_hooks
    return any((*forward, module._backward_hooks, module._backward_pre_hooks))


def all_hooks(module: nn.Module) -> list[Any]:
    """The tables of all hooks of this module, its children and their parameters; a table may be empty or None.

    Without those of parameters that the layer itself has registered: they have an attribute `belongs_to_layer`.
    """
    tables = [table for part in module.modules() for key, table in vars(part).items() if key.endswith("_hooks")]
    for parameter in module.parameters():
        tables.append(parameter._backward_hooks)
        others = (parameter._post_accumulate_grad_hooks or {}).values()
        tables.append([hook for hook in others if not getattr(hook, "belongs_to_layer", False)])
    return tables


def has_global_hooks() -> bool:
    """Whether a forward or backward hook is registered for all modules."""
    forward = _module._global_forward_hooks, _module._global_forward_pre_hooks
    return any((*forward, _module._global_backward_hooks, _module._global_backward_pre_hooks))
