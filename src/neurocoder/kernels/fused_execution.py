"""What stands around the composition core on a GPU, as Triton kernels: the keys of the slots before it, and after it
the execution of what is composed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .rounding import aligned, cdiv, padded, power_of_two
from .sizes import precision
from .triton_layer import execute_backward_kernel, execute_kernel, keys_backward_kernel, keys_forward_kernel

_EXECUTE_PROGRAMS = 64
"""Programs of the execution's backward below which its columns are split."""


def prepare(
    slots: Sequence[Tensor], networks: Sequence[Tensor], weight: Tensor, bias: Tensor
) -> tuple[Tensor, list[Tensor]]:
    """k (3, P, K) from M_U, M_V, M_S and weight and bias of each key network; and the signal's weight (rows, hidden)
    and bias side by side, padded."""
    left, right, _ = slots
    count, key_dim = len(left), len(networks[0])
    rows, hidden = weight.shape
    keys, packed = left.new_empty(3, count, key_dim), weight.new_empty(aligned(rows), aligned(hidden + 1))
    sizes = {"P": count, "K": key_dim, "KP": power_of_two(key_dim), "BD": 512}
    keys_forward_kernel[count, 4](
        *(*slots, *networks, keys, weight, bias, packed, left.shape[1], right.shape[1], rows, len(packed)),
        C=hidden,
        W=packed.shape[1],
        PACK=512,
        num_warps=8,
        **sizes,
    )
    return keys, [packed]


def pack(weight: Tensor, bias: Tensor) -> list[Tensor]:
    """The signal's weight (rows, hidden) and bias side by side, padded, by torch operations."""
    rows, hidden = weight.shape
    both = torch.cat([weight, bias.unsqueeze(1)], dim=1)
    return [torch.nn.functional.pad(both, (0, aligned(hidden + 1) - hidden - 1, 0, aligned(rows) - rows))]


def prepare_backward(
    grad_keys: Tensor,
    grad_signal: Sequence[Tensor],
    slots: Sequence[Tensor],
    weights: Sequence[Tensor],
    weight: Tensor,
    grad_slots: Sequence[Tensor],
) -> tuple[list[Tensor], Tensor, Tensor]:
    """Gradients of weight and bias of each key network, and of those of the signal; adds to those of the slots, in
    place."""
    left, right, _ = slots
    count, key_dim = len(left), len(weights[0])
    grads, biases = [torch.empty_like(tensor) for tensor in weights], left.new_empty(3, key_dim)
    rows, hidden = weight.shape
    grad_weight, grad_bias = torch.empty_like(weight), weight.new_empty(rows)
    sizes = {"P": count, "K": key_dim, "PP": padded(count), "KP": padded(key_dim), "BD": 32}
    widths = left.shape[1], right.shape[1]
    keys_backward_kernel[cdiv(max(widths), 32), 4](
        *(grad_keys, *slots, *weights, *grad_slots, *grads, biases, grad_signal[0], grad_weight, grad_bias),
        *(*widths, rows),
        C=hidden,
        W=grad_signal[0].shape[1],
        PACK=512,
        **sizes,
    )
    return [tensor for pair in zip(grads, biases, strict=True) for tensor in pair], grad_weight, grad_bias


def project(x: Tensor, readers: Tensor) -> Tensor:
    """What reads the input (N, width) for x (N, d_in) and readers (width, d_in)."""
    return torch.mm(x, readers.mT)


def _tiles(right: Tensor) -> dict[str, Any]:
    """Constants of the execution's kernels for M_V (P, d_out)."""
    return {"P": len(right), "PP": padded(len(right)), "PRECISION": precision(right.dtype)}


def execute(
    coefficients: Tensor, right: Tensor, bias: Tensor | None, plain: Tensor | None, scale: Tensor | None
) -> Tensor:
    """`y = e M_V + bias + scale * (x R)` (N, d_out) for e (N, mixed), M_V (P, d_out); `plain` is `x R`."""
    count, d_out = len(coefficients), right.shape[1]
    y = right.new_empty(count, d_out)
    if count:
        constants = {"BIAS": bias is not None, "SCALED": plain is not None, "BN": 32, "BD": 128, **_tiles(right)}
        execute_kernel[cdiv(count, 32), cdiv(d_out, 128)](
            coefficients,
            coefficients.stride(0),
            right,
            right if bias is None else bias,
            right if plain is None else plain,
            right if scale is None else scale,
            y,
            count,
            d_out,
            num_warps=8,
            **constants,
        )
    return y


def execute_backward(
    grad: Tensor, right: Tensor, plain: Tensor | None, scale: Tensor, scaled: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    """Shares of the gradients of e (parts, N, P) and of the scale (parts, N, 1) (None without); fills `scaled` with
    `scale * grad`. Few inputs are split by columns, so that they fill the chip."""
    count, (slots, d_out) = len(grad), right.shape
    tiles = _tiles(right)
    block = min(128, 8192 // tiles["PP"], padded(d_out))  # 80 KB on chip at most
    blocks, programs = cdiv(d_out, block), max(1, cdiv(count, 16))
    parts = power_of_two(min(blocks, max(1, _EXECUTE_PROGRAMS // programs)))
    grad_coefficients = scale.new_empty(parts, count, slots)
    grad_scale = None if plain is None else scale.new_empty(parts, count, 1)
    if count:
        execute_backward_kernel[programs, parts](
            grad,
            right,
            right if plain is None else plain,
            scale,
            grad_coefficients,
            right if grad_scale is None else grad_scale,
            right if scaled is None else scaled,
            count,
            d_out,
            cdiv(blocks, parts) * block,
            SCALED=plain is not None,
            BN=16,
            BD=block,
            num_warps=2,
            num_stages=3,
            **tiles,
        )
    return grad_coefficients, grad_scale


def right_backward(grad: Tensor, coefficients: Tensor, slots: int) -> tuple[Tensor, Tensor]:
    """Gradients of M_V (P, d_out) and of the bias."""
    summed = coefficients.to(grad.dtype).mT @ grad
    return summed[:slots], summed[slots]
