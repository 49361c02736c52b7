"""The base of linear and convolutional program layers, which compose their weight from singular programs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..layer.base import CodedLayer
from ..layer.config import ProgramConfig
from ..layer.precision import full_precision
from . import functional as F
from . import start as initialisation
from .controller import ProgramController
from .memory import ProgramMemory
from .tensors import ProgramTensors


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

    def detach(self) -> Programs:
        """The same values, detached from the graph."""
        return self._replace(**{name: field.detach() for name, field in self._asdict().items() if field is not None})


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
    R: nn.Parameter | None

    def __init__(
        self,
        weight_shape: tuple[int, ...],
        default_control: int,
        *,
        bias: bool,
        program: ProgramConfig | None,
        control_dim: int | None,
        device: torch.device | str | None,
        dtype: torch.dtype | None,
    ) -> None:
        super().__init__(program, weight_shape, control_dim, bias=bias, dtype=dtype)
        program = self.config
        d_out = weight_shape[0]
        d_in = torch.Size(weight_shape[1:]).numel()
        # Built without values, so that all random numbers are drawn in one place, whatever the dtype and device.
        self.memory = ProgramMemory(d_in, d_out, program, device="meta", dtype=dtype)
        self.controller = ProgramController(self.control_dim or default_control, program, device="meta", dtype=dtype)
        self.R = nn.Parameter(torch.empty(weight_shape, device="meta", dtype=dtype)) if program.residual else None
        self.bias = nn.Parameter(torch.empty(d_out, device="meta", dtype=dtype)) if bias else None
        self.to_empty(device=torch.get_default_device() if device is None else device)
        self.reset_parameters()

    @property
    def prototype(self) -> Tensor:
        return self.memory.U

    def reset_parameters(self) -> None:
        """Set the starting values (see `initialisation`); a no-op on the meta device."""
        if self.memory.U.is_meta:
            return
        d_out, d_in = len(self.memory.V.T), len(self.memory.U.T)
        with full_precision(self.memory.U.device):
            memory, controller = initialisation.start(
                d_in, d_out, self.controller.control_dim, self.config, self.pooled_control
            )
            self.memory.load_state_dict(memory.state_dict())
            self.controller.load_state_dict(controller.state_dict())
            self.start_from(initialisation.plain_weight(self.weight_shape))
            if self.bias is not None:
                self.bias.copy_(initialisation.plain_weight((d_out, d_in))[:, 0])

    def start_from(self, weight: Tensor) -> None:
        """Let the residual absorb the first active program: `R = (W - P_t) / (gate * sigma_r)`.

        The programs start the same for every input, so `W_t = W` exactly. Without a residual, the layer cannot hold
        a given weight and keeps its own starting values.
        """
        if self.R is None:
            return
        active, scale = initialisation.constant_program(self.memory, self.controller)
        weight = weight.detach().to(active)
        self.R.copy_(((weight.flatten(1) - active.mT) / scale).view(self.weight_shape))

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        """As in any module, but programs without the residual that absorbed them are an error, strict or not."""
        *_, errors = rest
        parts = (f"{prefix}memory.", f"{prefix}controller.")
        alone = "R" in self._parameters and f"{prefix}R" not in state_dict
        if alone and any(name.startswith(parts) for name in state_dict):
            errors.append(
                f"{prefix}R is missing: it absorbed the first program of the layer that was saved, so that memory and "
                "controller fit no other; save it too, as nc.save does, even where it is frozen"
            )
        super()._load_from_state_dict(state_dict, prefix, *rest)

    def weight_parameters(self) -> Iterator[nn.Parameter]:
        if self.R is not None:
            yield self.R

    def tensors(self, executes: bool) -> ProgramTensors:
        """The parameters as kernels take them, contiguous; R and the bias only if the kernel executes."""
        memory, controller = self.memory, self.controller
        tensors = ProgramTensors(
            U=memory.U,
            V=memory.V,
            S=memory.S,
            key_u_weight=memory.key_u_weight,
            key_u_bias=memory.key_u_bias,
            key_v_weight=memory.key_v_weight,
            key_v_bias=memory.key_v_bias,
            key_s_weight=memory.key_s_weight,
            key_s_bias=memory.key_s_bias,
            input_weight=controller.input_weight,
            input_bias=controller.input_bias,
            recurrent_weight=controller.recurrent_weight,
            signal_weight=controller.signal_weight,
            signal_bias=controller.signal_bias,
            integration_weight=controller.integration_weight,
            integration_bias=controller.integration_bias,
            R=self.R if executes else None,
            bias=self.bias if executes else None,
        )
        return ProgramTensors(*[None if tensor is None else tensor.contiguous() for tensor in tensors])

    def programs(self, x: Tensor, control: Tensor | None = None) -> Programs:
        """How the programs of these inputs are composed; leading dimensions are the control's (or the input's)."""
        rows, leading = self.rows(x, self.resolve_control(control))
        slots = self.memory()
        attention, gate = self.controller(rows, slots.keys)
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

    def record_programs(self, x: Tensor, control: Tensor | None) -> None:
        """Keep the programs of this call if `nc.record` asked for them."""
        recorder = self.recorded  # another thread may end its block meanwhile
        if recorder is not None:
            with torch.no_grad():
                recorder.append(self.programs(x, control).detach())

    def working_programs(self, programs: Programs) -> Tensor:
        """`W_t` (..., d_in, d_out) of composed programs. For inspection."""
        slots = self.memory()
        active = F.active_program(programs.u, programs.v, programs.sigma, slots.U, slots.V)
        if self.R is None:
            return active
        residual = self.R.flatten(1).mT
        if programs.gate is None:
            return active + residual
        return active + (programs.gate * programs.sigma[..., -1:]).unsqueeze(-1) * residual

    def constant_weight(self) -> Tensor | None:
        controller = self.controller
        if self.memory.is_changed(ProgramMemory) or controller.is_changed(ProgramController):
            return None  # a changed part may do anything
        if any(
            weight is not None and weight.any() for weight in (controller.signal_weight, controller.integration_weight)
        ):
            return None
        active, scale = initialisation.constant_program(self.memory, self.controller)
        weight = active.mT.reshape(self.weight_shape)
        return weight if self.R is None else weight + scale * self.R.detach().to(active)

    def mean_weight(self, x: Tensor, control: Tensor | None = None) -> tuple[Tensor, int]:
        rows, _ = self.rows(x, self.resolve_control(control))
        programs = self.programs(x, control)
        u, v, sigma = (
            tensor.reshape(len(rows), *tensor.shape[-dims:])
            for tensor, dims in ((programs.u, 2), (programs.v, 2), (programs.sigma, 1))
        )
        core = torch.einsum("nrp,nr,nrq->pq", u, sigma, v) / len(rows)
        slots = self.memory()
        weight = (slots.U.mT @ core @ slots.V).mT.reshape(self.weight_shape)
        if self.R is not None:
            scale = 1.0 if programs.gate is None else (programs.gate * programs.sigma[..., -1:]).mean()
            weight = weight + scale * self.R
        return weight.detach(), len(rows)

    def auxiliary_loss(self) -> Tensor:
        if self.config.orthogonality == 0:
            return self.memory.U.new_zeros(())
        return self.config.orthogonality * self.memory.orthogonal_loss()

    def describe(self) -> str:
        c = self.config
        control = "" if self.control_dim is None else f", control_dim={self.control_dim}"
        start = "".join(f", start.{name}={value}" for name, value in c.start.changes().items())
        return (
            f"bias={self.bias is not None}, P={c.slots}, K={c.key_dim}, J={c.steps}, H={c.heads}, l_I={c.least_used}, "
            f"hidden={c.hidden}, a={c.orthogonality}, residual={c.residual}, sharpness={c.sharpness}{start}{control}"
        )
