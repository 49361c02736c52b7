"""Triton kernels of the growing layers: controls and their nearest slots, programs executed input by input, gradients
slot by slot.

Layouts: a bank (P, r, d); inputs or gradients (N, d); slots and their share (N, k). A pair n * k + j is input n and
its j-th slot. `order` lists the pairs by slot: those of slot i are `order[starts[i] : starts[i + 1]]`.
"""

# mypy: disallow-untyped-defs=False, disallow-untyped-calls=False
# Kernels take pointers and compile-time constants; triton has no types for them.

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def centred_kernel(rows, z, length, width, BD: tl.constexpr):
    """For one input: `z_n = x_n - mean(x_n)` (N, d) and `||z_n||` (N,), BD features at a time."""
    n, d = tl.program_id(0).to(tl.int64), tl.arange(0, BD)
    sums = tl.zeros([BD], tl.float32)
    for begin in tl.range(0, width, BD):
        at = begin + d
        sums += tl.load(rows + n * width + at, mask=at < width, other=0.0).to(tl.float32)
    mean = tl.div_rn(tl.sum(sums, axis=0), width.to(tl.float32))
    squares = tl.zeros([BD], tl.float32)
    for begin in tl.range(0, width, BD):
        at = begin + d
        x = tl.load(rows + n * width + at, mask=at < width, other=0.0).to(tl.float32)
        centred = tl.where(at < width, x - mean, 0.0)
        squares += centred * centred
        tl.store(z + n * width + at, centred, mask=at < width)
    tl.store(length + n, tl.sqrt_rn(tl.sum(squares, axis=0)))


@triton.jit
def nearest_kernel(
    product, length, written, slots, share, similarity, sharpness, shortest,
    P: tl.constexpr, K: tl.constexpr, PP: tl.constexpr, KK: tl.constexpr,
):  # fmt: skip
    """For one input: its K nearest of the first `written` slots, the first of equal ones, and the softmax of their
    cosines `k_i . z / ||z||`. A slot that is not written, or whose cosine is not a number, has share 0 and similarity
    -1."""
    n = tl.program_id(0).to(tl.int64)
    p, j = tl.arange(0, PP), tl.arange(0, KK)
    cosine = tl.load(product + n * P + p, mask=p < P, other=0.0) / tl.maximum(tl.load(length + n), shortest)
    left = tl.where((p < tl.load(written)) & (cosine == cosine), cosine, -2.0)
    left = tl.where(p < P, left, -3.0)
    found, best = tl.zeros([KK], tl.int64), tl.full([KK], -2.0, tl.float32)
    for index in tl.static_range(K):
        value, place = tl.max(left, axis=0, return_indices=True)
        found, best = tl.where(j == index, place, found), tl.where(j == index, value, best)
        left = tl.where(p == place, -3.0, left)
    power = tl.where(best > -2.0, tl.exp(sharpness * (best - tl.max(best, axis=0))), 0.0)
    total = tl.sum(power, axis=0)
    inside = j < K
    tl.store(slots + n * K + j, found, mask=inside)
    tl.store(share + n * K + j, power / tl.where(total > 0.0, total, 1.0), mask=inside)
    tl.store(similarity + n * K + j, tl.maximum(best, -1.0), mask=inside)


@triton.jit
def by_input_kernel(
    rows, first, second, slots, share, base, coefficients, y, width_in, width_out,
    R: tl.constexpr, K: tl.constexpr, WRITE: tl.constexpr, BASE: tl.constexpr, BR: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """For one input: `c_nr = sum_i w_ni A_ir . x_n` (N, r), of a first bank A (P, r, d_in).

    With WRITE, also `y_n = sum_i w_ni sum_r c_nr B_ir` (N, d_out), of a second bank B (P, r, d_out); with BASE, plus
    b_n (N, d_out). It takes BD features at a time. Products stay apart by feature until the end of the loop over
    features, so that one sum over features is enough.
    """
    n = tl.program_id(0).to(tl.int64)
    r, d = tl.arange(0, BR), tl.arange(0, BD)
    products = tl.zeros([BR, BD], tl.float32)
    for begin in tl.range(0, width_in, BD):
        at = begin + d
        inside = (r[:, None] < R) & (at[None, :] < width_in)
        x = tl.load(rows + n * width_in + at, mask=at < width_in, other=0.0).to(tl.float32)
        for j in tl.range(0, K, loop_unroll_factor=4):
            slot, w = tl.load(slots + n * K + j), tl.load(share + n * K + j)
            program = tl.load(first + (slot * R + r[:, None]) * width_in + at[None, :], mask=inside, other=0.0)
            products += tl.where(w == 0.0, 0.0, w * x)[None, :] * program.to(tl.float32)  # 0 times an infinite input
    c = tl.where(r < R, tl.sum(products, axis=1), 0.0)  # beyond the rank, zero times an infinite input
    tl.store(coefficients + n * R + r, c, mask=r < R)
    if WRITE:
        for begin in tl.range(0, width_out, BD):
            at = begin + d
            inside = (r[:, None] < R) & (at[None, :] < width_out)
            components = tl.zeros([BR, BD], tl.float32)
            for j in tl.range(0, K, loop_unroll_factor=4):
                slot, w = tl.load(slots + n * K + j), tl.load(share + n * K + j)
                program = tl.load(second + (slot * R + r[:, None]) * width_out + at[None, :], mask=inside, other=0.0)
                components += tl.where(w == 0.0, 0.0, w * c)[:, None] * program.to(tl.float32)
            total = tl.sum(components, axis=0)
            if BASE:
                total += tl.load(base + n * width_out + at, mask=at < width_out, other=0.0).to(tl.float32)
            tl.store(y + n * width_out + at, total.to(y.dtype.element_ty), mask=at < width_out)


@triton.jit
def by_slot_kernel(
    rows, coefficients, share, order, starts, grad, width,
    R: tl.constexpr, K: tl.constexpr, T: tl.constexpr, BD: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """For one slot i and BD features: the gradient `sum_n w_ni c_nr x_n` (P, r, d) of a bank, for the coefficients c
    (N, r); zero without inputs. Its inputs are loaded once, T >= r at a time."""
    slot, d = tl.program_id(0).to(tl.int64), tl.program_id(1) * BD + tl.arange(0, BD)
    r, t = tl.arange(0, T), tl.arange(0, T)
    total = tl.zeros([T, BD], tl.float32)
    first, last = tl.load(starts + slot), tl.load(starts + slot + 1)
    for begin in range(first, last, T):
        exists = begin + t < last
        pair = tl.load(order + begin + t, mask=exists, other=0)
        w = tl.load(share + pair, mask=exists, other=0.0)
        n = pair // K
        component = (r[:, None] < R) & exists[None, :]
        c = w[None, :] * tl.load(coefficients + n[None, :] * R + r[:, None], mask=component, other=0.0)
        feature = exists[:, None] & (d[None, :] < width)
        x = tl.load(rows + n[:, None] * width + d[None, :], mask=feature, other=0.0).to(tl.float32)
        total = tl.dot(c, x, acc=total, input_precision=PRECISION)
    inside = (r[:, None] < R) & (d[None, :] < width)
    tl.store(grad + (slot * R + r[:, None]) * width + d[None, :], total.to(grad.dtype.element_ty), mask=inside)
