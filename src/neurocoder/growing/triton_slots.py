"""Triton kernels of the growing layers: the nearest slots, and programs executed slot by slot and input by input.

Layouts: a bank (P, r, d); inputs or gradients (N, d); slots and their share (N, k). A pair n * k + j is input n and
its j-th slot. `order` lists the pairs by slot: those of slot i are `order[starts[i] : starts[i + 1]]`.
"""

# mypy: disallow-untyped-defs=False, disallow-untyped-calls=False
# Kernels take pointers and compile-time constants; triton has no types for them.

from __future__ import annotations

import triton
import triton.language as tl


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
        place = tl.argmax(left, axis=0)
        value = tl.max(left, axis=0)
        found, best = tl.where(j == index, place, found), tl.where(j == index, value, best)
        left = tl.where(p == place, -3.0, left)
    power = tl.where(best > -2.0, tl.exp(sharpness * (best - tl.max(best, axis=0))), 0.0)
    total = tl.sum(power, axis=0)
    inside = j < K
    tl.store(slots + n * K + j, found, mask=inside)
    tl.store(share + n * K + j, power / tl.where(total > 0.0, total, 1.0), mask=inside)
    tl.store(similarity + n * K + j, tl.maximum(best, -1.0), mask=inside)


@triton.jit
def by_slot_kernel(
    bank, rows, coefficients, share, order, starts, readings, grad, pairs, width,
    R: tl.constexpr, K: tl.constexpr, READ: tl.constexpr, SUM: tl.constexpr, T: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """For one slot i and BD features: each of its inputs is loaded once, T >= r at a time.

    With READ, `w_ni B_ir . x_n` over these features, to readings (chunks, N * k, r). With SUM, the gradient
    `sum_n w_ni c_nr x_n` (P, r, d) of a slot that was multiplied by the coefficients c (N, r); zero without inputs.
    """
    slot, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1)
    r, d = tl.arange(0, T), chunk * BD + tl.arange(0, BD)
    place = (slot * R + r[:, None]) * width + d[None, :]
    inside = (r[:, None] < R) & (d[None, :] < width)
    program = tl.zeros([T, BD], tl.float32)
    if READ:
        program = tl.load(bank + place, mask=inside, other=0.0).to(tl.float32)
    total = tl.zeros([T, BD], tl.float32)
    first, last = tl.load(starts + slot), tl.load(starts + slot + 1)
    for begin in range(first, last, T):
        position = begin + tl.arange(0, T)
        exists = position < last
        pair = tl.load(order + position, mask=exists, other=0)
        w = tl.load(share + pair, mask=exists, other=0.0)
        n = pair // K
        x = tl.load(rows + n[:, None] * width + d[None, :], mask=exists[:, None] & (d[None, :] < width), other=0.0).to(
            tl.float32
        )
        component = exists[:, None] & (r[None, :] < R)
        if READ:
            read = w[:, None] * tl.dot(x, tl.trans(program), input_precision="tf32x3")
            tl.store(readings + (chunk.to(tl.int64) * pairs + pair[:, None]) * R + r[None, :], read, mask=component)
        if SUM:
            c = w[:, None] * tl.load(coefficients + n[:, None] * R + r[None, :], mask=component, other=0.0)
            total = tl.dot(tl.trans(c), x, acc=total, input_precision="tf32x3")
    if SUM:
        tl.store(grad + place, total.to(grad.dtype.element_ty), mask=inside)


@triton.jit
def by_input_kernel(
    bank, coefficients, slots, share, y, width,
    R: tl.constexpr, K: tl.constexpr, BR: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """For one input and BD features: `y_n = sum_i w_ni sum_r c_nr B_ir` (N, d)."""
    n, d = tl.program_id(0).to(tl.int64), tl.program_id(1) * BD + tl.arange(0, BD)
    r = tl.arange(0, BR)
    c = tl.load(coefficients + n * R + r, mask=r < R, other=0.0)
    inside = (r[:, None] < R) & (d[None, :] < width)
    total = tl.zeros([BD], tl.float32)
    for j in tl.range(0, K, loop_unroll_factor=4):
        slot, w = tl.load(slots + n * K + j), tl.load(share + n * K + j)
        program = tl.load(bank + (slot * R + r[:, None]) * width + d[None, :], mask=inside, other=0.0)
        total += w * tl.sum(c[:, None] * program.to(tl.float32), axis=0)
    tl.store(y + n * width + d, total.to(y.dtype.element_ty), mask=d < width)
