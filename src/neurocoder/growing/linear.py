"""The linear growing layer."""

from __future__ import annotations

import torch
from torch import Tensor

from ..layer.linear import CodedLinear
from .config import GrowingConfig
from .functional import execute
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
        shape = self.set_sizes(in_features, out_features)
        GrowingLayer.__init__(
            self,
            shape,
            self.in_features,
            bias=bias,
            growing=growing,
            control_dim=control_dim,
            device=device,
            dtype=dtype,
        )

    def forward(self, x: Tensor, control: Tensor | None = None) -> Tensor:
        """`y = sum_r ((w.U_r) x) (w.V_r) [+ R x] + bias`.

        Args:
            x: (..., in_features).
            control: z (..., control_dim); its leading dimensions are the first of x's.

        Returns:
            (..., out_features)
        """
        reading, z, leading = self.read(x, self.resolve_control(control))
        self.record_programs(reading, leading)
        banks, make_stats = (self.memory.U, self.memory.V), self.make_stats(reading, z)
        y = execute(self.grouped(x, z, leading), *banks, reading, self.R, self.bias, make_stats)
        return y.reshape(*x.shape[:-1], self.out_features)

    def materialize(self, x: Tensor, control: Tensor | None = None) -> Tensor:
        """`W_t` (..., in_features, out_features) of each input. For inspection: memory grows with the batch."""
        weight, leading = self.working_programs(x, control)
        return weight.reshape(*leading, self.in_features, self.out_features)
