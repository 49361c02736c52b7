"""The linear growing layer."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import linear

from ..layer.linear import CodedLinear
from .config import GrowingConfig
from .functional import Reading, kernel_dtype, uses_operators
from .layer import GrowingLayer
from .notes import attach_stats


class GrowingLinear(CodedLinear, GrowingLayer):
    """An `nn.Linear` whose programs are allocated for new inputs: (..., in_features) -> (..., out_features).

    Args:
        in_features: d_in.
        out_features: d_out.
        bias: add a learned bias, the same for all inputs.
        growing: the memory.
        control_dim: width of another tensor that steers the layer, `layer(x, control=z)`; None: its own input does.
        device: of the parameters; None: torch's default.
        dtype: of the parameters; None: torch's default.

    Example:
        >>> layer = nc.GrowingLinear(8, 4, growing=nc.GrowingConfig(slots=16))
        >>> optimiser = torch.optim.Adagrad(layer.parameters(), lr=1e-2)
        >>> growth = nc.grow(layer, optimiser)
        >>> for _ in range(3):
        ...     layer(torch.randn(32, 8)).square().mean().backward()
        ...     optimiser.step()
        >>> int(layer.memory.written)  # one slot for each step that saw a new input
        3
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        growing: GrowingConfig | None = None,
        *,
        control_dim: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(in_features, out_features, bias, growing, control_dim=control_dim, device=device, dtype=dtype)

    def outputs(self, x: Tensor, rows: Tensor, leading: torch.Size) -> Tensor:
        (reading, z), grouped, memory = self.find(rows), self.grouped(x, rows, leading), self.memory
        dtype = kernel_dtype(reading, grouped, memory.U)
        if dtype is None:
            return self.execute(grouped, self.active(reading, z, leading))
        if uses_operators():
            return self._traced(grouped.squeeze(1), reading, z, leading, dtype)
        from .kernels import Execution

        slots = memory.U, memory.V, self.R, self.bias, reading.slots, reading.share
        y: Tensor = Execution.apply(grouped.squeeze(1), *slots, dtype, self.make_stats(reading, z, leading))
        return y

    def _traced(self, x: Tensor, reading: Reading, z: Tensor, leading: torch.Size, dtype: torch.dtype) -> Tensor:
        """The outputs for x (N, in_features) in compiled code: the kernels as an operator, the rest by torch."""
        from .kernels import narrowed
        from .operators import run_slots

        U, V = self.memory.U, self.memory.V
        narrow = narrowed(U.detach(), dtype), narrowed(V.detach(), dtype)
        y = run_slots(x, U, V, *narrow, reading.slots, reading.share, dtype)[0]
        if self.R is not None:
            y = y + linear(x, self.R, self.bias)
        elif self.bias is not None:
            y = y + self.bias.to(y.dtype)
        return attach_stats(y, self.make_stats(reading, z, leading))
