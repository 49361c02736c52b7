"""Triton kernels around the composition core: keys of the slots, and the gradient that passes the residual's scale.

They replace a dozen tiny launches by four.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _key(memory, weight, bias, keys, D, K: tl.constexpr, KP: tl.constexpr, BD: tl.constexpr):
    """`k = W M(i) + b` of one slot; `memory` and `keys` point at the slot's row."""
    k = tl.arange(0, KP)
    total = tl.load(bias + k, mask=k < K, other=0.0)
    for start in range(0, D, BD):
        d = start + tl.arange(0, BD)
        row = tl.load(memory + d, mask=d < D, other=0.0)
        block = tl.load(weight + k[:, None] * D + d[None, :], mask=(k[:, None] < K) & (d[None, :] < D), other=0.0)
        total += tl.sum(block * row[None, :], axis=1)
    tl.store(keys + k, total, mask=k < K)


@triton.jit
def keys_forward_kernel(
    left,
    right,
    values,
    weight_u,
    bias_u,
    weight_v,
    bias_v,
    weight_s,
    bias_s,
    keys,
    d_in,
    d_out,
    P: tl.constexpr,
    K: tl.constexpr,
    KP: tl.constexpr,
    BD: tl.constexpr,
):
    """Writes k (3, P, K); one program a slot and kind."""
    i, kind = tl.program_id(0), tl.program_id(1)
    target = keys + (kind * P + i) * K
    if kind == 0:
        _key(left + i * d_in, weight_u, bias_u, target, d_in, K, KP, BD)
    elif kind == 1:
        _key(right + i * d_out, weight_v, bias_v, target, d_out, K, KP, BD)
    else:
        _key(values + i, weight_s, bias_s, target, 1, K, KP, BD)


@triton.jit
def _key_backward(
    grad_keys,
    memory,
    weight,
    grad_memory,
    grad_weight,
    grad_bias,
    D,
    P: tl.constexpr,
    K: tl.constexpr,
    PP: tl.constexpr,
    BD: tl.constexpr,
):
    """For one block of columns: adds `grad k W` to the slots' gradient, writes those of weight and bias."""
    p, d = tl.arange(0, PP), tl.program_id(0) * BD + tl.arange(0, BD)
    inside = (p[:, None] < P) & (d[None, :] < D)
    at = p[:, None] * D + d[None, :]
    slots = tl.load(memory + at, mask=inside, other=0.0)
    total = tl.load(grad_memory + at, mask=inside, other=0.0)
    for k in range(K):
        grad = tl.load(grad_keys + p * K + k, mask=p < P, other=0.0)
        tl.store(grad_weight + k * D + d, tl.sum(grad[:, None] * slots, axis=0), mask=d < D)
        total += grad[:, None] * tl.load(weight + k * D + d, mask=d < D, other=0.0)[None, :]
        if tl.program_id(0) == 0:
            tl.store(grad_bias + k, tl.sum(grad, axis=0))
    tl.store(grad_memory + at, total, mask=inside)


@triton.jit
def keys_backward_kernel(
    grad_keys,
    left,
    right,
    values,
    weight_u,
    weight_v,
    weight_s,
    grad_left,
    grad_right,
    grad_values,
    grad_weight_u,
    grad_weight_v,
    grad_weight_s,
    grad_biases,
    d_in,
    d_out,
    P: tl.constexpr,
    K: tl.constexpr,
    PP: tl.constexpr,
    BD: tl.constexpr,
):
    """From `grad_keys` (3, P, K): the key networks' gradients; adds what the slots get through their keys."""
    kind = tl.program_id(1)
    grad, bias = grad_keys + kind * P * K, grad_biases + kind * K
    first = tl.program_id(0) * BD
    if kind == 0:
        if first < d_in:
            _key_backward(grad, left, weight_u, grad_left, grad_weight_u, bias, d_in, P, K, PP, BD)
    elif kind == 1:
        if first < d_out:
            _key_backward(grad, right, weight_v, grad_right, grad_weight_v, bias, d_out, P, K, PP, BD)
    else:
        if first < 1:
            _key_backward(grad, values, weight_s, grad_values, grad_weight_s, bias, 1, P, K, PP, BD)


@triton.jit
def scale_forward_kernel(x, scale, scaled, D, BD: tl.constexpr):
    """`scale * x`, a block of one row a program."""
    n, d = tl.program_id(0).to(tl.int64), tl.program_id(1) * BD + tl.arange(0, BD)
    row = tl.load(x + n * D + d, mask=d < D).to(tl.float32)
    tl.store(scaled + n * D + d, row * tl.load(scale + n), mask=d < D)


@triton.jit
def scale_backward_kernel(grad, x, scale, grad_scale, D, KEEP: tl.constexpr, BD: tl.constexpr):
    """For one row of `G = dy R`: writes `<G, x>` and, with KEEP, multiplies the row by its scale."""
    n = tl.program_id(0).to(tl.int64)
    total = tl.zeros((BD,), dtype=tl.float32)
    factor = tl.load(scale + n)
    for start in range(0, D, BD):
        d = start + tl.arange(0, BD)
        g = tl.load(grad + n * D + d, mask=d < D, other=0.0).to(tl.float32)
        total += g * tl.load(x + n * D + d, mask=d < D, other=0.0).to(tl.float32)
        if KEEP:
            tl.store(grad + n * D + d, g * factor, mask=d < D)
    tl.store(grad_scale + n, tl.sum(total, axis=0))
