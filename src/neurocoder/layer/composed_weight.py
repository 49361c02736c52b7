"""What stands in for the weight of a coded layer, which has no single one."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

import torch

from ..ops.torch_private import tree_leaves

if TYPE_CHECKING:
    from .base import CodedLayer


class ComposedWeight:
    """Takes the place of a plain layer's `weight`: it has a shape, a dtype and a device, but no values.

    Modules that only look at `child.weight.dtype` work. `nn.TransformerEncoderLayer` sees `__torch_function__` and
    leaves its fast path, which would multiply by the weight. Any other use raises an error that says what to do.
    """

    def __init__(self, layer: CodedLayer) -> None:
        tensor = layer.prototype
        self.shape = torch.Size(layer.weight_shape)
        self.dtype, self.device, self.requires_grad = tensor.dtype, tensor.device, tensor.requires_grad
        self._owner = f"layer {layer.name!r}" if layer.name else f"this {type(layer).__name__}"

    def size(self, dim: int | None = None) -> torch.Size | int:
        """The shape of the plain layer's weight, or one dimension of it."""
        return self.shape if dim is None else self.shape[dim]

    def dim(self) -> int:
        """The number of dimensions of the plain layer's weight."""
        return len(self.shape)

    ndim = property(dim)

    def numel(self) -> int:
        """The number of values in one weight."""
        return self.shape.numel()

    def __repr__(self) -> str:
        return f"ComposedWeight(of={self._owner}, shape={tuple(self.shape)}, dtype={self.dtype})"

    def _refusal(self, use: str) -> str:
        return (
            f"{use} needs the weight of {self._owner}, which is composed for each input: call the layer itself, take "
            "layer.materialize(x) for the weights of some inputs, or nc.restore it to a plain layer first"
        )

    def __len__(self) -> int:
        return self.shape[0]

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("_"):  # Python itself looks these up, to copy an object for instance
            raise AttributeError(name)
        raise AttributeError(self._refusal(f".{name}"))

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> NoReturn:
        found = next(value for value in tree_leaves((args, kwargs)) if isinstance(value, cls))
        raise TypeError(found._refusal(getattr(func, "__name__", str(func))))


def _refuse(name: str) -> Callable[..., NoReturn]:
    def operator(self: ComposedWeight, *_: Any) -> NoReturn:
        raise TypeError(self._refusal(name))

    return operator


_BINARY = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul")
_OTHER = ("neg", "abs", "invert", "getitem", "setitem", "iter", "float", "int", "bool", "lt", "le", "gt", "ge")
for _name in (*_BINARY, *(f"r{name}" for name in _BINARY), *(f"i{name}" for name in _BINARY), *_OTHER):
    setattr(ComposedWeight, f"__{_name}__", _refuse(f"__{_name}__"))
