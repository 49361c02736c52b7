"""The linear growing layer."""

from __future__ import annotations

import torch
from torch import Tensor

from ..layer.linear import CodedLinear
from .config import GrowingConfig
from .functional import kernel_dtype
from .layer import GrowingLayer


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
        from .kernels import Execution

        slots = memory.U, memory.V, self.R, self.bias, reading.slots, reading.share
        y: Tensor = Execution.apply(grouped.squeeze(1), *slots, dtype, self.make_stats(reading, z, leading))
        return y
