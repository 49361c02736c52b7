"""The base of linear and convolutional program layers, which compose their weight from singular programs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..layer.active import ActiveProgram
from ..layer.base import CodedLayer
from ..ops.torch_private import has_hooks
from . import functional as F
from .config import ProgramConfig
from .controller import ProgramController
from .dispatch import choose, compose
from .memory import ProgramMemory
from .orthogonality import orthogonal_losses
from .reference import EPSILON
from .start import constant_program, start
from .tensors import IN_CONTROLLER, IN_MEMORY, CallSpec, ProgramTensors


class Programs(NamedTuple):
    """How the programs of some inputs were composed: `r` components over `P` slots, components ordered by step.

    Example:
        >>> layer = nc.Linear(8, 4, program=nc.ProgramConfig(slots=10, steps=2, heads=3))
        >>> programs = layer.programs(torch.randn(32, 8))
        >>> programs.u.shape, programs.sigma.shape  # 6 components over 10 slots
        (torch.Size([32, 6, 10]), torch.Size([32, 6]))
        >>> bool((programs.sigma.diff() < 0).all())  # singular values decrease
        True
    """

    u: Tensor
    """Attention w^u over M_U (..., r, P)."""
    v: Tensor
    """Attention w^v over M_V (..., r, P)."""
    s: Tensor
    """Attention w^s over M_S (..., r, P)."""
    sigma: Tensor
    """Singular values, decreasing (..., r)."""
    gate: Tensor | None
    """The residual's gate (..., 1), or None if the residual is not gated."""
    content: Tensor
    """Content attention c for u, v, s (..., 3, r, P)."""
    least_used: Tensor
    """Least-used attention l for u, v, s (..., 3, r, P)."""
    interpolation: Tensor
    """The gates sigmoid(g) between the two, for u, v, s (..., 3, r, P)."""

    def reads(self) -> dict[str, Tensor]:
        """The attention over the slots of each memory (..., r, P)."""
        return {"u": self.u, "v": self.v, "s": self.s}

    def title(self, memory: str) -> str:
        """What the columns of `reads` are."""
        return f"slot of $M_{memory.upper()}$"

    def saturation(self) -> Tensor:
        """How near the gates are to 0 or 1, from 0 to 1 (n,)."""
        gates = [self.interpolation.flatten(), *([] if self.gate is None else [self.gate.flatten()])]
        return (2 * torch.cat(gates) - 1).abs()

    def detach(self) -> Programs:
        """The same values, detached from the graph."""
        return self._replace(**{name: field.detach() for name, field in self._asdict().items() if field is not None})


def _read(part: nn.Module, names: Sequence[str]) -> list[Tensor | None]:
    """The parameters with these names. `nn.Module.__getattr__` takes longer than some products of a small layer."""
    own = part._parameters
    try:
        return [own[name] for name in names]
    except KeyError:  # as in a replica of nn.DataParallel
        return [getattr(part, name) for name in names]


class ProgramLayer(CodedLayer):
    """`y = x W_t` with `W_t = P_t + gate * sigma_r * R`, executed without building `W_t`.

    Example:
        >>> isinstance(nc.Linear(8, 4), nc.ProgramLayer), isinstance(nc.Conv2d(3, 6, 3), nc.ProgramLayer)
        (True, True)
    """

    config_type = ProgramConfig
    parts = {"memory": "memory", "controller": "controller", "R": "residual", "bias": "main"}
    undecayed = ("memory",)
    pooled_control = False
    """Whether the default control is an average of the input, and so is small for zero-mean inputs."""

    config: ProgramConfig

    def build(self, options: dict[str, Any]) -> None:
        self.memory = ProgramMemory(self.d_in, self.d_out, self.config, **options)
        self.controller = ProgramController(self.control_width, self.config, **options)

    @property
    def prototype(self) -> Tensor:
        return self.memory.U

    def start(self) -> None:
        """Starting values of memory and controller (see `program.start`)."""
        memory, controller = start(self.d_in, self.d_out, self.control_width, self.config, self.pooled_control)
        self.memory.load_state_dict(memory.state_dict())
        self.controller.load_state_dict(controller.state_dict())

    def constant_program(self) -> tuple[Tensor, Tensor | float] | None:
        controller = self.controller
        readers = (controller.signal_weight, controller.integration_weight)
        if self.is_customised() or any(weight is not None and weight.any() for weight in readers):
            return None  # a part that a user changed may do anything
        active, scale = constant_program(self.memory, controller)
        return active.mT, scale

    def is_customised(self) -> bool:
        """Whether a user changed the memory or the controller, which must then be called."""
        memory, controller = self.memory, self.controller
        return memory.customised or controller.customised or has_hooks(memory) or has_hooks(controller)

    def compose(self, rows: Tensor, spec: CallSpec | None = None) -> ActiveProgram:
        return compose(choose(self, rows) if spec is None else spec, self, self.read(rows))

    def read(self, rows: Tensor) -> Tensor:
        """What the controller reads of controls (N, control width)."""
        if not self.config.normalise:
            return rows
        wide = torch.promote_types(rows.dtype, torch.float32)
        square = rows.square().mean(-1, keepdim=True, dtype=wide)
        return (rows * torch.rsqrt(square + EPSILON)).to(rows.dtype)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        """As in any module, but programs that were kept in another dtype than R stay so; and without the residual that
        absorbed them they are an error, strict or not."""
        *_, errors = rest
        slots, R = state_dict.get(f"{prefix}memory.U"), state_dict.get(f"{prefix}R")
        if slots is not None and R is not None and slots.dtype != R.dtype:
            self.memory.to(slots.dtype)
            self.controller.to(slots.dtype)
        parts = (f"{prefix}memory.", f"{prefix}controller.")
        alone = "R" in self._parameters and f"{prefix}R" not in state_dict
        if alone and any(name.startswith(parts) for name in state_dict):
            errors.append(
                f"{prefix}R is missing: it absorbed the first program of the layer that was saved, so that memory and "
                "controller fit no other; save it too, as nc.save does, even where it is frozen"
            )
        super()._load_from_state_dict(state_dict, prefix, *rest)

    def tensors(self, executes: bool) -> ProgramTensors:
        """The parameters as kernels take them; R and the bias only if the kernel executes."""
        own = (self.R, self.bias) if executes else (None, None)
        return ProgramTensors._make([*_read(self.memory, IN_MEMORY), *_read(self.controller, IN_CONTROLLER), *own])

    def programs(self, x: Tensor, control: Tensor | None = None) -> Programs:
        """How the programs of these inputs are composed; leading dimensions are the control's (or the input's)."""
        rows, leading = self.rows(x, self.resolve_control(control))
        slots = self.memory()
        attention, gate = self.controller(self.read(rows), slots.keys)
        u, v, s = attention.weight.flatten(2, 3)

        def lead(tensor: Tensor) -> Tensor:
            return tensor.reshape(leading + tensor.shape[1:])

        def kinds(tensor: Tensor) -> Tensor:
            return lead(tensor.movedim(0, 1).flatten(2, 3))

        return Programs(
            u=lead(u),
            v=lead(v),
            s=lead(s),
            sigma=lead(F.singular_values(s, slots.S)),
            gate=None if gate is None else lead(gate),
            content=kinds(attention.content),
            least_used=kinds(attention.least_used),
            interpolation=kinds(attention.interpolation),
        )

    def auxiliary_loss(self) -> Tensor:
        if self.config.orthogonality == 0:
            return self.memory.U.new_zeros(())
        return self.config.orthogonality * self.memory.orthogonal_loss()

    @staticmethod
    def auxiliary_losses(layers: Sequence[Any]) -> list[Tensor]:
        own = [layer for layer in layers if type(layer).auxiliary_loss is not ProgramLayer.auxiliary_loss]
        joined = [layer for layer in layers if type(layer).auxiliary_loss is ProgramLayer.auxiliary_loss]
        weighted = [(layer.memory, layer.config.orthogonality) for layer in joined if layer.config.orthogonality > 0]
        return CodedLayer.auxiliary_losses(own) + orthogonal_losses(weighted)

    def advice(self) -> str | None:
        dtype = self.memory.U.dtype
        if dtype not in (torch.bfloat16, torch.float16):
            return None
        lost = f"{torch.finfo(dtype).eps / 2:.2%}"
        return (
            f"programs in {dtype} hardly learn, since a step of less than {lost} of a value is lost: keep them in "
            "float32, `for layer in nc.coded_layers(model).values(): layer.memory.float(), layer.controller.float()`, "
            "and train under torch.autocast"
        )

    def describe(self) -> str:
        c = self.config
        control = "" if self.control_dim is None else f", control_dim={self.control_dim}"
        control += ", normalise=True" if c.normalise else ""
        start = "".join(f", start.{name}={value}" for name, value in c.start.changes().items())
        return (
            f"bias={self.bias is not None}, P={c.slots}, K={c.key_dim}, J={c.steps}, H={c.heads}, l_I={c.least_used}, "
            f"hidden={c.hidden}, a={c.orthogonality}, residual={c.residual}, sharpness={c.sharpness}{start}{control}"
        )
