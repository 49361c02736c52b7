"""The interface of every coded layer, so surgery, losses, counting and checkpoints need not know a layer's kind."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from ..ops.torch_private import current_backward
from .active import ActiveProgram, Mixes
from .checks import require_choice, require_floating, require_plain, require_whole
from .composed_weight import ComposedWeight
from .config import Config
from .control import current_control
from .start import full_precision, plain_weight

CHUNK = 1024
"""Programs that a mean weight takes at a time."""
PROBES = 16
"""Random controls that tell whether a program is constant."""


class CodedLayer(nn.Module):
    """A layer whose weight depends on its input: `y = g(z) R x + V^T M(z) U x + bias`.

    `U (P, d_in)` and `V (P, d_out)` are shared by all inputs; `M(z) (P, P)` says how a control z (the input itself, or
    what steers it) combines them; `g(z)` is a factor on the residual `R (d_out, d_in)`. There are two axes:

    - A **kind** says what M and g are: it sets `config_type` and `parts`, creates its parameters in `build`, gives them
      values in `start`, and answers `compose(rows)` with an `ActiveProgram`. All else follows from the equation.
    - A **geometry**, `CodedLinear` or `CodedConv`, says how U, V and R meet x.

    A layer is one of each: `class Linear(CodedLinear, ProgramLayer)`. A layer of another form overrides what it
    computes otherwise: `forward`, `materialize`, `constant_weight`, `mean_weight`.

    Example:
        >>> model = nc.recode(nn.Sequential(nn.Linear(8, 4), nn.ReLU()), "0", nc.ProgramConfig())
        >>> [isinstance(module, nc.CodedLayer) for module in model]
        [True, False]
        >>> model[0].weight.shape  # a stand-in: there is no single weight
        torch.Size([4, 8])
    """

    config_type: ClassVar[type[Config]]
    """The configuration that selects this layer in `recode`."""
    plain_type: ClassVar[Callable[..., nn.Module]]
    """The layer of torch.nn with this geometry."""
    required: ClassVar[tuple[str, ...]] = ()
    """Attributes that a plain layer must have to be replaced, besides weight and bias."""
    parts: ClassVar[dict[str, str]] = {}
    """Which part ("memory", "controller", "residual" or "main") the parameters under each attribute belong to; "main"
    by default."""
    undecayed: ClassVar[tuple[str, ...]] = ()
    """Attributes whose parameters an optimiser should not decay, besides biases."""

    grows: ClassVar[bool] = False
    """Whether the layer allocates slots as it learns."""

    name: str = ""
    """The layer's name in the model, if surgery put it there; for messages."""
    config: Config
    weight_shape: tuple[int, ...]
    control_dim: int | None
    bias: nn.Parameter | None
    R: nn.Parameter | None
    """The residual, of the plain weight's shape, if the kind has one."""
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
        require_choice(f"{name}: bias", bias)
        if dtype is not None and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
            raise ValueError(f"{name}: dtype must be a floating-point dtype, got {dtype!r}")
        self.config, self.weight_shape = config, weight_shape
        self.control_dim = None if control_dim is None else require_whole(f"{name}: control_dim", control_dim)
        self.ambient_control: Any = None  # see `control`
        self.recorded: Any = None  # see `inspect.record`
        self.R = None

    def create(self, bias: bool, device: torch.device | str | None, dtype: torch.dtype | None) -> None:
        """Create all parameters without values, on the meta device, then give them their starting values.

        So all random numbers are drawn in one place, in float32 on the CPU: a seed gives the same layer on any device
        and in any dtype.
        """
        options: dict[str, Any] = {"device": "meta", "dtype": dtype}
        self.build(options)
        if self.has_residual:
            self.R = nn.Parameter(torch.empty(self.weight_shape, **options))
        self.bias = nn.Parameter(torch.empty(self.weight_shape[0], **options)) if bias else None
        self.to_empty(device=torch.get_default_device() if device is None else device)
        self.reset_parameters()
        self.freeze_residual()

    def build(self, options: dict[str, Any]) -> None:
        """Create the kind's parameters, other than R and the bias, with these options (device and dtype)."""
        raise NotImplementedError

    def start(self) -> None:
        """Give the kind's parameters their starting values, other than R and the bias."""
        raise NotImplementedError

    def reset_parameters(self, weight: Tensor | None = None) -> None:
        """Set the starting values: those of a plain layer with this weight, or with a new one; a no-op on meta."""
        if self.prototype.is_meta:
            return
        with full_precision(self.prototype.device):
            self.start()
            if hasattr(self.config, "residual"):
                drawn = plain_weight(self.weight_shape)  # also if unused: a seed draws the same numbers either way
                if weight is None:
                    self.start_from(drawn)
            if self.bias is not None:
                self.bias.copy_(self.drawn_bias())
            if weight is not None:
                self.start_from(weight)

    def drawn_bias(self) -> Tensor:
        """A starting value of the bias: uniform in `±1 / sqrt(d_in)`."""
        return plain_weight((self.d_out, self.d_in))[:, 0]

    @property
    def d_in(self) -> int:
        """Numbers that one output reads: in_features, or in_channels times the kernel's size."""
        return math.prod(self.weight_shape[1:])

    @property
    def d_out(self) -> int:
        """out_features, or out_channels."""
        return self.weight_shape[0]

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of the smallest input: (in_features,), or (in_channels, 1, ...)."""
        return self.weight_shape[1], *[1] * len(self.weight_shape[2:])

    @property
    def control_width(self) -> int:
        """d_z: width of what the controller reads, the control or the layer's own input."""
        return self.weight_shape[1] if self.control_dim is None else self.control_dim

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
        require_plain(cls.__name__, plain, *cls.required)
        coded: Any = cls  # a geometry's constructor has other arguments than this class's
        weight: Any = plain.weight
        device = weight.device if device is None else device
        return coded(*cls.arguments(plain), config, control_dim=control_dim, device=device, dtype=weight.dtype)

    @staticmethod
    def arguments(layer: Any) -> tuple[Any, ...]:
        """The arguments that a layer of torch.nn, like this one, is built from, in their order."""
        raise NotImplementedError

    @property
    def has_residual(self) -> bool:
        """Whether the layer has a residual `R`: if its config has a field `residual`, whether that is set."""
        return bool(getattr(self.config, "residual", False))

    def compose(self, rows: Tensor) -> ActiveProgram:
        """`M(z)` and `g(z)` of N controls z (N, d_z), with U and V: all that a kind has to say about its forward."""
        raise NotImplementedError

    @property
    def has_programs(self) -> bool:
        """Whether the layer composes programs, which `programs` returns and `nc.record` keeps."""
        kind = type(self)
        return kind.compose is not CodedLayer.compose or kind.programs is not CodedLayer.programs

    def programs(self, x: Tensor, control: Tensor | None = None) -> Any:
        """How the programs of these inputs are composed; leading dimensions are the control's (or the input's)."""
        rows, leading = self.rows(x, self.resolve_control(control))
        active = self.compose(rows)
        matrix, scale = active.matrix(), active.scale
        matrix = matrix.expand(len(rows), -1, -1).reshape(*leading, *matrix.shape[1:])
        return Mixes(matrix, None if scale is None else scale.reshape(*leading, 1))

    def record_programs(self, x: Tensor, control: Tensor | None) -> None:
        """Keep the programs of this call if `nc.record` asked for them."""
        recorder = self.recorded  # another thread may end its block meanwhile
        if recorder is not None:
            with torch.no_grad():
                recorder.append(self.programs(x, control).detach())

    def shares(self, rows: Tensor) -> Tensor | None:
        """How a layer without programs divides each input among its parts (N, parts); None if it does not."""
        return None

    def materialize(self, x: Tensor, control: Tensor | None = None) -> Tensor:
        """`W_t` (..., *weight) of each input. For inspection: memory grows with the batch."""
        rows, leading = self.rows(x, self.resolve_control(control))
        return self.materialized(self.compose(rows).weight(self.R), leading)

    def materialized(self, weight: Tensor, leading: torch.Size) -> Tensor:
        """Weights (N, d_in, d_out) in the layout of `materialize`."""
        raise NotImplementedError

    def start_from(self, weight: Tensor) -> None:
        """Make a new layer's first outputs those of a plain layer with this weight, if its kind can.

        By default `R = (W - P_t) / g`, if the first program P_t is the same for every input; without a residual the
        layer keeps its own starting values.
        """
        if self.R is None:
            return
        first = self.constant_program()
        if first is None:
            raise ValueError(
                f"{type(self).__name__}: the first program must be the same for every input, so that R can absorb it; "
                "start V, say, at zero, or override start_from"
            )
        active, scale = first
        self.R.copy_(((weight.detach().to(active).flatten(1) - active) / scale).view(self.weight_shape))

    def constant_program(self) -> tuple[Tensor, Tensor | float] | None:
        """`P_t` (d_out, d_in) and g, in at least float32, if they are the same for every input; else None.

        By default a few random controls are tried. A kind that knows better overrides this.
        """
        like = self.prototype
        with full_precision(like.device):
            wide = torch.promote_types(like.dtype, torch.float32)
            generator = torch.Generator().manual_seed(0)
            probes = torch.randn(PROBES, self.control_width, generator=generator, dtype=torch.float32).to(like)
            first = self.compose(torch.zeros_like(probes[:1]))
            weight, scale = first.weight(), first.scale
            for other in map(self.compose, probes.split(1)):
                same_scale = scale is None or other.scale is None or torch.equal(scale, other.scale)
                if not (same_scale and torch.equal(weight, other.weight())):
                    return None
            return weight[0].mT.to(wide), 1.0 if scale is None else scale[0, 0].to(wide)

    def constant_weight(self) -> Tensor | None:
        """The weight in the plain layer's layout if it is the same for every input, as before training; else None."""
        found = self.constant_program()
        if found is None:
            return None
        active, scale = found
        weight = active.reshape(self.weight_shape)
        return weight if self.R is None else weight + scale * self.R.detach().to(active)

    def mean_weight(self, x: Tensor, control: Tensor | None = None) -> tuple[Tensor, int]:
        """The mean weight over these inputs, in the plain layer's layout, and the number of programs in the mean."""
        rows, _ = self.rows(x, self.resolve_control(control))
        parts = [self.compose(part).mean_weight(self.R) * len(part) for part in rows.split(CHUNK) if len(part)]
        total = sum(parts[1:], parts[0]) if parts else rows.new_zeros(self.d_in, self.d_out)
        return (total / max(len(rows), 1)).mT.reshape(self.weight_shape).detach(), len(rows)

    def mean_offset(self, x: Tensor, control: Tensor | None = None) -> Tensor | None:
        """The mean of what the programs of these inputs add to the output besides `x W_t` (d_out,); None: nothing."""
        if type(self).compose is CodedLayer.compose:
            return None
        rows, _ = self.rows(x, self.resolve_control(control))
        active = self.compose(rows)
        if active.shift is None:
            return None
        return torch.matmul(active.shift.unsqueeze(1), active.V).squeeze(1).mean(0).detach()

    def advice(self) -> str | None:
        """What to know before this layer is trained, if anything; `recode` warns of it."""
        return None

    def describe(self) -> str:
        """The configuration in a few words, for `repr`."""
        fields = {"bias": self.bias is not None, **dataclasses.asdict(self.config)}
        if self.control_dim is not None:
            fields["control_dim"] = self.control_dim
        return ", ".join(f"{name}={value}" for name, value in fields.items())

    def to_plain(self) -> nn.Module:
        """A plain layer with this geometry, device and dtype; the caller fills its weight."""
        like = self.prototype
        return nn.utils.skip_init(type(self).plain_type, *self.arguments(self), device=like.device, dtype=like.dtype)

    def auxiliary_loss(self) -> Tensor:
        """What this layer adds to the training loss, already weighted."""
        return self.prototype.new_zeros(())

    @staticmethod
    def auxiliary_losses(layers: Sequence[Any]) -> list[Tensor]:
        """The terms of the auxiliary losses of several layers of this kind, which may join them."""
        return [layer.auxiliary_loss() for layer in layers]

    @classmethod
    def from_plain(cls, plain: Any, config: Any, *, control_dim: int | None = None) -> Self:
        """A coded layer to replace `plain`: same geometry, device, dtype, mode and bias, started from its weight.

        A frozen weight or bias stays frozen; new parameters are trainable.
        """
        if cls.start is CodedLayer.start:  # it sets its starting values in its constructor
            layer = cls.like(plain, config, control_dim=control_dim)
            if not plain.weight.is_meta:
                with full_precision(plain.weight.device):
                    layer.start_from(plain.weight)
        else:
            layer = cls.like(plain, config, control_dim=control_dim, device="meta")
            layer.to_empty(device=plain.weight.device)
            layer.reset_parameters(plain.weight)
        if layer.bias is not None and not layer.bias.is_meta:
            with full_precision(layer.bias.device):
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
        self.freeze_residual()

    @property
    def has_frozen_residual(self) -> bool:
        """Whether R and the bias stay as they start: if its config has `residual="frozen"`."""
        return getattr(self.config, "residual", None) == "frozen"

    def freeze_residual(self) -> None:
        """Freeze R and the bias if the configuration says so."""
        for parameter in (self.R, self.bias) if self.has_frozen_residual else ():
            if parameter is not None:
                parameter.requires_grad_(False)

    @property
    def trains_frozen_residual(self) -> bool:
        """Whether R or the bias is trainable although the configuration freezes them."""
        frozen = (self.R, self.bias) if self.has_frozen_residual else ()
        return any(parameter is not None and parameter.requires_grad for parameter in frozen)

    def rows(self, x: Tensor, control: Tensor | None) -> tuple[Tensor, torch.Size]:
        """What the controller reads, flattened (N, control width), and its leading dimensions."""
        raise NotImplementedError

    def weight_parameters(self) -> Iterator[nn.Parameter]:
        """The parameters that hold the plain layer's weight, and are frozen if it was."""
        if self.R is not None and not self.has_frozen_residual:
            yield self.R

    @property
    def resizable(self) -> tuple[str, ...]:
        """Names of saved tensors whose size depends on what was learned; loading takes the size that was saved."""
        return ()

    def takes(self, config: Config) -> bool:
        """Whether a checkpoint of a layer with this configuration can be loaded into this one."""
        return self.config == config

    def resume(self, config: Config) -> None:
        """Have the configuration of a checkpoint that this layer took."""
        self.config = config

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        for name in self._buffers.keys() & self.resizable:
            if (saved := state_dict.get(prefix + name)) is not None:
                setattr(self, name, self.get_buffer(name).new_zeros(saved.shape))
        super()._load_from_state_dict(state_dict, prefix, *rest)

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
        if self.control_dim is None:
            if control is None:
                return None
            require_floating("control", control)
            width = f"={control.shape[-1]}" if control.dim() else ""
            raise ValueError(
                f"control was given, but this {type(self).__name__} reads its own input: build it with "
                f"control_dim{width}"
            )
        if control is None:
            control = current_control(self)
        if control is None:
            again = "; activation checkpointing reruns the forward, so the backward must run inside the block too"
            raise ValueError(
                f"control must be given: this {type(self).__name__} has control_dim={self.control_dim}; call "
                "layer(x, control=z) or run the model inside `with nc.control(model, z):`"
                f"{again if not torch.compiler.is_compiling() and current_backward() >= 0 else ''}"
            )
        require_floating("control", control)
        return control

    def match_control(self, control: Tensor, leading: torch.Size) -> None:
        """Require a control (..., control_dim) whose leading dimensions are the first of the input's."""
        shape = control.shape
        if control.dim() == 0 or shape[-1] != self.control_dim:
            raise ValueError(f"control must have shape (..., {self.control_dim}), got {tuple(shape)}")
        if shape[:-1] != leading[: control.dim() - 1]:
            times, rest = divmod(leading[0], shape[0]) if leading and shape[0] else (0, 0)
            one = "one for all: z.squeeze(0); " if shape[:-1] == (1,) else ""
            repeat = f"; {one}beam search repeats each input: z.repeat_interleave({times}, 0)"
            raise ValueError(
                f"control's leading dimensions must be the first of x's {tuple(leading)}, got {tuple(shape[:-1])}"
                f"{repeat if times > 1 and not rest else ''}"
            )


def each_coded_layer(*modules: nn.Module) -> Iterator[CodedLayer]:
    """The coded layers of these modules, each once even if it is shared. No names, so it is quick in every step."""
    seen: set[int] = set()
    for module in modules:
        for child in module.modules():
            if "original_module" in child._modules and "modules_to_save" in child._modules:
                # PEFT's wrapper trains a copy and keeps the original, which is not called.
                seen.update(map(id, child.get_submodule("original_module").modules()))
            if isinstance(child, CodedLayer) and id(child) not in seen:
                seen.add(id(child))
                yield child


def coded_layers(*modules: nn.Module) -> dict[str, CodedLayer]:
    """The coded layers of these modules by name, each once even if it is shared.

    Example:
        >>> model = nc.recode(nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4)), "2", nc.ProgramConfig())
        >>> {name: layer.config.slots for name, layer in nc.coded_layers(model).items()}
        {'2': 30}
    """
    unnamed = {id(layer): layer for layer in each_coded_layer(*modules)}
    found: dict[str, CodedLayer] = {}
    for module in modules:
        for name, child in module.named_modules():
            if id(child) in unnamed:
                found[name if name not in found else f"{name}#{len(found)}"] = unnamed.pop(id(child))
    return found
