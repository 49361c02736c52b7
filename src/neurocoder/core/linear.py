"""The linear core layer."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import linear

from ..layer.linear import CodedLinear
from . import functional as F
from .config import CoreConfig
from .layer import CoreLayer


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
        memory, R, gate = self.memory, self.residual, self.reader.residual_gate(rows)
        y, bias = linear(rows, R, self.bias if gate is None else None), None if gate is None else self.bias
        if gate is not None:
            y = gate.to(y.dtype) * y
        if memory is not None:  # as `compose` has it, with a = U^ x computed once
            a, _, d, bound = self._read(rows, F.unit_rows(memory.U))
            e = torch.addcmul(a, bound, d)
            y, bias = y + linear(e, F.bounded_slots(memory.V, R, self.d_in).mT, bias), None
        y = y if bias is None else y + bias.to(y.dtype)
        return y.reshape(*x.shape[:-1], self.out_features)
