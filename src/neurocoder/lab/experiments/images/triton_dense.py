"""Triton kernels of DenseNet's blocks. `dense_block.py` says what they compute together.

Layouts: `features` and their gradient are (M, stride), a row for each pixel of the batch, a column for each channel. A
3 x 3 kernel has nine taps; `columns` (M, J) hold tap t of new channel o in column t * G + o, J a power of two. `packed`
(C, J) are a layer's weights in that order. Statistics of channels are float32. Numbers that differ from layer to layer
are not specialised on, so that each kernel is compiled once.
"""

# mypy: disallow-untyped-defs=False, disallow-untyped-calls=False
# Kernels take pointers and compile-time constants; triton has no types for them.

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["channels"])
def pack_kernel(weight, packed, channels, G: tl.constexpr, J: tl.constexpr, BC: tl.constexpr):
    """`packed[c, t G + o] = weight[o, c, t]`, 0 elsewhere."""
    c, j = tl.program_id(0) * BC + tl.arange(0, BC), tl.arange(0, J)
    at = ((j % G)[None, :] * channels + c[:, None]) * 9 + (j // G)[None, :]
    value = tl.load(weight + at, mask=(c < channels)[:, None] & (j < 9 * G)[None, :], other=0.0)
    tl.store(packed + c[:, None] * J + j[None, :], value.to(packed.dtype.element_ty))


@triton.jit
def relu(x):
    """As torch's: what is not a number stays so."""
    return tl.maximum(x, 0.0, propagate_nan=tl.PropagateNan.ALL)


@triton.jit(do_not_specialize=["channels"])
def expand_kernel(
    features, packed, mean, rstd, gamma, beta, columns, rows, channels, padded, stride,
    J: tl.constexpr, BM: tl.constexpr, BC: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """`columns = relu(gamma (x - mean) rstd + beta) packed` for BM pixels."""
    begin = tl.program_id(0).to(tl.int64) * BM
    m, j = tl.arange(0, BM), tl.arange(0, J)
    below = m < rows - begin
    total = tl.zeros([BM, J], tl.float32)
    for first in tl.range(0, padded, BC):
        c = first + tl.arange(0, BC)
        real, inside = c < channels, c < padded
        scale = tl.load(rstd + c, mask=real, other=0.0) * tl.load(gamma + c, mask=real, other=0.0)
        shift = tl.load(beta + c, mask=real, other=0.0) - tl.load(mean + c, mask=real, other=0.0) * scale
        x = tl.load(
            features + begin * stride + m[:, None] * stride + c[None, :],
            mask=below[:, None] & inside[None, :],
            other=0.0,
        )
        w = tl.load(packed + c[:, None] * J + j[None, :], mask=inside[:, None], other=0.0)
        y = relu(x.to(tl.float32) * scale[None, :] + shift[None, :]).to(w.dtype)
        total = tl.dot(y, w, total, input_precision=PRECISION)
    at = begin * J + m[:, None] * J + j[None, :]
    tl.store(columns + at, total.to(columns.dtype.element_ty), mask=below[:, None])


@triton.jit
def moments_of(value, below, count, at, partial, width, inside):
    """Mean and sum of squared deviations over the first `count` rows, stored as a tile's part."""
    mean = tl.sum(tl.where(below, value, 0.0), axis=0) / count
    deviation = tl.where(below, value - mean[None, :], 0.0)
    tl.store(partial + at, mean, mask=inside)
    tl.store(partial + at + width, tl.sum(deviation * deviation, axis=0), mask=inside)


@triton.jit(do_not_specialize=["quarter", "height", "width"])
def fold_kernel(
    columns, features, partial, rows, quarter, stride, height, width,
    G: tl.constexpr, GG: tl.constexpr, J: tl.constexpr, BM: tl.constexpr,
):  # fmt: skip
    """The new channels `x[p, C + o] = sum_t columns[p + t, t G + o]` of BM pixels, and their moments; C = 4 quarter,
    which tells the compiler that four channels can be stored at once."""
    begin = tl.program_id(0).to(tl.int64) * BM
    m, o = begin + tl.arange(0, BM), tl.arange(0, GG)
    below, inside = m < rows, o < G
    column, line = m % width, m // width % height
    total = tl.zeros([BM, GG], tl.float32)
    for t in tl.static_range(9):
        down, right = t // 3 - 1, t % 3 - 1
        valid = below & (line + down >= 0) & (line + down < height) & (column + right >= 0) & (column + right < width)
        at = (m + down * width + right)[:, None] * J + (t * G + o)[None, :]
        total += tl.load(columns + at, mask=valid[:, None] & inside[None, :], other=0.0).to(tl.float32)
    value = total.to(features.dtype.element_ty)
    tl.store(features + m[:, None] * stride + (quarter * 4 + o)[None, :], value, mask=below[:, None] & inside[None, :])
    count = tl.minimum(rows - begin, BM).to(tl.float32)
    at = tl.program_id(0) * 2 * GG + o
    moments_of(value.to(tl.float32), below[:, None], count, at, partial, GG, o < GG)


@triton.jit(do_not_specialize=["channels"])
def moments_kernel(features, partial, rows, channels, stride, BM: tl.constexpr, BC: tl.constexpr):
    """The moments of BM pixels and BC channels."""
    begin = tl.program_id(0).to(tl.int64) * BM
    m, c = begin + tl.arange(0, BM), tl.program_id(1) * BC + tl.arange(0, BC)
    below, inside = m < rows, c < channels
    x = tl.load(features + m[:, None] * stride + c[None, :], mask=below[:, None] & inside[None, :], other=0.0)
    count = tl.minimum(rows - begin, BM).to(tl.float32)
    moments_of(x.to(tl.float32), below[:, None], count, tl.program_id(0) * 2 * channels + c, partial, channels, inside)


@triton.jit(do_not_specialize=["tiles", "width", "count"])
def combine_kernel(
    partial, mean, variance, rstd, rows, tiles, width, count, eps, BM: tl.constexpr, BT: tl.constexpr, BC: tl.constexpr
):  # fmt: skip
    """Mean, biased variance and `rstd = 1 / sqrt(variance + eps)` of `count` channels, from those of tiles (T, 2,
    width) of BM pixels; the last tile may have fewer."""
    c = tl.program_id(0) * BC + tl.arange(0, BC)
    inside = c < count
    total = tl.zeros([BC], tl.float32)
    for first in tl.range(0, tiles, BT):
        t = first + tl.arange(0, BT)
        size = tl.maximum(tl.minimum(rows - t * BM, BM), 0).to(tl.float32)
        part = tl.load(
            partial + t[:, None] * 2 * width + c[None, :], mask=(t < tiles)[:, None] & inside[None, :], other=0.0
        )
        total += tl.sum(part * size[:, None], axis=0)
    average = total / rows
    squares = tl.zeros([BC], tl.float32)
    for first in tl.range(0, tiles, BT):
        t = first + tl.arange(0, BT)
        size = tl.maximum(tl.minimum(rows - t * BM, BM), 0).to(tl.float32)
        at, valid = partial + t[:, None] * 2 * width + c[None, :], (t < tiles)[:, None] & inside[None, :]
        off = tl.where(valid, tl.load(at, mask=valid, other=0.0) - average[None, :], 0.0)
        squares += tl.sum(tl.load(at + width, mask=valid, other=0.0) + off * off * size[:, None], axis=0)
    spread = squares / rows
    tl.store(mean + c, average, mask=inside)
    tl.store(variance + c, spread, mask=inside)
    tl.store(rstd + c, 1.0 / tl.sqrt(spread + eps), mask=inside)


@triton.jit(do_not_specialize=["quarter"])
def complete_kernel(
    grad, features, mean, rstd, sums, complete, rows, quarter, stride,
    G: tl.constexpr, GG: tl.constexpr, BM: tl.constexpr,
):  # fmt: skip
    """The gradient (M, GG) of the G channels from C = 4 quarter on, once all layers that read them are done.

    `g = grad - rstd / M (sums_0 + (x - mean) rstd sums_1)`: the part through the statistics is the same for all pixels
    but for x, so the sums of all later layers are subtracted here at once. 0 in the columns beyond G.
    """
    m, o = tl.program_id(0).to(tl.int64) * BM + tl.arange(0, BM), tl.arange(0, GG)
    below, inside = (m < rows)[:, None], o < G
    c = quarter * 4 + o
    center, scale = tl.load(mean + c, mask=inside, other=0.0), tl.load(rstd + c, mask=inside, other=0.0)
    slope = scale * tl.load(sums + stride + c, mask=inside, other=0.0) * scale / rows
    level = scale * tl.load(sums + c, mask=inside, other=0.0) / rows - center * slope
    at = m[:, None] * stride + c[None, :]
    x = tl.load(features + at, mask=below & inside[None, :], other=0.0).to(tl.float32)
    g = tl.load(grad + at, mask=below & inside[None, :], other=0.0).to(tl.float32)
    value = g - level[None, :] - slope[None, :] * x
    tl.store(complete + m[:, None] * GG + o[None, :], value.to(complete.dtype.element_ty), mask=below)


@triton.jit(do_not_specialize=["height", "width"])
def unfold_kernel(
    complete, columns, rows, height, width, G: tl.constexpr, GG: tl.constexpr, J: tl.constexpr, BM: tl.constexpr
):  # fmt: skip
    """The gradient that each tap sees: `columns[p, t G + o] = g[p - t, o]`, 0 beyond the border and 9 G columns.

    Whole rows are stored at once. G is a multiple of four, so that four channels are read at once."""
    begin = tl.program_id(0).to(tl.int64) * BM
    m, j = begin + tl.arange(0, BM), tl.arange(0, J)
    tap, o = j // G, j % G
    down, right = tap // 3 - 1, tap % 3 - 1
    line, column = (m // width % height)[:, None] - down[None, :], (m % width)[:, None] - right[None, :]
    below = (m < rows)[:, None]
    valid = below & (tap < 9)[None, :] & (line >= 0) & (line < height) & (column >= 0) & (column < width)
    at = (m[:, None] - (down * width + right)[None, :]) * GG + o[None, :]
    g = tl.load(complete + at, mask=valid, other=0.0)
    tl.store(columns + m[:, None] * J + j[None, :], g, mask=below)


@triton.jit(do_not_specialize=["channels", "tiles", "each"])
def backward_kernel(
    features, grad, columns, packed, mean, rstd, gamma, beta, weights, sums,
    rows, channels, padded, stride, tiles, each,
    J: tl.constexpr, BM: tl.constexpr, BC: tl.constexpr, STAGES: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One layer's backward for BC channels and `each` tiles of BM pixels; sums over a tile wait for the last one.

    `dy = relu'(columns packed^T)`; adds `gamma rstd dy` to grad, and stores its parts of the weights' gradient
    `columns^T y` (splits, J, padded) and of `sum dy`, `sum dy (x - mean) rstd` (splits, 2, padded).
    """
    split = tl.program_id(1)
    m, j = tl.arange(0, BM), tl.arange(0, J)
    c = tl.program_id(0) * BC + tl.arange(0, BC)
    real, inside = c < channels, c < padded
    center, spread = tl.load(mean + c, mask=real, other=0.0), tl.load(rstd + c, mask=real, other=0.0)
    scale = tl.load(gamma + c, mask=real, other=0.0) * spread
    shift = tl.load(beta + c, mask=real, other=0.0) - center * scale
    w = tl.load(packed + c[None, :] * J + j[:, None], mask=inside[None, :], other=0.0)
    products = tl.zeros([J, BC], tl.float32)
    sum_0, sum_1 = tl.zeros([BM, BC], tl.float32), tl.zeros([BM, BC], tl.float32)
    for tile in tl.range(0, tl.minimum(each, tiles - split * each), num_stages=STAGES):
        begin = split.to(tl.int64) * each * BM + tile * BM
        below = (m < rows - begin)[:, None]
        at, valid = begin * stride + m[:, None] * stride + c[None, :], below & inside[None, :]
        g = tl.load(columns + begin * J + m[:, None] * J + j[None, :], mask=below, other=0.0)
        old = tl.load(grad + at, mask=valid, other=0.0)
        x = tl.load(features + at, mask=valid, other=0.0).to(tl.float32)
        before = x * scale[None, :] + shift[None, :]
        dy = tl.dot(g, w, input_precision=PRECISION)
        products = tl.dot(tl.trans(g), relu(before).to(g.dtype), products, input_precision=PRECISION)
        dy = tl.where(before > 0.0, dy, 0.0)
        sum_0 += dy
        sum_1 += dy * (x - center[None, :])
        new = old.to(tl.float32) + dy * scale[None, :]
        tl.store(grad + at, new.to(old.dtype), mask=valid)
    tl.store(weights + (split * J + j[:, None]) * padded + c[None, :], products, mask=inside[None, :])
    tl.store(sums + split * 2 * padded + c, tl.sum(sum_0, axis=0), mask=inside)
    tl.store(sums + (split * 2 + 1) * padded + c, tl.sum(sum_1, axis=0) * spread, mask=inside)


@triton.jit(do_not_specialize=["splits", "channels"])
def gather_kernel(
    weights, parts, gamma, grad_weight, grad_gamma, grad_beta, sums, splits, channels, padded, stride,
    G: tl.constexpr, J: tl.constexpr, BS: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """Sums over splits: the weights' gradient (G, C, 9), and in the last column of the grid those of gamma and beta,
    times gamma added to `sums` (2, stride)."""
    j = tl.program_id(0)
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    real = c < channels
    first, second = tl.zeros([BC], tl.float32), tl.zeros([BC], tl.float32)
    for begin in tl.range(0, splits, BS):
        s = begin + tl.arange(0, BS)
        valid = (s < splits)[:, None] & real[None, :]
        if j < 9 * G:
            part = tl.load(weights + (s * J + j)[:, None] * padded + c[None, :], mask=valid, other=0.0)
            first += tl.sum(part, axis=0)
        else:
            at = parts + (s * 2 * padded)[:, None] + c[None, :]
            first += tl.sum(tl.load(at, mask=valid, other=0.0), axis=0)
            second += tl.sum(tl.load(at + padded, mask=valid, other=0.0), axis=0)
    if j < 9 * G:
        tl.store(grad_weight + ((j % G) * channels + c) * 9 + j // G, first, mask=real)
    else:
        factor = tl.load(gamma + c, mask=real, other=0.0)
        tl.store(grad_beta + c, first, mask=real)
        tl.store(grad_gamma + c, second, mask=real)
        tl.store(sums + c, tl.load(sums + c, mask=real, other=0.0) + factor * first, mask=real)
        tl.store(sums + stride + c, tl.load(sums + stride + c, mask=real, other=0.0) + factor * second, mask=real)
