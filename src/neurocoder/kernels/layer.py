"""The whole linear program layer as one autograd function, for eager mode: few operations, and few tensors kept.

What reads the input is one projection. The residual is applied to the scaled input, so that neither `x R` nor the
scaled gradient has to be kept: with `G = dy R`, the gradient of the scale is `<G, x>` and that of x is `scale * G`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..config import ProgramConfig
from . import eager


class ProgramLinear(torch.autograd.Function):
    """`y = x W_t + bias` for x (N, d_in). `fused`: whether the Triton core composes, or the one in torch operations."""

    @staticmethod
    def forward(
        ctx: Any,
        fused: bool,
        program: ProgramConfig,
        x: Tensor,
        left: Tensor,
        right: Tensor,
        values: Tensor,
        key_u: Tensor,
        key_u_bias: Tensor,
        key_v: Tensor,
        key_v_bias: Tensor,
        key_s: Tensor,
        key_s_bias: Tensor,
        input_weight: Tensor,
        input_bias: Tensor,
        recurrent: Tensor | None,
        signal: Tensor,
        signal_bias: Tensor,
        integration: Tensor | None,
        integration_bias: Tensor | None,
        residual: Tensor | None,
        bias: Tensor | None,
    ) -> Tensor:
        """Parameters of the layer in the order of the arguments; `residual` (d_out, d_in)."""
        readers = torch.cat([left, input_weight] if integration is None else [left, input_weight, integration])
        projected = torch.mm(x, readers.mT)
        keys = x.new_empty(3, program.slots, program.key_dim)
        torch.addmm(key_u_bias, left, key_u.mT, out=keys[0])
        torch.addmm(key_v_bias, right, key_v.mT, out=keys[1])
        torch.addmm(key_s_bias, values, key_s.mT, out=keys[2])
        core = (projected, input_bias, recurrent, signal, signal_bias, keys, values, integration_bias)
        scale: Any
        if fused:
            from .fused import forward

            coefficients, scale, *saved = forward(*core, sizes_of(program))
        else:
            coefficients, scale, saved = eager.forward(*core, program)
        y = coefficients @ right if bias is None else torch.addmm(bias, coefficients, right)
        scaled = None
        if residual is not None:
            scaled = x if integration is None else x * scale
            y.addmm_(scaled, residual.mT)
        ctx.fused, ctx.program = fused, program
        # All through save_for_backward, so that activation checkpointing can drop them.
        ctx.save_for_backward(
            *(x, left, right, values, key_u, key_v, key_s, recurrent, signal, integration_bias, residual, bias),
            *(readers, projected, keys, coefficients, scale, scaled, *saved),
        )
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        """Reverse order of the forward; the large products only where their gradient is wanted."""
        if torch.is_grad_enabled():
            raise RuntimeError(
                "this backward cannot itself be differentiated: run the forward inside `with nc.backend('torch'):` "
                "where create_graph=True is used"
            )
        x, left, right, values, key_u, key_v, key_s, recurrent, signal, gate_bias, residual, bias = ctx.saved_tensors[
            :12
        ]
        readers, projected, keys, coefficients, scale, scaled, *saved = ctx.saved_tensors[12:]
        program: ProgramConfig = ctx.program
        gated = gate_bias is not None
        wants_x, wants_residual = ctx.needs_input_grad[2], ctx.needs_input_grad[19]
        grad = grad.contiguous()
        grad_right, grad_coefficients = coefficients.mT @ grad, grad @ right.mT
        grad_x: Any = None
        grad_scale, grad_residual = None, None
        if residual is not None:
            if wants_residual:
                grad_residual = grad.mT @ scaled
            if gated or wants_x:
                grad_x = grad @ residual
            if gated:
                grad_scale = torch.linalg.vecdot(grad_x, x).unsqueeze(-1)
                grad_x = grad_x.mul_(scale) if wants_x else None
        core = (projected, recurrent, signal, keys, values)
        if ctx.fused:
            from .fused import backward

            found = backward(grad_coefficients, grad_scale, None, None, *core, gate_bias, saved, sizes_of(program))
        else:
            found = eager.backward(grad_coefficients, grad_scale, *core, saved, program)
        grad_projected, grad_recurrent, grad_signal, grad_signal_bias, grad_keys, grad_values = found
        if wants_x:
            grad_x = grad_projected @ readers if grad_x is None else grad_x.addmm_(grad_projected, readers)
        slots, hidden = program.slots, 4 * program.hidden
        grad_readers, grad_biases = grad_projected.mT @ x, grad_projected.sum(0)
        key_biases = grad_keys.sum(1)
        return (
            *(None, None, grad_x),
            grad_readers[:slots].addmm_(grad_keys[0], key_u),
            grad_right.addmm_(grad_keys[1], key_v),
            grad_values.addmm_(grad_keys[2], key_s),
            *(grad_keys[0].mT @ left, key_biases[0]),
            *(grad_keys[1].mT @ right, key_biases[1]),
            *(grad_keys[2].mT @ values, key_biases[2]),
            *(grad_readers[slots : slots + hidden], grad_biases[slots : slots + hidden]),
            None if recurrent is None else grad_recurrent,
            *(grad_signal, grad_signal_bias),
            *((grad_readers[-1:], grad_biases[-1:]) if gated else (None, None)),
            grad_residual,
            None if bias is None else grad.sum(0),
        )


def sizes_of(program: ProgramConfig, mix: bool = True) -> Any:
    """The sizes of a configuration as the Triton core takes them."""
    from .fused import Sizes

    return Sizes(
        program.steps,
        program.heads,
        program.slots,
        program.key_dim,
        program.hidden,
        program.least_used,
        program.sharpness,
        mix,
        program.residual is True,
    )
