"""Triton kernels for the attention over slots.

Each row, a pair (input, head), is independent: one program instance takes a block of rows of one kind (u, v or s)
through all J steps with usage on chip. Reductions over inputs are per program instance and summed afterwards in a fixed
order, so the same input gives the same bits.

Layouts: the composition signal (J, N, 3HK + 3HP), rows padded, queries first; attention w (3, N, J, H, P); values per
component and input (N, r) with r = J * H. Keys are short, so products with them are loops over K: no matrix unit, no
shared memory, full float32. `PP` is P padded to a power of two. Conditions on constants are not combined with
conditions on values: Triton resolves the former at compile time. Inputs are counted in 64 bits: attention may hold more
than 2^31 numbers.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _inverse_norms(vectors, inside, K: tl.constexpr):
    """`1 / ||v||` of vectors of K numbers, given by pointers to their first element."""
    squares = tl.zeros(vectors.shape, dtype=tl.float32)
    for k in tl.static_range(K):
        value = tl.load(vectors + k, mask=inside, other=0.0)
        squares += value * value
    return 1.0 / tl.maximum(tl.sqrt(squares), 1e-12)


@triton.jit
def _cosines(queries, row_in, query_scale, keys, real, key_scale, K: tl.constexpr):
    """`cos(q, k_i)` (BR, PP) of queries (BR,) and keys (PP,), given by pointers and inverse norms."""
    total = tl.load(queries, mask=row_in, other=0.0)[:, None] * tl.load(keys, mask=real, other=0.0)[None, :]
    for k in tl.static_range(1, K):
        query = tl.load(queries + k, mask=row_in, other=0.0)
        total += query[:, None] * tl.load(keys + k, mask=real, other=0.0)[None, :]
    return total * query_scale[:, None] * key_scale[None, :]


@triton.jit
def _softmax(scaled, real):
    """Softmax over the real slots (BR, PP)."""
    scaled = tl.where(real[None, :], scaled, float("-inf"))
    exponential = tl.exp(scaled - tl.max(scaled, axis=1)[:, None])
    return exponential / tl.sum(exponential, axis=1)[:, None]


@triton.jit
def _threshold(usage, p, P: tl.constexpr, LEAST: tl.constexpr):
    """The `LEAST`-th smallest usage of each row (BR,); equal values count separately."""
    values = tl.where(p[None, :] < P, usage, float("inf"))
    threshold = tl.min(values, axis=1)
    count = tl.sum((values == threshold[:, None]).to(tl.int32), axis=1)
    for _ in range(LEAST - 1):
        larger = tl.min(tl.where(values > threshold[:, None], values, float("inf")), axis=1)
        more = count < LEAST
        count += tl.where(more, tl.sum((values == larger[:, None]).to(tl.int32), axis=1), 0)
        threshold = tl.where(more, larger, threshold)
    return threshold


@triton.jit
def attention_forward_kernel(
    signal, signal_stride, keys, values, read, read_stride, attention, thresholds, before, readings, sharpness, N,
    J: tl.constexpr, H: tl.constexpr, P: tl.constexpr, K: tl.constexpr, LEAST: tl.constexpr, MIX: tl.constexpr,
    PP: tl.constexpr, BR: tl.constexpr,
):  # fmt: skip
    """Writes w, the l_I-th smallest usages (3, N, r), `sum_i w^s_i M_S(i)` as `before` (N, r) and, with MIX,
    `sum_i w^u_i a_i` as `readings` (N, r)."""
    kind = tl.program_id(1).to(tl.int64)  # as are offsets that it begins
    row = tl.program_id(0) * BR + tl.arange(0, BR)
    n, h = (row // H).to(tl.int64), row % H
    p = tl.arange(0, PP)
    row_in, real = row < N * H, p < P
    inside = row_in[:, None] & real[None, :]
    slot_keys = keys + (kind * P + p) * K
    key_scale = _inverse_norms(slot_keys, real, K)
    usage = tl.zeros((BR, PP), dtype=tl.float32)
    for j in range(J):
        start = signal + (j * N + n) * signal_stride
        gate = tl.load(start[:, None] + (3 * H * K + (kind * H + h) * P)[:, None] + p[None, :], mask=inside, other=0.0)
        g = tl.sigmoid(gate)
        queries = start + (kind * H + h) * K
        query_scale = _inverse_norms(queries, row_in, K)
        w = g * _softmax(sharpness * _cosines(queries, row_in, query_scale, slot_keys, real, key_scale, K), real)
        component = (n * J + j) * H + h
        if j > 0:
            largest = tl.max(usage, axis=1)
            threshold = largest
            if LEAST < P:
                threshold = _threshold(usage, p, P, LEAST)
            tl.store(thresholds + kind * N * J * H + component, threshold, mask=row_in)
            w += (1 - g) * tl.where(usage <= threshold[:, None], largest[:, None] - usage, 0.0)
        w = tl.where(inside, w, 0.0)
        usage = tl.maximum(usage, w)
        tl.store(attention + (kind * N * J * H + component)[:, None] * P + p[None, :], w, mask=inside)
        if kind == 2:
            slots = tl.load(values + p, mask=real, other=0.0)
            tl.store(before + component, tl.sum(w * slots[None, :], axis=1), mask=row_in)
        if MIX:
            if kind == 0:
                a = tl.load(read + n[:, None] * read_stride + p[None, :], mask=inside, other=0.0)
                tl.store(readings + component, tl.sum(w * a, axis=1), mask=row_in)


@triton.jit
def attention_backward_kernel(
    signal, signal_stride, keys, values, grad_u, u_stride, grad_v, v_stride, attention, thresholds, factors,
    grad_signal, shares, sharpness, N,
    J: tl.constexpr, H: tl.constexpr, P: tl.constexpr, K: tl.constexpr, MIX: tl.constexpr, PP: tl.constexpr,
    KP: tl.constexpr, BR: tl.constexpr,
):  # fmt: skip
    """Writes the gradient of the composition signal, and each program instance's share of the gradients of keys and
    M_S, (3PK + P).

    With MIX, `grad_u` (a) and `grad_v` (gradient of e) have row strides and are multiplied by each component's factor;
    without it, they are complete, (N, r, P).
    """
    kind = tl.program_id(1).to(tl.int64)  # as are offsets that it begins
    p, k = tl.arange(0, PP), tl.arange(0, KP)
    real = p < P
    slot_keys = keys + (kind * P + p) * K
    key_scale = _inverse_norms(slot_keys, real, K)
    slots = tl.load(values + p, mask=real, other=0.0)
    sum_keys = tl.zeros((KP, PP), dtype=tl.float32)
    sum_values = tl.zeros((PP,), dtype=tl.float32)
    for block in range(tl.program_id(0), tl.cdiv(N * H, BR), tl.num_programs(0)):
        row = block * BR + tl.arange(0, BR)
        n, h = (row // H).to(tl.int64), row % H
        row_in = row < N * H
        inside = row_in[:, None] & real[None, :]
        grad_usage = tl.zeros((BR, PP), dtype=tl.float32)
        for back in range(J):
            j = J - 1 - back
            component = (n * J + j) * H + h
            line = (j * N + n) * signal_stride
            query_at = line + (kind * H + h) * K
            gate_at = (line + 3 * H * K + (kind * H + h) * P)[:, None] + p[None, :]
            g = tl.sigmoid(tl.load(signal + gate_at, mask=inside, other=0.0))
            w = tl.load(attention + (kind * N * J * H + component)[:, None] * P + p[None, :], mask=inside, other=0.0)
            factor = tl.load(factors + kind * N * J * H + component, mask=row_in, other=0.0)
            if kind == 2:
                grad = factor[:, None] * slots[None, :]
                sum_values += tl.sum(factor[:, None] * w, axis=0)
            elif MIX:
                if kind == 1:
                    grad = tl.load(grad_v + n[:, None] * v_stride + p[None, :], mask=inside, other=0.0)
                else:
                    grad = tl.load(grad_u + n[:, None] * u_stride + p[None, :], mask=inside, other=0.0)
                grad = grad * factor[:, None]
            else:
                if kind == 1:
                    grad = tl.load(grad_v + component[:, None] * P + p[None, :], mask=inside, other=0.0)
                else:
                    grad = tl.load(grad_u + component[:, None] * P + p[None, :], mask=inside, other=0.0)
            query_scale = _inverse_norms(signal + query_at, row_in, K)
            cosine = _cosines(signal + query_at, row_in, query_scale, slot_keys, real, key_scale, K)
            content = _softmax(sharpness * cosine, real)
            difference = content
            if j == 0:
                grad += grad_usage
            else:
                usage = tl.zeros((BR, PP), dtype=tl.float32)
                for earlier in range(j):
                    offset = (kind * N * J * H + (n * J + earlier) * H + h)[:, None] * P + p[None, :]
                    usage = tl.maximum(usage, tl.load(attention + offset, mask=inside, other=0.0))
                # m_{j+1} = max(m_j, w_j): the gradient goes to the larger, and ties split it evenly
                later = grad_usage * tl.where(w > usage, 1.0, tl.where(w == usage, 0.5, 0.0))
                grad += later
                largest = tl.max(usage, axis=1)[:, None]
                threshold = tl.load(thresholds + kind * N * J * H + component, mask=row_in, other=0.0)
                chosen = usage <= threshold[:, None]
                difference = content - tl.where(chosen, largest - usage, 0.0)
                grad_idle = tl.where(chosen & inside, grad * (1 - g), 0.0)
                top = (usage == largest) & real[None, :]
                spread = tl.sum(grad_idle, axis=1) / tl.sum(top.to(tl.float32), axis=1)
                grad_usage += tl.where(top, spread[:, None], 0.0) - grad_idle - later
            tl.store(grad_signal + gate_at, grad * difference * g * (1 - g), mask=inside)
            weighted = tl.where(inside, grad * g * content, 0.0)
            grad_cosine = sharpness * (weighted - content * tl.sum(weighted, axis=1)[:, None])
            # q^ = q / ||q|| and cos = q^ . k^: the gradient of q is (grad q^ - q^ (q^ . grad q^)) / ||q||
            along = tl.sum(grad_cosine * cosine, axis=1)
            for i in tl.static_range(K):
                key = tl.load(slot_keys + i, mask=real, other=0.0) * key_scale
                query = tl.load(signal + query_at + i, mask=row_in, other=0.0) * query_scale
                grad_query = (tl.sum(grad_cosine * key[None, :], axis=1) - query * along) * query_scale
                tl.store(grad_signal + query_at + i, grad_query, mask=row_in)
                grad_key = tl.sum(grad_cosine * query[:, None], axis=0)
                sum_keys += tl.where(k[:, None] == i, grad_key[None, :], 0.0)
    key_at = (kind * P + p[None, :]) * K + k[:, None]
    key_in = (k[:, None] < K) & real[None, :]
    unit_keys = tl.load(keys + key_at, mask=key_in, other=0.0) * key_scale[None, :]
    into_keys = (sum_keys - unit_keys * tl.sum(sum_keys * unit_keys, axis=0)[None, :]) * key_scale[None, :]
    share = shares + tl.program_id(0) * (3 * P * K + P)
    tl.store(share + key_at, into_keys, mask=key_in)
    if kind == 2:
        tl.store(share + 3 * P * K + p, sum_values, mask=real)
