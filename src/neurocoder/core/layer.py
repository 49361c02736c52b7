"""The base of linear and convolutional core layers."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..layer.active import ActiveProgram
from ..layer.base import CodedLayer
from . import functional as F
from .config import CoreConfig
from .memory import CoreMemory
from .reader import CoreReader


class CorePrograms(NamedTuple):
    """How the programs of some inputs were blended: `W_t = V^T C U + g R` with `C = C_0 + sum_k h_k C_k`.

    Example:
        >>> layer = nc.CoreLinear(8, 4, core=nc.CoreConfig(slots=5), control_dim=3)
        >>> programs = layer.programs(torch.randn(32, 8), control=torch.randn(32, 3))
        >>> programs.blend.shape, programs.core.shape, programs.sigma.shape
        (torch.Size([32, 3]), torch.Size([32, 5, 5]), torch.Size([32, 5]))
    """

    blend: Tensor
    """h, signed (..., K); in a layer that reads its own input, with the bound that applies to all of it."""
    core: Tensor
    """C (..., P, P), or its diagonal (..., P)."""
    sigma: Tensor
    """Singular values of the active program `P_t = V^T C U`, decreasing (..., P)."""
    gate: Tensor | None
    """g (..., 1), or None: 1."""
    bound: Tensor | None
    """The factor on h that bounds the blend (..., 1), or None with a control."""

    def reads(self) -> dict[str, Tensor]:
        """How much each row of V takes from each row of U, and the reverse (..., P, P); (..., 1, P) if diagonal."""
        size = self.core.abs()
        if self.core.shape == self.sigma.shape:
            return {"u": size.unsqueeze(-2), "v": size.unsqueeze(-2)}
        return {"u": size, "v": size.mT}

    def vectors(self) -> Tensor:
        """What decides the program of each input (..., K): the blend."""
        return self.blend

    def title(self, memory: str) -> str:
        """What the columns of `reads` are."""
        return f"slot of {memory.upper()}"

    def saturation(self) -> Tensor:
        """How near each h and the gate are to their bounds, from 0 to 1 (..., n); n = 0 with a control."""
        h = self.blend[..., :0] if self.bound is None else (self.blend / self.bound).abs()
        return h if self.gate is None else torch.cat([h, (self.gate - 1).abs() / F.GATE], -1)

    def detach(self) -> CorePrograms:
        """The same values, detached from the graph."""
        return CorePrograms(*(None if field is None else field.detach() for field in self))  # type: ignore[arg-type]


class CoreLayer(CodedLayer):
    """`y = g R x + V^T (C a + sum_k h_k s_k) + bias` with `a = U x` and `C = C_0 + sum_k h_k C_k`.

    With a control z the blend h is z, or linear in z: the layer is a table of K directions in which z moves the weight.
    Without one, h is read from the slots, `tanh(A n(a) + b)`, and every part is bounded (`core.functional`).

    Example:
        >>> from neurocoder.core import CoreLayer
        >>> isinstance(nc.CoreLinear(8, 4), CoreLayer), isinstance(nc.CoreConv2d(3, 6, 3), CoreLayer)
        (True, True)
    """

    config_type = CoreConfig
    config: CoreConfig
    parts = {"memory": "memory", "reader": "controller", "R": "residual", "bias": "main"}
    undecayed = ("memory",)
    memory: CoreMemory | None
    """None where the input steers itself and the layer is too small for programs."""
    reader: CoreReader

    def build(self, options: dict[str, Any]) -> None:
        config, steered = self.config, self.control_dim is not None
        needs = [name for name in ("shift", "normalise") if getattr(config, name)]
        needs += [] if config.residual else ["residual"]
        if needs and not steered:
            raise ValueError(
                f"{type(self).__name__}: control_dim must be given with core.{needs[0]}={getattr(config, needs[0])}, "
                "got None: a layer that reads its own input has a residual that bounds its programs, and no offsets"
            )
        slots, programs = config.sizes(self.d_in, self.d_out, self.control_dim)
        sizes = self.d_in, self.d_out, slots, programs
        self.memory = CoreMemory(*sizes, steered, config, **options) if slots else None
        self.reader = CoreReader(programs, slots, self.control_width, self.d_out, steered, config.normalise, **options)

    @property
    def prototype(self) -> Tensor:
        return next(self.parameters()) if self.memory is None else self.memory.U

    def start(self) -> None:
        if self.memory is not None:
            self.memory.start(self.control_dim is not None)
        self.reader.start()

    @property
    def has_programs(self) -> bool:
        return self.memory is not None

    def describe(self) -> str:
        c = self.config
        slots, programs = c.sizes(self.d_in, self.d_out, self.control_dim)
        told = [f"bias={self.bias is not None}", f"P={slots}", f"K={programs}", f"residual={c.residual}"]
        told += [f"{name}=True" for name in ("diagonal", "shift", "normalise") if getattr(c, name)]
        told += [] if self.control_dim is None else [f"control_dim={self.control_dim}"]
        return ", ".join(told)

    def shares(self, rows: Tensor) -> Tensor | None:
        return rows.new_zeros(len(rows), 0) if self.memory is None else None

    def compose(self, rows: Tensor) -> ActiveProgram:
        memory = self.memory
        if memory is None:
            nothing = [rows.new_zeros(0, width) for width in (self.d_in, self.d_out)]
            return ActiveProgram(nothing[0], nothing[1], scale=self.reader.residual_gate(rows))
        if self.control_dim is not None:
            h = self.reader(rows.to(memory.U.dtype))
            mix = partial(F.mixed, h=h, cores=memory.cores, C_0=memory.C_0)
            return ActiveProgram(memory.U, memory.V, mix, shift=None if memory.shifts is None else h @ memory.shifts)
        U = F.unit_rows(memory.U)
        h, bound = self.read(rows, U)
        mix = partial(F.mixed, h=bound * h, cores=memory.cores, C_0=None)
        V = F.bounded_slots(memory.V, self.residual, self.d_in)
        return ActiveProgram(U, V, mix, self.reader.residual_gate(rows))

    @property
    def residual(self) -> Tensor:
        """R, which every layer without a control has."""
        assert self.R is not None
        return self.R

    def read(self, rows: Tensor, U: Tensor) -> tuple[Tensor, Tensor]:
        """Without a control: h (N, K) and its bound (N, 1) for inputs (N, d_z) and slots U^ (P, d_in)."""
        raise NotImplementedError

    def constant_program(self) -> tuple[Tensor, Tensor | float] | None:
        if self.memory is not None and self.memory.V.any():
            return None
        if self.reader.gate is not None and self.reader.gate.any():
            return None
        like = self.prototype
        return like.new_zeros(self.d_out, self.d_in, dtype=torch.promote_types(like.dtype, torch.float32)), 1.0

    def programs(self, x: Tensor, control: Tensor | None = None) -> CorePrograms:
        """How the programs of these inputs are blended; leading dimensions are the control's (or the input's)."""
        rows, leading = self.rows(x, self.resolve_control(control))
        memory, gate = self.memory, self.reader.residual_gate(rows)
        if memory is None:
            none = rows.new_zeros(len(rows), 0)
            found = CorePrograms(none, none, none, gate, none[:, :0].new_ones(len(rows), 1))
        elif self.control_dim is not None:
            h = self.reader(rows.to(memory.U.dtype))
            core = F.composed(h, memory.cores, memory.C_0)
            found = CorePrograms(h, core, F.singular_values(core, memory.U, memory.V), None, None)
        else:
            U, V = F.unit_rows(memory.U), F.bounded_slots(memory.V, self.residual, self.d_in)
            h, bound = self.read(rows, U)
            core = F.composed(bound * h, memory.cores, memory.C_0)
            found = CorePrograms(bound * h, core, F.singular_values(core, U, V), gate, bound)
        shaped = [None if part is None else part.reshape(*leading, *part.shape[1:]) for part in found]
        return CorePrograms(*shaped)  # type: ignore[arg-type]
