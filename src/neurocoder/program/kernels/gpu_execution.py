"""The work around the composition core on a GPU, as Triton kernels: the keys of the slots before it, and the execution
of the composed program after it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ...ops.rounding import aligned, cdiv, padded, power_of_two
from ..tensors import ProgramTensors, cast
from .core import Composed, Prepared
from .sizes import precision
from .triton_layer import execute_backward_kernel, execute_kernel, keys_backward_kernel, keys_forward_kernel

_EXECUTE_GRID = 64
"""Grid size below which the execution's backward splits its columns."""


def prepare(tensors: ProgramTensors) -> Prepared:
    """k (3, P, K); the signal's weight and bias, concatenated (rows, hidden + 1) and padded."""
    weight = tensors.signal_weight
    (count, d_in), key_dim = tensors.U.shape, tensors.key_u_weight.shape[0]
    rows, hidden = weight.shape
    packed_rows, width = aligned(rows), aligned(hidden + 1)
    keys, packed = weight.new_empty(3, count, key_dim), weight.new_empty(packed_rows, width)
    keys_forward_kernel[count, 4](
        *(*tensors.memory, keys, weight, tensors.signal_bias, packed),
        *(d_in, tensors.V.shape[1], rows, packed_rows),
        C=hidden,
        W=width,
        P=count,
        K=key_dim,
        KP=power_of_two(key_dim),
        BD=512,
        PACK=512,
        num_warps=8,
    )
    return Prepared(keys, packed)


def prepare_backward(
    grads: Prepared, tensors: ProgramTensors, grad_slots: Sequence[Tensor]
) -> tuple[Sequence[Tensor], Sequence[Tensor], Tensor, Tensor]:
    """Gradients of the key networks' weights and biases and of the signal's weight and bias; adds to the slots'
    gradients in place."""
    left, right, _ = tensors.slots
    count, key_dim = left.shape[0], tensors.key_u_weight.shape[0]
    weights, biases = [torch.empty_like(weight) for weight in tensors.key_weights], left.new_empty(3, key_dim)
    rows, hidden = tensors.signal_weight.shape
    grad_signal, grad_signal_bias = torch.empty_like(tensors.signal_weight), left.new_empty(rows)
    widths = left.shape[1], right.shape[1]
    keys_backward_kernel[cdiv(max(widths), 32), 4](
        *(grads.keys, *tensors.slots, *tensors.key_weights, *grad_slots, *weights, biases),
        *(grads.signal, grad_signal, grad_signal_bias, *widths, rows),
        C=hidden,
        W=grads.signal.shape[1],
        P=count,
        K=key_dim,
        PP=padded(count),
        KP=padded(key_dim),
        BD=32,
        PACK=512,
    )
    return weights, biases.unbind(), grad_signal, grad_signal_bias


def project(x: Tensor, readers: Tensor) -> Tensor:
    """The input projections (N, width) for x (N, d_in) and readers (width, d_in)."""
    return torch.mm(x, readers.mT)


def _tiles(right: Tensor) -> dict[str, Any]:
    """Constants of the execution kernels for M_V (P, d_out)."""
    slots = right.shape[0]
    return {"P": slots, "PP": padded(slots), "PRECISION": precision(right.dtype)}


def execute(composed: Composed, V: Tensor, bias: Tensor | None, xR: Tensor | None) -> Tensor:
    """`y = e M_V + bias + scale * (x R)` (N, d_out) for e (N, mixed), M_V (P, d_out), scale (N, 1)."""
    coefficients, scale = composed.coefficients, composed.scale
    assert coefficients is not None
    count, d_out = coefficients.shape[0], V.shape[1]
    y = V.new_empty(count, d_out)
    if count:
        execute_kernel[cdiv(count, 32), cdiv(d_out, 128)](
            *(coefficients, coefficients.stride(0), V),
            *(V if bias is None else bias, V if xR is None else xR, V if scale is None else scale),
            *(y, count, d_out),
            BIAS=bias is not None,
            SCALED=xR is not None,
            BN=32,
            BD=128,
            num_warps=8,
            **_tiles(V),
        )
    return y


def execute_backward(grad: Tensor, V: Tensor, xR: Tensor | None, scale: Tensor | None, of_xR: Tensor) -> Composed:
    """Shares of the gradients of e (parts, N, P) and of the scale (parts, N, 1); fills `of_xR`, the gradient of `x R`,
    if that is gated. With few inputs the columns are split, to fill the chip."""
    count, (slots, d_out) = grad.shape[0], V.shape
    tiles = _tiles(V)
    block = min(128, 8192 // tiles["PP"], padded(d_out))  # at most 80 KB on chip
    blocks, rows = cdiv(d_out, block), max(1, cdiv(count, 16))
    parts = power_of_two(min(blocks, max(1, _EXECUTE_GRID // rows)))
    grad_coefficients = grad.new_empty(parts, count, slots, dtype=torch.float32)
    grad_scale = None if xR is None else grad_coefficients.new_empty(parts, count, 1)
    if count:
        execute_backward_kernel[rows, parts](
            *(grad, V, V if xR is None else xR, V if scale is None else scale),
            *(grad_coefficients, V if grad_scale is None else grad_scale, of_xR),
            *(count, d_out, cdiv(blocks, parts) * block),
            SCALED=xR is not None,
            BN=16,
            BD=block,
            num_warps=2,
            num_stages=3,
            **tiles,
        )
    return Composed(grad_scale, grad_coefficients)


def write_backward(grad: Tensor, coefficients: Tensor, slots: int) -> tuple[Tensor, Tensor]:
    """Gradients of M_V (P, d_out) and of the bias."""
    summed = cast(coefficients, grad.dtype).mT @ grad
    return summed[:slots], summed[slots]
