"""The linear core layer."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import linear

from ..layer.linear import CodedLinear, joined, joins, scaled
from ..ops.backend import chosen, is_traced
from ..ops.torch_private import has_global_hooks, has_hooks, is_transformed
from . import functional as F
from .backward import BoundedPrograms
from .config import CoreConfig
from .layer import CoreLayer
from .memory import CoreMemory
from .reader import CoreReader


class CoreLinear(CodedLinear, CoreLayer):
    """An `nn.Linear` whose weight is moved by a blend of programs: (..., in_features) -> (..., out_features).

    Args:
        in_features: d_in.
        out_features: d_out.
        bias: add a learned bias.
        core: slots and programs.
        control_dim: width of another tensor that steers the layer, `layer(x, control=z)`; None: its own input does.

    Example:
        >>> layer = nc.CoreLinear(8, 4, control_dim=3)
        >>> x, z = torch.randn(16, 10, 8), torch.randn(16, 3)  # one control for ten inputs
        >>> layer(x, control=z).shape
        torch.Size([16, 10, 4])
        >>> layer.materialize(x, control=z).shape  # a weight for each control
        torch.Size([16, 8, 4])
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        core: CoreConfig | None = None,
        *,
        control_dim: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(in_features, out_features, bias, core, control_dim=control_dim, device=device, dtype=dtype)

    def read(self, rows: Tensor, U: Tensor) -> tuple[Tensor, Tensor]:
        h, _, bound = self._blend(linear(rows, U))
        return h, bound

    def _blend(self, a: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """h (N, K), d (N, P) and its bound (N, 1) of what the slots read, a (N, P)."""
        assert self.memory is not None
        square = F.mean_square(a)
        h = self.reader(F.normalised(a, square))
        d = F.blended(a, h, self.memory.cores)
        return h, d, F.bound(d, square)

    def _coefficients(self, a: Tensor) -> Tensor:
        """`a + d^`, what V is multiplied by: (N, P) -> (N, P)."""
        _, d, bound = self._blend(a)
        return torch.addcmul(a, bound, d)

    def forward(self, x: Tensor, control: Tensor | None = None) -> Tensor:
        if self.control_dim is not None:
            return super().forward(x, control)
        rows, _ = self.rows(x, self.resolve_control(control))
        self.record_programs(x, control)
        R, bias, gate = self.residual, self.bias, self.reader.residual_gate(rows)
        memory, reader = self.memory, self.reader
        shape = *x.shape[:-1], self.out_features
        if memory is not None and joins(rows, R, len(memory.U)):
            return joined(rows, R, bias, *self._slots(memory), self._coefficients, gate).reshape(shape)
        y = linear(rows, R, bias) if gate is None else scaled(rows, R, bias, gate)
        if memory is not None and self._runs_by_hand(rows):
            s, most = F.slot_bounds(memory.V, R, self.d_in)
            inputs = rows, memory.U, memory.V, memory.cores, reader.weight, reader.bias
            y = y + BoundedPrograms.apply(self._programs_output, s, most.square().reciprocal(), *inputs)
        elif memory is not None:
            y = y + self._programs_output(rows)
        return y.reshape(shape)

    def _slots(self, memory: CoreMemory) -> tuple[Tensor, Tensor]:
        """`U^` (P, d_in) and `s V^` (P, d_out)."""
        return F.unit_rows(memory.U), F.bounded_slots(memory.V, self.residual, self.d_in)

    def _programs_output(self, rows: Tensor) -> Tensor:
        """What the programs add to the outputs of rows (N, d_in), as `compose` has it, with a = U^ x computed once."""
        assert self.memory is not None
        U, V = self._slots(self.memory)
        return linear(self._coefficients(linear(rows, U)), V.mT)

    def _runs_by_hand(self, rows: Tensor) -> bool:
        """Whether a backward by hand serves these rows: not where operations are recorded or transformed one by one,
        where a user changed the reader, or where dtypes are narrow or mixed."""
        recorded = rows.is_meta or is_traced() or is_transformed()
        if recorded or not torch.is_grad_enabled() or chosen() in ("torch", "reference"):
            return False
        is_own = type(self.reader) is CoreReader and not has_hooks(self.reader) and not has_global_hooks()
        is_wide = rows.dtype in (torch.float32, torch.float64) and rows.dtype == self.prototype.dtype
        return is_own and is_wide and not self.config.diagonal and not torch.is_autocast_enabled(rows.device.type)
