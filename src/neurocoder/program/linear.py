"""The linear program layer."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import linear

from ..layer.config import ProgramConfig
from ..layer.linear import CodedLinear
from .dispatch import compose, compose_and_execute, implementation
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
        super().__init__(
            self.set_sizes(in_features, out_features),
            self.in_features,
            bias=bias,
            program=program,
            control_dim=control_dim,
            device=device,
            dtype=dtype,
        )

    def forward(self, x: Tensor, control: Tensor | None = None) -> Tensor:
        """`y = x W_t + bias`.

        Args:
            x: (..., in_features).
            control: z (..., control_dim); its leading dimensions are the first of x's, so one program can serve a whole
                sequence.

        Returns:
            (..., out_features)
        """
        control = self.resolve_control(control)
        rows, leading = self.rows(x, control)
        self.record_programs(x, control)
        choice = implementation(self, rows)
        if control is None and choice.has_kernel:
            y = compose_and_execute(choice, self, rows)
        else:
            program = compose(choice, self, rows)
            shared = self.grouped(x, rows, leading)
            y = linear(program.execute(linear(shared, program.U)), program.V.mT, self.bias)
            if self.R is not None:
                xR = linear(shared, self.R)
                y = y + (xR if program.scale is None else (program.scale.unsqueeze(-1) * xR).to(y.dtype))
        shape = (*x.shape[:-1], self.out_features)
        return y if y.shape == shape else y.reshape(shape)

    def materialize(self, x: Tensor, control: Tensor | None = None) -> Tensor:
        """`W_t` (..., in_features, out_features) of each input. For inspection: memory grows with the batch."""
        return self.working_programs(self.programs(x, control))
