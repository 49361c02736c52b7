"""Triton kernels around the composition core: keys of the slots, execution of the program, sums over inputs.

They replace two dozen launches with five.
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
    left, right, values, weight_u, bias_u, weight_v, bias_v, weight_s, bias_s, keys, signal, signal_bias, packed, d_in,
    d_out, rows, padded_rows,
    C: tl.constexpr, W: tl.constexpr, P: tl.constexpr, K: tl.constexpr, KP: tl.constexpr, BD: tl.constexpr,
    PACK: tl.constexpr,
):  # fmt: skip
    """Writes k (3, P, K), with one program instance per slot and kind. The instances of a fourth kind write `packed`,
    rows of W: the signal's weight (rows, C) and bias, concatenated and padded with zeros."""
    i, kind = tl.program_id(0), tl.program_id(1)
    target = keys + (kind * P + i) * K
    if kind == 0:
        _key(left + i * d_in, weight_u, bias_u, target, d_in, K, KP, BD)
    elif kind == 1:
        _key(right + i * d_out, weight_v, bias_v, target, d_out, K, KP, BD)
    elif kind == 2:
        _key(values + i, weight_s, bias_s, target, 1, K, KP, BD)
    else:
        for start in range(i * PACK, padded_rows * W, tl.num_programs(0) * PACK):
            at = start + tl.arange(0, PACK)
            row, column = at // W, at % W
            value = tl.load(signal + row * C + column, mask=(row < rows) & (column < C), other=0.0)
            value += tl.load(signal_bias + row, mask=(row < rows) & (column == C), other=0.0)
            tl.store(packed + at, value, mask=row < padded_rows)


@triton.jit
def _key_backward(
    grad_keys, memory, weight, grad_memory, grad_weight, grad_bias, D,
    P: tl.constexpr, K: tl.constexpr, PP: tl.constexpr, KP: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """For one block of columns: adds `grad k W` to the slots' gradient, and writes the gradients of weight and bias."""
    p, d = tl.arange(0, PP), tl.program_id(0) * BD + tl.arange(0, BD)
    inside = (p[:, None] < P) & (d[None, :] < D)
    at = p[:, None] * D + d[None, :]
    slots = tl.load(memory + at, mask=inside, other=0.0)
    total = tl.load(grad_memory + at, mask=inside, other=0.0)
    k = tl.arange(0, KP)
    of_weight = k[:, None] * D + d[None, :]
    real = (k[:, None] < K) & (d[None, :] < D)
    grad = tl.load(grad_keys + p[:, None] * K + k[None, :], mask=(p[:, None] < P) & (k[None, :] < K), other=0.0)
    rows = tl.load(weight + of_weight, mask=real, other=0.0)
    tl.store(grad_memory + at, tl.dot(grad, rows, acc=total, input_precision="ieee"), mask=inside)
    tl.store(grad_weight + of_weight, tl.dot(tl.trans(grad), slots, input_precision="ieee"), mask=real)
    if tl.program_id(0) == 0:
        tl.store(grad_bias + k, tl.sum(grad, axis=0), mask=k < K)


@triton.jit
def keys_backward_kernel(
    grad_keys, left, right, values, weight_u, weight_v, weight_s, grad_left, grad_right, grad_values, grad_weight_u,
    grad_weight_v, grad_weight_s, grad_biases, packed, grad_signal, grad_signal_bias, d_in, d_out, rows,
    C: tl.constexpr, W: tl.constexpr, P: tl.constexpr, K: tl.constexpr, PP: tl.constexpr, KP: tl.constexpr,
    BD: tl.constexpr, PACK: tl.constexpr,
):  # fmt: skip
    """From `grad_keys` (3, P, K): writes the key networks' gradients, and adds to the slots' gradients. Splits the
    gradient of `packed`."""
    kind = tl.program_id(1)
    grad, bias = grad_keys + kind * P * K, grad_biases + kind * K
    first = tl.program_id(0) * BD
    if kind == 0:
        if first < d_in:
            _key_backward(grad, left, weight_u, grad_left, grad_weight_u, bias, d_in, P, K, PP, KP, BD)
    elif kind == 1:
        if first < d_out:
            _key_backward(grad, right, weight_v, grad_right, grad_weight_v, bias, d_out, P, K, PP, KP, BD)
    elif kind == 2:
        if first < 1:
            _key_backward(grad, values, weight_s, grad_values, grad_weight_s, bias, 1, P, K, PP, KP, BD)
    else:
        for start in range(tl.program_id(0) * PACK, rows * W, tl.num_programs(0) * PACK):
            at = start + tl.arange(0, PACK)
            row, column = at // W, at % W
            value = tl.load(packed + at, mask=row < rows, other=0.0)
            tl.store(grad_signal + row * C + column, value, mask=(row < rows) & (column < C))
            tl.store(grad_signal_bias + row, value, mask=(row < rows) & (column == C))


@triton.jit
def execute_kernel(
    coefficients, width, right, bias, xR, scale, y, N, D,
    P: tl.constexpr, PP: tl.constexpr, BIAS: tl.constexpr, SCALED: tl.constexpr, PRECISION: tl.constexpr,
    BN: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """One tile of `y = e M_V + bias + scale * (x R)`, the last term only with SCALED; `xR` (N, D) is `x R`."""
    n = (tl.program_id(0) * BN + tl.arange(0, BN)).to(tl.int64)
    d, p = tl.program_id(1) * BD + tl.arange(0, BD), tl.arange(0, PP)
    inside = (n[:, None] < N) & (d[None, :] < D)
    slots = tl.load(right + p[:, None] * D + d[None, :], mask=(p[:, None] < P) & (d[None, :] < D), other=0.0)
    mix = tl.load(coefficients + n[:, None] * width + p[None, :], mask=(n[:, None] < N) & (p[None, :] < P), other=0.0)
    total = tl.dot(mix, slots.to(tl.float32), input_precision=PRECISION)
    if BIAS:
        total += tl.load(bias + d, mask=d < D, other=0.0).to(tl.float32)[None, :]
    at = n[:, None] * D + d[None, :]
    if SCALED:
        factor = tl.load(scale + n, mask=n < N, other=0.0)
        total += factor[:, None] * tl.load(xR + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(y + at, total, mask=inside)


@triton.jit
def execute_backward_kernel(
    grad, right, xR, scale, grad_coefficients, grad_scale, of_xR, N, D, columns,
    P: tl.constexpr, PP: tl.constexpr, SCALED: tl.constexpr, PRECISION: tl.constexpr, BN: tl.constexpr,
    BD: tl.constexpr,
):  # fmt: skip
    """For a block of inputs and a part of the columns: this part's share of `grad e = grad M_V^T` (parts, N, P). With
    SCALED also its share of `grad scale = <grad, x R>` (parts, N), and `of_xR = scale * grad` (N, D)."""
    n, p = (tl.program_id(0) * BN + tl.arange(0, BN)).to(tl.int64), tl.arange(0, PP)
    part = tl.program_id(1)
    total = tl.zeros((BN, PP), dtype=tl.float32)
    if SCALED:
        factor = tl.load(scale + n, mask=n < N, other=0.0)
        along = tl.zeros((BN, BD), dtype=tl.float32)
    for start in range(part * columns, tl.minimum(D, (part + 1) * columns), BD):
        d = start + tl.arange(0, BD)
        inside = (n[:, None] < N) & (d[None, :] < D)
        at = n[:, None] * D + d[None, :]
        block = tl.load(grad + at, mask=inside, other=0.0).to(tl.float32)
        slots = tl.load(right + p[None, :] * D + d[:, None], mask=(p[None, :] < P) & (d[:, None] < D), other=0.0)
        total = tl.dot(block, slots.to(tl.float32), acc=total, input_precision=PRECISION)
        if SCALED:
            along += block * tl.load(xR + at, mask=inside, other=0.0).to(tl.float32)
            tl.store(of_xR + at, factor[:, None] * block, mask=inside)
    mask = (n[:, None] < N) & (p[None, :] < P)
    share = part * N + n
    tl.store(grad_coefficients + share[:, None] * P + p[None, :], total, mask=mask)
    if SCALED:
        tl.store(grad_scale + share, tl.sum(along, axis=1), mask=n < N)


@triton.jit
def _sum_rows(source, target, rows, columns, first, BR: tl.constexpr, BC: tl.constexpr):
    """Sums a block of columns of a matrix over its rows, in a fixed order."""
    column = first + tl.arange(0, BC)
    total = tl.zeros((BR, BC), dtype=tl.float32)
    for start in range(0, rows, BR):
        row = start + tl.arange(0, BR)
        inside = (row[:, None] < rows) & (column[None, :] < columns)
        total += tl.load(source + row[:, None].to(tl.int64) * columns + column[None, :], mask=inside, other=0.0)
    tl.store(target + column, tl.sum(total, axis=0), mask=column < columns)


@triton.jit
def sum_shares_kernel(
    first, first_sum, first_rows, first_columns, second, second_sum, second_rows, second_columns,
    BR: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """Column sums of two matrices, one program instance per block of columns, those of the first matrix first."""
    block = tl.program_id(0)
    blocks = tl.cdiv(first_columns, BC)
    if block < blocks:
        _sum_rows(first, first_sum, first_rows, first_columns, block * BC, BR, BC)
    else:
        _sum_rows(second, second_sum, second_rows, second_columns, (block - blocks) * BC, BR, BC)
