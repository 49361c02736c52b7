"""The base of memory and controller: kernels may replace their calls, unless a user changed them."""

from __future__ import annotations

from typing import Any, ClassVar

from torch import nn
from torch.nn.modules import module as nn_module


class Part(nn.Module):
    """A part of a program layer.

    A kernel reads the parameters of a part without calling it. That would skip hooks, subclasses, parametrizations and
    methods replaced on the instance, so parts with any of these are called instead.
    """

    overridden: ClassVar[bool] = False

    def __setattr__(self, name: str, value: Any) -> None:
        if callable(getattr(type(self), name, None)):
            object.__setattr__(self, "overridden", True)
        super().__setattr__(name, value)

    def is_changed(self, kind: type[Part]) -> bool:
        """Whether a user changed this part; `kind` is its class in the library."""
        return type(self) is not kind or self.overridden or is_hooked(self)


def is_hooked(module: nn.Module) -> bool:
    """Whether a hook is registered for this module."""
    forward = module._forward_hooks or module._forward_pre_hooks
    return bool(forward or module._backward_hooks or module._backward_pre_hooks)


def has_global_hooks() -> bool:
    """Whether a hook is registered for all modules."""
    forward = nn_module._global_forward_hooks or nn_module._global_forward_pre_hooks
    return bool(forward or nn_module._global_backward_hooks or nn_module._global_backward_pre_hooks)
