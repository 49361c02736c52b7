"""The interface of every coded layer, so surgery, losses, counting and checkpoints need not know a layer's kind."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, ClassVar, NoReturn, Self

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from . import ambient
from .config import Config, whole
from .precision import full_precision


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


class CodedLayer(nn.Module):
    """A layer whose weight depends on its input.

    A subclass sets the class attributes and the shape of the plain layer's weight, and implements the methods that
    raise `NotImplementedError`. In `like` it reads the geometry of the plain layer that it replaces.

    Example:
        >>> model = nc.recode(nn.Sequential(nn.Linear(8, 4), nn.ReLU()), "0", nc.ProgramConfig())
        >>> [isinstance(module, nc.CodedLayer) for module in model]
        [True, False]
        >>> model[0].weight.shape  # a stand-in: there is no single weight
        torch.Size([4, 8])
    """

    config_type: ClassVar[type[Config]]
    """The configuration that selects this layer in `recode`."""
    parts: ClassVar[dict[str, str]] = {}
    """Which part ("memory", "controller", "residual" or "main") the parameters under each attribute belong to; "main"
    by default."""
    undecayed: ClassVar[tuple[str, ...]] = ()
    """Attributes whose parameters an optimiser should not decay, besides biases."""

    name: str = ""
    """The layer's name in the model, if surgery put it there; for messages."""
    config: Config
    weight_shape: tuple[int, ...]
    control_dim: int | None
    bias: nn.Parameter | None
    template: nn.Module | None = None
    """The plain layer that `recode` replaced, without values, if `restore` cannot infer it (see `surgery.registry`)."""

    def __init__(
        self,
        config: Config | None,
        weight_shape: tuple[int, ...],
        control_dim: int | None,
        *,
        bias: bool = True,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        name = type(self).__name__
        config = self.config_type() if config is None else config
        if not isinstance(config, self.config_type):
            expected, got = self.config_type.__name__, type(config).__name__
            raise ValueError(f"{name}: {self.config_type.owner} must be a {expected}, got {got}")
        if not isinstance(bias, bool):
            raise ValueError(f"{name}: bias must be True or False, got {bias!r}")
        if dtype is not None and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
            raise ValueError(f"{name}: dtype must be a floating-point dtype, got {dtype!r}")
        self.config, self.weight_shape = config, weight_shape
        self.control_dim = None if control_dim is None else require_size(name, "control_dim", control_dim)
        self.ambient_control: Any = None  # see `ambient`
        self.recorded: Any = None  # what `nc.record` appends to

    def __getstate__(self) -> dict[str, Any]:
        """What is copied and pickled: everything but what `nc.control` and `nc.record` set temporarily."""
        return {**super().__getstate__(), "ambient_control": None, "recorded": None}

    @property
    def prototype(self) -> Tensor:
        """A tensor with the layer's dtype and device."""
        return next(self.parameters())

    @property
    def weight(self) -> ComposedWeight:
        """A stand-in with shape, dtype and device; there is no single weight (see `materialize`)."""
        return ComposedWeight(self)

    @weight.setter
    def weight(self, value: Any) -> None:
        raise ValueError(
            f"the weight of {self.name or type(self).__name__} cannot be set, or tied to another: it is a coded layer, "
            "whose weight is composed for each input. nc.restore it first; where transformers' tie_weights asks for "
            "it, set model.config.tie_word_embeddings = False"
        )

    def register_parameter(self, name: str, param: nn.Parameter | None) -> None:
        """As in `nn.Module`, whose error would only say that a weight already exists."""
        if name == "weight":
            object.__setattr__(self, name, param)  # to the setter above, past `nn.Module`
        super().register_parameter(name, param)

    @classmethod
    def like(
        cls, plain: nn.Module, config: Any, *, control_dim: int | None = None, device: torch.device | str | None = None
    ) -> Self:
        """A new layer with the geometry of `plain`, on its device (or another), with its own starting values."""
        raise NotImplementedError

    def start_from(self, weight: Tensor) -> None:
        """Make a new layer's first outputs those of a plain layer with this weight, if its kind can."""
        raise NotImplementedError

    def constant_weight(self) -> Tensor | None:
        """The weight in the plain layer's layout if it is the same for every input, as before training; else None."""
        raise NotImplementedError

    def mean_weight(self, x: Tensor, control: Tensor | None = None) -> tuple[Tensor, int]:
        """The mean weight over these inputs, in the plain layer's layout, and the number of programs in the mean."""
        raise NotImplementedError

    def describe(self) -> str:
        """The configuration in a few words, for `repr`."""
        raise NotImplementedError

    def to_plain(self) -> nn.Module:
        """A plain layer with this geometry, device and dtype; the caller fills its weight."""
        raise NotImplementedError

    def auxiliary_loss(self) -> Tensor:
        """What this layer adds to the training loss, already weighted."""
        raise NotImplementedError

    @classmethod
    def from_plain(cls, plain: Any, config: Any, *, control_dim: int | None = None) -> Self:
        """A coded layer to replace `plain`: same geometry, device, dtype, mode and bias, started from its weight.

        A frozen weight or bias stays frozen; new parameters are trainable.
        """
        layer = cls.like(plain, config, control_dim=control_dim)
        if not plain.weight.is_meta:
            with full_precision(plain.weight.device):
                layer.start_from(plain.weight)
                if layer.bias is not None:
                    layer.bias.copy_(plain.bias)
        layer.adopt(plain)
        return layer

    def adopt(self, plain: Any) -> None:
        """Copy mode and `requires_grad` from the plain layer."""
        self.train(plain.training)
        if self.bias is not None:
            self.bias.requires_grad_(plain.bias.requires_grad)
        for parameter in self.weight_parameters():
            parameter.requires_grad_(plain.weight.requires_grad)

    def rows(self, x: Tensor, control: Tensor | None) -> tuple[Tensor, torch.Size]:
        """What the controller reads, flattened (N, control width), and its leading dimensions."""
        raise NotImplementedError

    def weight_parameters(self) -> Iterator[nn.Parameter]:
        """The parameters that hold the plain layer's weight, and are frozen if it was."""
        yield from ()

    def stored(self) -> dict[str, int]:
        """Numbers that the layer keeps besides its parameters, by part, such as keys that are not trained."""
        return {}

    def written_numbers(self) -> int | None:
        """How many numbers of its memory are in use, if it grows; else None."""
        return None

    def part_of(self, name: str) -> str:
        """The part that the parameter with this name belongs to."""
        return self.parts.get(name.split(".")[0], "main")

    def decays(self, name: str) -> bool:
        """Whether an optimiser may decay the parameter with this name."""
        return name.split(".")[0] not in self.undecayed

    def resolve_control(self, control: Tensor | None) -> Tensor | None:
        """The control to read: the argument, or the one set by `nc.control`, or None for the layer's own input."""
        if control is None:
            control = ambient.current(self)
        name = type(self).__name__
        if control is not None:
            require_floating("control", control)
        if control is None and self.control_dim is not None:
            raise ValueError(
                f"control must be given: this {name} has control_dim={self.control_dim}; call layer(x, control=z) or "
                "run the model inside `with nc.control(model, z):`"
            )
        if control is not None and self.control_dim is None:
            width = f"={control.shape[-1]}" if control.dim() else ""
            raise ValueError(
                f"control was given, but this {name} reads its own input: build it with control_dim{width}"
            )
        return control

    def match_control(self, control: Tensor, leading: torch.Size) -> None:
        """Require a control (..., control_dim) whose leading dimensions are the first of the input's."""
        shape = control.shape
        if control.dim() == 0 or shape[-1] != self.control_dim:
            raise ValueError(f"control must have shape (..., {self.control_dim}), got {tuple(shape)}")
        if shape[:-1] != leading[: control.dim() - 1]:
            raise ValueError(
                f"control's leading dimensions must be the first of x's {tuple(leading)}, got {tuple(shape[:-1])}"
            )


def require_floating(name: str, value: Any) -> None:
    """Require a floating-point tensor."""
    if not isinstance(value, Tensor) or not value.is_floating_point():
        got = value.dtype if isinstance(value, Tensor) else type(value).__name__
        raise ValueError(f"{name} must be a floating-point tensor, got {got}")


def require_plain(owner: str, plain: Any, *attributes: str) -> None:
    """Require the attributes of the plain layer to replace."""
    if not all(hasattr(plain, name) for name in (*attributes, "weight", "bias")):
        raise ValueError(f"{owner}: plain must have {', '.join(attributes)}, weight and bias, got {plain!r}")


def require_size(owner: str, name: str, value: Any) -> int:
    """Require a layer size to be a whole number of at least one; returns it as an int."""
    size = whole(value)
    if size is None:
        raise ValueError(f"{owner}: {name} must be a whole number >= 1, got {value!r}")
    return size


def each_coded_layer(*modules: nn.Module) -> Iterator[CodedLayer]:
    """The coded layers of these modules, each once even if it is shared. No names, so it is quick in every step."""
    seen: set[int] = set()
    for module in modules:
        for child in module.modules():
            if "original_module" in child._modules and "modules_to_save" in child._modules:
                # PEFT's wrapper trains a copy and keeps the original, which is not called.
                seen.update(map(id, child.original_module.modules()))
            if isinstance(child, CodedLayer) and id(child) not in seen:
                seen.add(id(child))
                yield child


def coded_layers(*modules: nn.Module) -> dict[str, CodedLayer]:
    """The coded layers of these modules by name, each once even if it is shared."""
    unnamed = {id(layer): layer for layer in each_coded_layer(*modules)}
    found: dict[str, CodedLayer] = {}
    for module in modules:
        for name, child in module.named_modules():
            if id(child) in unnamed:
                found[name if name not in found else f"{name}#{len(found)}"] = unnamed.pop(id(child))
    return found
