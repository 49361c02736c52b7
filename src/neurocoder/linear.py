"""The linear program layer."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import linear

from .backend import choose, product_dtype
from .coded_linear import CodedLinear
from .config import ProgramConfig
from .kernels.layer import ProgramLinear
from .program import ProgramLayer


class Linear(CodedLinear, ProgramLayer):
    """`nn.Linear` whose weight is composed for each input: (..., in_features) -> (..., out_features).

    Args:
        in_features: d_in.
        out_features: d_out.
        bias: add a learned bias.
        program: the program memory and controller.
        control_dim: width of another tensor that steers the layer, `layer(x, control=z)`; None: its own input does.
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
            control: z (..., control_dim); its leading dimensions are the first of x's, so that one program may serve
                a whole sequence.

        Returns:
            (..., out_features)
        """
        control = self.resolve_control(control)
        rows, leading = self.rows(x, control)
        self.record_programs(x, control)
        path, dtype = choose(self.memory.U, self.config), product_dtype(x, self.memory.U)
        if control is None and path != "torch" and dtype is not None:
            settings = path == "triton", self.config, dtype
            y = ProgramLinear.apply(*settings, rows.contiguous(), *self._parameters_in_order())
            return y.view((*x.shape[:-1], self.out_features))
        shared = self.grouped(x, rows, leading)
        coefficients, scale = self.execute(rows, None if control is None else linear(shared, self.memory.U))
        y = linear(coefficients, self.memory.V.mT, self.bias)
        if self.R is not None:
            residual = linear(shared, self.R)
            y = y + (residual if scale is None else (scale.unsqueeze(-1) * residual).to(y.dtype))
        return y.reshape((*x.shape[:-1], self.out_features))

    def _parameters_in_order(self) -> tuple[Tensor | None, ...]:
        """The layer's parameters as `ProgramLinear` takes them."""
        memory, controller = self.memory, self.controller
        keys = (memory.key_u, memory.key_v, memory.key_s)
        integration = controller.integration
        tensors = (
            *(memory.U, memory.V, memory.S),
            *(tensor for key in keys for tensor in (key.weight, key.bias)),
            *(controller.input.weight, controller.input.bias),
            None if controller.recurrent is None else controller.recurrent.weight,
            *(controller.signal.weight, controller.signal.bias),
            *((None, None) if integration is None else (integration.weight, integration.bias)),
            *(self.R, self.bias),
        )
        return tuple(None if tensor is None else tensor.contiguous() for tensor in tensors)

    def materialize(self, x: Tensor, control: Tensor | None = None) -> Tensor:
        """`W_t` (..., in_features, out_features) of each input. For study: memory grows with the batch."""
        return self.working_programs(self.programs(x, control))
