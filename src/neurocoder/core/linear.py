"""The linear core layer."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import linear

from ..layer.linear import CodedLinear, scaled
from ..ops.backend import chosen, is_traced
from ..ops.torch_private import has_global_hooks, has_hooks, is_transformed
from . import functional as F
from .backward import BoundedPrograms
from .config import CoreConfig
from .layer import CoreLayer
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
        _, h, _, bound = self._read(rows, U)
        return h, bound

    def _read(self, rows: Tensor, U: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """a (N, P), h (N, K), d (N, P) and its bound (N, 1) of inputs (N, d_in)."""
        assert self.memory is not None
        a = linear(rows, U)
        square = F.mean_square(a)
        h = self.reader(F.normalised(a, square))
        d = F.blended(a, h, self.memory.cores)
        return a, h, d, F.bound(d, square)

    def forward(self, x: Tensor, control: Tensor | None = None) -> Tensor:
        if self.control_dim is not None:
            return super().forward(x, control)
        rows, _ = self.rows(x, self.resolve_control(control))
        self.record_programs(x, control)
        R, bias, gate = self.residual, self.bias, self.reader.residual_gate(rows)
        y = linear(rows, R, bias) if gate is None else scaled(rows, R, bias, gate)
        memory, reader = self.memory, self.reader
        if memory is not None and self._runs_by_hand(rows):
            s, most = F.slot_bounds(memory.V, R, self.d_in)
            inputs = rows, memory.U, memory.V, memory.cores, reader.weight, reader.bias
            y = y + BoundedPrograms.apply(self._programs_output, s, most.square().reciprocal(), *inputs)
        elif memory is not None:
            y = y + self._programs_output(rows)
        return y.reshape(*x.shape[:-1], self.out_features)

    def _programs_output(self, rows: Tensor) -> Tensor:
        """What the programs add to the outputs of rows (N, d_in), as `compose` has it, with a = U^ x computed once."""
        assert self.memory is not None
        a, _, d, bound = self._read(rows, F.unit_rows(self.memory.U))
        V = F.bounded_slots(self.memory.V, self.residual, self.d_in)
        return linear(torch.addcmul(a, bound, d), V.mT)

    def _runs_by_hand(self, rows: Tensor) -> bool:
        """Whether a backward by hand serves these rows: not where operations are recorded or transformed one by one,
        where a user changed the reader, or where dtypes are narrow or mixed."""
        recorded = rows.is_meta or is_traced() or is_transformed()
        if recorded or not torch.is_grad_enabled() or chosen() in ("torch", "reference"):
            return False
        is_own = type(self.reader) is CoreReader and not has_hooks(self.reader) and not has_global_hooks()
        is_wide = rows.dtype in (torch.float32, torch.float64) and rows.dtype == self.prototype.dtype
        return is_own and is_wide and not self.config.diagonal and not torch.is_autocast_enabled(rows.device.type)
