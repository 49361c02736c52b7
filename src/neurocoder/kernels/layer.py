"""The whole linear program layer as one autograd function, for eager mode: few operations, and few tensors kept.

What reads the input is one projection. The residual is applied to the scaled input, so that neither `x R` nor the
scaled gradient has to be kept: with `G = dy R`, the gradient of the scale is `<G, x>` and that of x is `scale * G`.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from ..config import ProgramConfig
from . import eager


def core_of(fused: bool) -> Any:
    """The module with the composition core: Triton kernels, or torch operations."""
    if not fused:
        return eager
    from . import fused as kernels

    return kernels


class ProgramLinear(torch.autograd.Function):
    """`y = x W_t + bias` for x (N, d_in). `fused`: whether the Triton core composes, or the one in torch operations."""

    @staticmethod
    def forward(
        ctx: Any,
        fused: bool,
        program: ProgramConfig,
        dtype: torch.dtype,
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
        """Parameters of the layer in the order of the arguments; `residual` (d_out, d_in).

        Large products are in `dtype`, the composition in at least float32.
        """
        core, full = core_of(fused), torch.promote_types(dtype, torch.float32)
        with _without_autocast(x):
            x = x.to(dtype)
            readers = _readers(left, input_weight, integration).to(dtype)
            projected = torch.mm(x, readers.mT).to(full)
            networks = (key_u, key_u_bias, key_v, key_v_bias, key_s, key_s_bias)
            slots, networks = _to((left, right, values), full), _to(networks, full)
            keys = core.make_keys(slots, networks)
            small = _to((input_bias, recurrent, signal, signal_bias, integration_bias), full)
            tensors = (projected, *small[:4], keys, slots[2], small[4])
            coefficients, scale, *saved = core.forward(*tensors, core.sizes_of(program))
            coefficients, right = coefficients.to(dtype), right.to(dtype)
            y = coefficients @ right if bias is None else torch.addmm(bias.to(dtype), coefficients, right)
            scaled = None
            if residual is not None:
                residual = residual.to(dtype)
                scaled = x if integration is None else core.scale_rows(x, scale)
                y.addmm_(scaled, residual.mT)
        ctx.fused, ctx.program, ctx.has_bias = fused, program, bias is not None
        # All through save_for_backward, so that activation checkpointing can drop them.
        ctx.save_for_backward(
            *(x, *slots, *networks[::2], small[1], small[2], small[4], right, residual),
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
        with _without_autocast(grad):
            return _backward(ctx, grad)


def _without_autocast(tensor: Tensor) -> AbstractContextManager[Any]:
    """Casts are this file's own; leaving autocast costs time, so only where it is on."""
    device = tensor.device.type
    return torch.autocast(device, enabled=False) if torch.is_autocast_enabled(device) else nullcontext()


def _readers(left: Tensor, input_weight: Tensor, integration: Tensor | None) -> Tensor:
    """The weights of what reads the input, one under the other; on a GPU padded to a multiple of eight rows, so that
    the rows of the projection begin at multiples of 16 bytes, as fast matrix products want them."""
    parts = [left, input_weight] if integration is None else [left, input_weight, integration]
    missing = -sum(map(len, parts)) % 8 if left.is_cuda else 0
    return torch.cat([*parts, left.new_zeros(missing, left.shape[1])] if missing else parts)


def _to(tensors: Sequence[Tensor | None], dtype: torch.dtype) -> tuple[Any, ...]:
    return tuple(None if tensor is None else tensor.to(dtype) for tensor in tensors)


def _backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    """The gradients; autograd casts each to the dtype of its parameter."""
    tensors = ctx.saved_tensors  # once: activation checkpointing hands them out a single time
    x, left, right, values, *weights, recurrent, signal, gate_bias, right_low, residual = tensors[:12]
    readers, projected, keys, coefficients, scale, scaled, *saved = tensors[12:]
    program: ProgramConfig = ctx.program
    full = projected.dtype
    core, gated = core_of(ctx.fused), gate_bias is not None
    wants_x, wants_residual = ctx.needs_input_grad[3], ctx.needs_input_grad[20]
    grad = grad.contiguous()
    grad_right, grad_coefficients = (coefficients.mT @ grad).to(full), (grad @ right_low.mT).to(full)
    grad_x: Any = None
    grad_scale, grad_residual = None, None
    if residual is not None:
        if wants_residual:
            grad_residual = grad.mT @ scaled
        if gated or wants_x:
            grad_x = grad @ residual
        if gated:
            grad_scale = core.scale_backward(grad_x, x, scale, wants_x)
            grad_x = grad_x if wants_x else None
    found = core.backward(
        *(grad_coefficients, grad_scale, None, None),
        *(projected, recurrent, signal, keys, values, gate_bias, saved, core.sizes_of(program)),
    )
    grad_projected, grad_recurrent, grad_signal, grad_signal_bias, grad_keys, grad_values = found
    if wants_x:
        low = grad_projected.to(readers.dtype)
        grad_x = low @ readers if grad_x is None else grad_x.addmm_(low, readers)
    slots, end = program.slots, program.slots + 4 * program.hidden
    grad_readers = (grad_projected.to(x.dtype).mT @ x).to(full)
    grad_biases = grad_projected.sum(0)
    grad_slots = (grad_readers[:slots], grad_right, grad_values)
    grad_networks = core.keys_backward(grad_keys, (left, right, values), weights, grad_slots)
    return (
        *(None, None, None, grad_x),
        *grad_slots,
        *grad_networks,
        *(grad_readers[slots:end], grad_biases[slots:end]),
        None if recurrent is None else grad_recurrent,
        *(grad_signal, grad_signal_bias),
        *((grad_readers[end : end + 1], grad_biases[end : end + 1]) if gated else (None, None)),
        grad_residual,
        grad.sum(0) if ctx.has_bias else None,
    )
