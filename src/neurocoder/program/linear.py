"""The linear program layer."""

from __future__ import annotations

import torch
from torch import Tensor

from ..layer.linear import CodedLinear
from .config import ProgramConfig
from .dispatch import choose, run
from .layer import ProgramLayer


class Linear(CodedLinear, ProgramLayer):
    """An `nn.Linear` whose weight is composed for each input: (..., in_features) -> (..., out_features).

    Args:
        in_features: d_in.
        out_features: d_out.
        bias: add a learned bias.
        program: the program memory and controller.
        control_dim: width of another tensor that steers the layer, `layer(x, control=z)`; None: its own input does.

    Example:
        >>> layer = nc.Linear(8, 4, program=nc.ProgramConfig(slots=10, steps=2, heads=3))
        >>> x = torch.randn(32, 8)
        >>> layer(x).shape
        torch.Size([32, 4])
        >>> layer.programs(x).u.shape  # attention over M_U: inputs, components, slots
        torch.Size([32, 6, 10])
        >>> torch.allclose(layer(x), (x.unsqueeze(1) @ layer.materialize(x)).squeeze(1) + layer.bias, atol=1e-5)
        True
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        program: ProgramConfig | None = None,
        *,
        control_dim: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(in_features, out_features, bias, program, control_dim=control_dim, device=device, dtype=dtype)

    def outputs(self, x: Tensor, rows: Tensor, leading: torch.Size) -> Tensor:
        spec = choose(self, rows, fused=self.control_dim is None and not self.config.normalise)
        if spec.fused:
            y: Tensor = run(spec, self, rows)
            return y
        return self.execute(self.grouped(x, rows, leading), self.compose(rows, spec))
