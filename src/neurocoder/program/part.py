"""The base of memory and controller: kernels may replace their calls, unless a user changed them."""

from __future__ import annotations

from typing import Any, ClassVar

from torch import nn

from ..ops.torch_private import has_hooks


class _PartType(type):
    """Notices methods that are replaced on the class, as in `ProgramController.attend = mine`."""

    def __setattr__(cls, name: str, value: Any) -> None:
        replaced = cls.__dict__.get("replaced")
        if replaced is not None and callable(cls.__dict__.get(name)):
            replaced.setdefault(name, cls.__dict__[name])
            if replaced[name] is value:  # put back, as a test's patch does
                del replaced[name]
        super().__setattr__(name, value)


class Part(nn.Module, metaclass=_PartType):
    """A part of a program layer.

    A kernel reads the parameters of a part without calling it. That would skip hooks, subclasses, parametrizations and
    methods replaced on the instance or on the class, so parts with any of these are called instead.
    """

    overridden: ClassVar[bool] = False
    """Whether a method was replaced on this instance."""
    replaced: ClassVar[dict[str, Any]]
    """The methods of this class that were replaced, as the library defines them."""

    def __init_subclass__(cls) -> None:
        cls.replaced = {}

    def __setattr__(self, name: str, value: Any) -> None:
        if callable(getattr(type(self), name, None)):
            object.__setattr__(self, "overridden", True)
        super().__setattr__(name, value)

    def is_customised(self, kind: type[Part]) -> bool:
        """Whether a user changed this part; `kind` is its class in the library."""
        return type(self) is not kind or self.overridden or bool(kind.replaced) or has_hooks(self)
