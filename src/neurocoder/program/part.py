"""The base of memory and controller: kernels may replace their calls, unless a user changed them."""

from __future__ import annotations

from typing import Any

from torch import nn


class _PartType(type):
    """Notices methods that are replaced on the class, as in `ProgramController.attend = mine`."""

    customised: bool
    replaced: dict[str, Any]

    def __setattr__(cls, name: str, value: Any) -> None:
        own = vars(cls)
        if "replaced" in own and callable(own.get(name)):
            cls.replaced.setdefault(name, own[name])
            if cls.replaced[name] is value:  # put back, as a test's patch does
                del cls.replaced[name]
            cls.customised = bool(cls.replaced)
        super().__setattr__(name, value)


class Part(nn.Module, metaclass=_PartType):
    """A part of a program layer.

    A kernel reads the parameters of a part without calling it. That would skip hooks, subclasses, parametrizations and
    methods replaced on the instance or on the class, so parts with any of these are called instead.
    """

    customised: bool
    """Whether a method was replaced on this instance or its class, or the class is not the library's."""
    replaced: dict[str, Any]
    """The methods of a class of the library that were replaced, as the library defines them."""

    def __init_subclass__(cls) -> None:
        cls.customised = Part not in cls.__bases__
        if not cls.customised:
            cls.replaced = {}

    def __setattr__(self, name: str, value: Any) -> None:
        if callable(getattr(type(self), name, None)):
            object.__setattr__(self, "customised", True)
        super().__setattr__(name, value)
