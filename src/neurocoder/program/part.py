"""The base of memory and controller: kernels may replace their calls, unless a user changed them."""

from __future__ import annotations

from typing import Any

from torch import nn


class _PartType(type):
    """Notices methods that are replaced on the class, as in `ProgramController.attend = mine`, and put back."""

    customised: bool
    _methods: dict[str, Any]
    """Of a class of the library, as the library defines them; empty for a user's."""

    def __setattr__(cls, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name in cls._methods:
            cls.customised = any(vars(cls)[each] is not method for each, method in cls._methods.items())


class Part(nn.Module, metaclass=_PartType):
    """A part of a program layer.

    A kernel reads the parameters of a part without calling it. That would skip hooks, subclasses, parametrizations and
    methods replaced on the instance or on the class, so parts with any of these are called instead.
    """

    customised: bool
    """Whether a method was replaced on this instance or its class, or the class is not the library's."""
    _methods: dict[str, Any] = {}

    def __init_subclass__(cls) -> None:
        cls.customised = Part not in cls.__bases__
        cls._methods = {} if cls.customised else {name: one for name, one in vars(cls).items() if callable(one)}

    def __setattr__(self, name: str, value: Any) -> None:
        if callable(getattr(type(self), name, None)):
            object.__setattr__(self, "customised", True)
        super().__setattr__(name, value)
