"""Triton kernels for the orthogonal loss of a memory and its gradient: two launches for both slot matrices."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _columns(slots, p, d, D, P: tl.constexpr):
    """A block of columns of the slots (PP, BD)."""
    inside = (p[:, None] < P) & (d[None, :] < D)
    return tl.load(slots + p[:, None] * D + d[None, :], mask=inside, other=0.0).to(tl.float32)


@triton.jit
def gram_kernel(left, right, shares, d_in, d_out, blocks, P: tl.constexpr, PP: tl.constexpr, BD: tl.constexpr):
    """What one block of columns contributes to `M M^T`, (2, blocks, PP, PP)."""
    block, kind = tl.program_id(0), tl.program_id(1)
    p, d = tl.arange(0, PP), block * BD + tl.arange(0, BD)
    if kind == 0:
        columns = _columns(left, p, d, d_in, P)
    else:
        columns = _columns(right, p, d, d_out, P)
    gram = tl.dot(columns, tl.trans(columns), input_precision="tf32x3")
    tl.store(shares + ((kind * blocks + block) * PP + p[:, None]) * PP + p[None, :], gram)


@triton.jit
def _distance(slots, grad, distance, shares, weight, D, P: tl.constexpr, PP: tl.constexpr, BD: tl.constexpr):
    """`weight * norm` of `M M^T - I`, and its gradient `weight * 2 (M M^T - I) M / norm` for a block of columns."""
    block = tl.program_id(0)
    p, d = tl.arange(0, PP), block * BD + tl.arange(0, BD)
    at = p[:, None] * PP + p[None, :]
    gram = tl.zeros((PP, PP), dtype=tl.float32)
    for share in range(tl.cdiv(D, BD)):
        gram += tl.load(shares + share * PP * PP + at)
    gram -= tl.where((p[:, None] == p[None, :]) & (p[:, None] < P), 1.0, 0.0)
    norm = tl.sqrt(tl.sum(tl.sum(gram * gram, axis=1), axis=0))
    if block == 0:
        tl.store(distance, weight * norm)
    direction = tl.dot(gram, _columns(slots, p, d, D, P), input_precision="tf32x3")
    direction *= 2.0 * weight / tl.maximum(norm, 1e-30)
    tl.store(grad + p[:, None] * D + d[None, :], direction, mask=(p[:, None] < P) & (d[None, :] < D))


@triton.jit
def distance_kernel(
    left, right, grad_left, grad_right, distances, shares, weight, d_in, d_out, blocks,
    P: tl.constexpr, PP: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """Writes both norms (2,), times the weight, and their gradients."""
    first = tl.program_id(0) * BD
    if tl.program_id(1) == 0:
        if first < d_in:
            _distance(left, grad_left, distances, shares, weight, d_in, P, PP, BD)
    else:
        if first < d_out:
            _distance(right, grad_right, distances + 1, shares + blocks * PP * PP, weight, d_out, P, PP, BD)
