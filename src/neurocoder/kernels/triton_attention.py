"""Triton kernels for the attention over slots and the mix of what they read.

Attention treats each row, a pair (input, head), on its own: one program takes a block of rows of one kind (u, v or s)
through all J steps with usage on chip. The mix takes one input. Reductions over inputs are per program and summed
afterwards in a fixed order, so that the same input gives the same bits.

Layouts: the composition signal (J, N, 3HK + 3HP), queries first; attention w (3, N, J, H, P); what each component has
of an input (N, r) with r = J * H. Keys are short, so that products with them are sums over a leading dimension of KP,
which stays within a thread: no matrix unit, no shared memory, full float32. `PP`, `KP`, `RP` are padded to powers of
two. Conditions on constants stand alone, outside those on values: triton resolves them when it compiles.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _unit(vectors):
    """Columns (KP, n) scaled to norm one (a zero column stays zero), and the norms."""
    norm = tl.maximum(tl.sqrt(tl.sum(vectors * vectors, axis=0)), 1e-12)
    return vectors / norm[None, :], norm


@triton.jit
def _unit_backward(grad, unit, norm):
    """Gradient of v from that of v / ||v||, columns (KP, n)."""
    return (grad - unit * tl.sum(grad * unit, axis=0)[None, :]) / norm[None, :]


@triton.jit
def _content(unit_queries, unit_keys, sharpness, p, P: tl.constexpr):
    """`softmax_i(beta cos(q, k_i))` (BR, PP)."""
    scaled = sharpness * tl.sum(unit_queries[:, :, None] * unit_keys[:, None, :], axis=0)
    scaled = tl.where(p[None, :] < P, scaled, float("-inf"))
    exponential = tl.exp(scaled - tl.max(scaled, axis=1)[:, None])
    return exponential / tl.sum(exponential, axis=1)[:, None]


@triton.jit
def _threshold(usage, p, P: tl.constexpr, LEAST: tl.constexpr):
    """The `LEAST`-th smallest usage of each row (BR,), ties counted one by one."""
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
    signal,
    keys,
    values,
    read,
    read_stride,
    attention,
    thresholds,
    before,
    shadows,
    sharpness,
    N,
    J: tl.constexpr,
    H: tl.constexpr,
    P: tl.constexpr,
    K: tl.constexpr,
    LEAST: tl.constexpr,
    MIX: tl.constexpr,
    PP: tl.constexpr,
    KP: tl.constexpr,
    BR: tl.constexpr,
):
    """Writes w, the l_I-th smallest usages (3, N, r), `sum_i w^s_i M_S(i)` as `before` (N, r) and, with MIX,
    `sum_i w^u_i a_i` as `shadows` (N, r)."""
    kind = tl.program_id(1)
    row = tl.program_id(0) * BR + tl.arange(0, BR)
    n, h = row // H, row % H
    p, k = tl.arange(0, PP), tl.arange(0, KP)
    row_in, real = row < N * H, p < P
    inside = row_in[:, None] & real[None, :]
    query_in = (k[:, None] < K) & row_in[None, :]
    key_in = (k[:, None] < K) & real[None, :]
    unit_keys, key_norm = _unit(tl.load(keys + (kind * P + p[None, :]) * K + k[:, None], mask=key_in, other=0.0))
    usage = tl.zeros((BR, PP), dtype=tl.float32)
    for j in range(J):
        start = signal + (j * N + n) * (3 * H * (K + P))
        query = tl.load(start[None, :] + ((kind * H + h) * K)[None, :] + k[:, None], mask=query_in, other=0.0)
        gate = tl.load(start[:, None] + (3 * H * K + (kind * H + h) * P)[:, None] + p[None, :], mask=inside, other=0.0)
        g = tl.sigmoid(gate)
        unit_queries = query / tl.maximum(tl.sqrt(tl.sum(query * query, axis=0)), 1e-12)[None, :]
        w = g * _content(unit_queries, unit_keys, sharpness, p, P)
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
                tl.store(shadows + component, tl.sum(w * a, axis=1), mask=row_in)


@triton.jit
def _softplus(x):
    """log(1 + exp(x)) without overflow."""
    return tl.maximum(x, 0.0) + tl.log(1.0 + tl.exp(-tl.abs(x)))


@triton.jit
def mix_forward_kernel(
    attention,
    before,
    shadows,
    logits,
    logit_stride,
    gate_bias,
    sigma,
    coefficients,
    scale,
    N,
    R: tl.constexpr,
    P: tl.constexpr,
    MIX: tl.constexpr,
    GATE: tl.constexpr,
    RP: tl.constexpr,
    PP: tl.constexpr,
):
    """For one input: sigma (N, r) from `before`; with GATE, `scale = gate sigma_r` (N, 1); with MIX,
    `e = sum_n sigma_n shadow_n w^v_n` (N, P)."""
    n = tl.program_id(0)
    r, p = tl.arange(0, RP), tl.arange(0, PP)
    component = n * R + r
    steps = tl.where(r < R, _softplus(tl.load(before + component, mask=r < R, other=0.0)), 0.0)
    values = tl.cumsum(steps, axis=0, reverse=True)
    tl.store(sigma + component, values, mask=r < R)
    if GATE:
        gate = tl.sigmoid(tl.load(logits + n * logit_stride) + tl.load(gate_bias))
        tl.store(scale + n, gate * tl.sum(tl.where(r == R - 1, values, 0.0), axis=0))
    if MIX:
        strength = values * tl.load(shadows + component, mask=r < R, other=0.0)
        inside = (r[:, None] < R) & (p[None, :] < P)
        v = tl.load(attention + (N * R + component)[:, None] * P + p[None, :], mask=inside, other=0.0)
        tl.store(coefficients + n * P + p, tl.sum(strength[:, None] * v, axis=0), mask=p < P)


@triton.jit
def mix_backward_kernel(
    grad_coefficients,
    grad_sigma,
    grad_scale,
    attention,
    before,
    shadows,
    sigma,
    logits,
    logit_stride,
    gate_bias,
    factors,
    grad_read,
    grad_logits,
    grad_stride,
    N,
    R: tl.constexpr,
    P: tl.constexpr,
    MIX: tl.constexpr,
    GATE: tl.constexpr,
    RP: tl.constexpr,
    PP: tl.constexpr,
):
    """For one input: the factor of each component's attention gradient, (3, N, r), and the gradients of what was read.

    `grad w^u_n = factor^u_n a`, `grad w^v_n = factor^v_n grad e`, `grad w^s_n = factor^s_n M_S`; without MIX the first
    two are given whole, and so is `grad_sigma` (N, r).
    """
    n = tl.program_id(0)
    r, p = tl.arange(0, RP), tl.arange(0, PP)
    component = n * R + r
    real = r < R
    x = tl.load(before + component, mask=real, other=0.0)
    values = tl.load(sigma + component, mask=real, other=0.0)
    if MIX:
        inside = real[:, None] & (p[None, :] < P)
        grad = tl.load(grad_coefficients + n * P + p, mask=p < P, other=0.0)
        u = tl.load(attention + component[:, None] * P + p[None, :], mask=inside, other=0.0)
        v = tl.load(attention + (N * R + component)[:, None] * P + p[None, :], mask=inside, other=0.0)
        shadow = tl.load(shadows + component, mask=real, other=0.0)
        grad_strength = tl.sum(v * grad[None, :], axis=1)
        into_sigma = grad_strength * shadow
        into_shadow = grad_strength * values
        tl.store(factors + component, into_shadow, mask=real)
        tl.store(factors + N * R + component, values * shadow, mask=real)
        tl.store(grad_read + n * grad_stride + p, tl.sum(into_shadow[:, None] * u, axis=0), mask=p < P)
    else:
        into_sigma = tl.load(grad_sigma + component, mask=real, other=0.0)
    if GATE:
        gate = tl.sigmoid(tl.load(logits + n * logit_stride) + tl.load(gate_bias))
        into_scale = tl.load(grad_scale + n)
        last = tl.sum(tl.where(r == R - 1, values, 0.0), axis=0)
        tl.store(grad_logits + n * grad_stride, into_scale * last * gate * (1 - gate))
        into_sigma += tl.where(r == R - 1, into_scale * gate, 0.0)
    tl.store(factors + 2 * N * R + component, tl.cumsum(into_sigma, axis=0) * tl.sigmoid(x), mask=real)


@triton.jit
def attention_backward_kernel(
    signal,
    keys,
    values,
    grad_u,
    u_stride,
    grad_v,
    attention,
    thresholds,
    factors,
    grad_signal,
    partial,
    sharpness,
    N,
    J: tl.constexpr,
    H: tl.constexpr,
    P: tl.constexpr,
    K: tl.constexpr,
    MIX: tl.constexpr,
    PP: tl.constexpr,
    KP: tl.constexpr,
    BR: tl.constexpr,
):
    """Writes the gradient of the composition signal, and each program's share of those of keys and M_S, (3PK + P).

    With MIX, `grad_u` (a, with a row stride) and `grad_v` (N, P) are multiplied by each component's factor; without,
    they are whole, (N, r, P).
    """
    kind = tl.program_id(1)
    p, k = tl.arange(0, PP), tl.arange(0, KP)
    real = p < P
    key_in = (k[:, None] < K) & real[None, :]
    unit_keys, key_norm = _unit(tl.load(keys + (kind * P + p[None, :]) * K + k[:, None], mask=key_in, other=0.0))
    slots = tl.load(values + p, mask=real, other=0.0)
    sum_keys = tl.zeros((KP, BR, PP), dtype=tl.float32)
    sum_values = tl.zeros((BR, PP), dtype=tl.float32)
    for block in range(tl.program_id(0), tl.cdiv(N * H, BR), tl.num_programs(0)):
        row = block * BR + tl.arange(0, BR)
        n, h = row // H, row % H
        row_in = row < N * H
        inside = row_in[:, None] & real[None, :]
        query_in = (k[:, None] < K) & row_in[None, :]
        grad_usage = tl.zeros((BR, PP), dtype=tl.float32)
        for back in range(J):
            j = J - 1 - back
            component = (n * J + j) * H + h
            line = (j * N + n) * (3 * H * (K + P))
            query_at = (line + (kind * H + h) * K)[None, :] + k[:, None]
            gate_at = (line + 3 * H * K + (kind * H + h) * P)[:, None] + p[None, :]
            query = tl.load(signal + query_at, mask=query_in, other=0.0)
            g = tl.sigmoid(tl.load(signal + gate_at, mask=inside, other=0.0))
            w = tl.load(attention + (kind * N * J * H + component)[:, None] * P + p[None, :], mask=inside, other=0.0)
            factor = tl.load(factors + kind * N * J * H + component, mask=row_in, other=0.0)
            if kind == 2:
                grad = factor[:, None] * slots[None, :]
                sum_values += factor[:, None] * w
            elif MIX:
                if kind == 1:
                    grad = tl.load(grad_v + n[:, None] * P + p[None, :], mask=inside, other=0.0)
                else:
                    grad = tl.load(grad_u + n[:, None] * u_stride + p[None, :], mask=inside, other=0.0)
                grad = grad * factor[:, None]
            else:
                if kind == 1:
                    grad = tl.load(grad_v + component[:, None] * P + p[None, :], mask=inside, other=0.0)
                else:
                    grad = tl.load(grad_u + component[:, None] * P + p[None, :], mask=inside, other=0.0)
            unit_queries, norm = _unit(query)
            content = _content(unit_queries, unit_keys, sharpness, p, P)
            difference = content
            if j == 0:
                grad += grad_usage
            else:
                usage = tl.zeros((BR, PP), dtype=tl.float32)
                for earlier in range(j):
                    offset = (kind * N * J * H + (n * J + earlier) * H + h)[:, None] * P + p[None, :]
                    usage = tl.maximum(usage, tl.load(attention + offset, mask=inside, other=0.0))
                # m_{j+1} = max(m_j, w_j): to the larger one, a tie split evenly
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
            grad_unit = tl.sum(grad_cosine[None, :, :] * unit_keys[:, None, :], axis=2)
            tl.store(grad_signal + query_at, _unit_backward(grad_unit, unit_queries, norm), mask=query_in)
            sum_keys += unit_queries[:, :, None] * grad_cosine[None, :, :]
    into_keys = _unit_backward(tl.sum(sum_keys, axis=1), unit_keys, key_norm)
    share = partial + tl.program_id(0) * (3 * P * K + P)
    tl.store(share + (kind * P + p[None, :]) * K + k[:, None], into_keys, mask=key_in)
    if kind == 2:
        tl.store(share + 3 * P * K + p, tl.sum(sum_values, axis=0), mask=real)
