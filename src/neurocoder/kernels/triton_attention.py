"""Triton kernels for the attention over slots and the mix of what they read.

Attention treats each row, a pair (input, head), on its own: one program takes a block of rows of one kind (u, v or s)
through all J steps with usage on chip. The mix takes one input. Reductions over inputs are per program and summed
afterwards in a fixed order, so that the same input gives the same bits.

Layouts: gates (J, N, 3, H, P) and queries (J, N, 3, H, K) as the read-out makes them; attention w (3, N, J, H, P); what
each component has of an input (N, r) with r = J * H. `PP` and `KP` are P and K padded to powers of two of at least 16.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _unit(vectors):
    """Rows scaled to norm one (a zero row stays zero), and the norms."""
    norm = tl.maximum(tl.sqrt(tl.sum(vectors * vectors, axis=1)), 1e-12)
    return vectors / norm[:, None], norm


@triton.jit
def _unit_backward(grad, unit, norm):
    """Gradient of v from that of v / ||v||."""
    return (grad - unit * tl.sum(grad * unit, axis=1)[:, None]) / norm[:, None]


@triton.jit
def _content(queries, unit_keys, sharpness, p, P: tl.constexpr):
    """`softmax_i(beta cos(q, k_i))` (BR, PP), the unit queries and their norms."""
    unit, norm = _unit(queries)
    scaled = sharpness * tl.dot(unit, tl.trans(unit_keys), input_precision="ieee")
    scaled = tl.where(p[None, :] < P, scaled, float("-inf"))
    exponential = tl.exp(scaled - tl.max(scaled, axis=1)[:, None])
    return exponential / tl.sum(exponential, axis=1)[:, None], unit, norm


@triton.jit
def _chosen(usage, p, P: tl.constexpr, LEAST: tl.constexpr):
    """Where a slot is among the `LEAST` least used ones, ties included (BR, PP)."""
    real = p[None, :] < P
    if LEAST == P:
        return real & (usage == usage)
    values = tl.where(real, usage, float("inf"))
    threshold = tl.min(values, axis=1)
    count = tl.sum((values == threshold[:, None]).to(tl.int32), axis=1)
    for _ in range(LEAST - 1):
        larger = tl.min(tl.where(values > threshold[:, None], values, float("inf")), axis=1)
        more = count < LEAST
        count += tl.where(more, tl.sum((values == larger[:, None]).to(tl.int32), axis=1), 0)
        threshold = tl.where(more, larger, threshold)
    return values <= threshold[:, None]


@triton.jit
def attention_forward_kernel(
    gates,
    queries,
    keys,
    values,
    read,
    attention,
    before,
    projected,
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
    """Writes w, `sum_i w^s_i M_S(i)` as `before` (N, r) and, with MIX, `sum_i w^u_i a_i` as `projected` (N, r)."""
    kind = tl.program_id(1)
    row = tl.program_id(0) * BR + tl.arange(0, BR)
    n, h = row // H, row % H
    p, k = tl.arange(0, PP), tl.arange(0, KP)
    row_in, real = row < N * H, p < P
    inside = row_in[:, None] & real[None, :]
    slot_keys = tl.load(
        keys + (kind * P + p[:, None]) * K + k[None, :], mask=real[:, None] & (k[None, :] < K), other=0.0
    )
    unit_keys, _ = _unit(slot_keys)
    usage = tl.zeros((BR, PP), dtype=tl.float32)
    for j in range(J):
        line = ((j * N + n) * 3 + kind) * H + h
        q = tl.load(queries + line[:, None] * K + k[None, :], mask=row_in[:, None] & (k[None, :] < K), other=0.0)
        g = tl.sigmoid(tl.load(gates + line[:, None] * P + p[None, :], mask=inside, other=0.0))
        content, _, _ = _content(q, unit_keys, sharpness, p, P)
        w = g * content
        if j > 0:
            idle = tl.where(_chosen(usage, p, P, LEAST), tl.max(usage, axis=1)[:, None] - usage, 0.0)
            w += (1 - g) * idle
        w = tl.where(inside, w, 0.0)
        usage = tl.maximum(usage, w)
        component = (n * J + j) * H + h
        tl.store(attention + (kind * N * J * H + component)[:, None] * P + p[None, :], w, mask=inside)
        if kind == 2:
            slots = tl.load(values + p, mask=real, other=0.0)
            tl.store(before + component, tl.sum(w * slots[None, :], axis=1), mask=row_in)
        if MIX and kind == 0:
            a = tl.load(read + n[:, None] * P + p[None, :], mask=inside, other=0.0)
            tl.store(projected + component, tl.sum(w * a, axis=1), mask=row_in)


@triton.jit
def _softplus(x):
    """log(1 + exp(x)) without overflow."""
    return tl.maximum(x, 0.0) + tl.log(1.0 + tl.exp(-tl.abs(x)))


@triton.jit
def mix_forward_kernel(
    attention,
    before,
    projected,
    sigma,
    coefficients,
    N,
    R: tl.constexpr,
    P: tl.constexpr,
    MIX: tl.constexpr,
    RP: tl.constexpr,
    PP: tl.constexpr,
):
    """For one input: sigma (N, r) from `before` and, with MIX, `e = sum_n sigma_n projected_n w^v_n` (N, P)."""
    n = tl.program_id(0)
    r, p = tl.arange(0, RP), tl.arange(0, PP)
    component = n * R + r
    steps = tl.where(r < R, _softplus(tl.load(before + component, mask=r < R, other=0.0)), 0.0)
    values = tl.cumsum(steps, axis=0, reverse=True)
    tl.store(sigma + component, values, mask=r < R)
    if MIX:
        strength = values * tl.load(projected + component, mask=r < R, other=0.0)
        inside = (r[:, None] < R) & (p[None, :] < P)
        v = tl.load(attention + (N * R + component)[:, None] * P + p[None, :], mask=inside, other=0.0)
        tl.store(coefficients + n * P + p, tl.sum(strength[:, None] * v, axis=0), mask=p < P)


@triton.jit
def mix_backward_kernel(
    grad_coefficients,
    grad_sigma,
    attention,
    before,
    projected,
    sigma,
    factors,
    grad_read,
    N,
    R: tl.constexpr,
    P: tl.constexpr,
    MIX: tl.constexpr,
    RP: tl.constexpr,
    PP: tl.constexpr,
):
    """For one input: the factor of each component's attention gradient, (3, N, r), and the gradient of `read` (N, P).

    `grad w^u_n = factor^u_n a`, `grad w^v_n = factor^v_n grad e`, `grad w^s_n = factor^s_n M_S`. `grad_sigma` is that
    of sigma_r (N, 1) with MIX, of all sigma (N, r) without.
    """
    n = tl.program_id(0)
    r, p = tl.arange(0, RP), tl.arange(0, PP)
    component = n * R + r
    real = r < R
    x = tl.load(before + component, mask=real, other=0.0)
    if MIX:
        inside = real[:, None] & (p[None, :] < P)
        grad = tl.load(grad_coefficients + n * P + p, mask=p < P, other=0.0)
        u = tl.load(attention + component[:, None] * P + p[None, :], mask=inside, other=0.0)
        v = tl.load(attention + (N * R + component)[:, None] * P + p[None, :], mask=inside, other=0.0)
        values = tl.load(sigma + component, mask=real, other=0.0)
        shadow = tl.load(projected + component, mask=real, other=0.0)
        grad_strength = tl.sum(v * grad[None, :], axis=1)
        into_sigma = grad_strength * shadow + tl.where(r == R - 1, tl.load(grad_sigma + n), 0.0)
        into_projected = grad_strength * values
        tl.store(factors + component, into_projected, mask=real)
        tl.store(factors + N * R + component, values * shadow, mask=real)
        tl.store(grad_read + n * P + p, tl.sum(into_projected[:, None] * u, axis=0), mask=p < P)
    else:
        into_sigma = tl.load(grad_sigma + component, mask=real, other=0.0)
    into_steps = tl.cumsum(into_sigma, axis=0)
    tl.store(factors + 2 * N * R + component, into_steps * tl.sigmoid(x), mask=real)


@triton.jit
def attention_backward_kernel(
    gates,
    queries,
    keys,
    values,
    read,
    grad_coefficients,
    grad_u,
    grad_v,
    attention,
    factors,
    grad_gates,
    grad_queries,
    partial_keys,
    partial_values,
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
    """Writes the gradients of gates and queries, and each program's share of those of keys and M_S."""
    kind = tl.program_id(1)
    p, k = tl.arange(0, PP), tl.arange(0, KP)
    real = p < P
    key_in = real[:, None] & (k[None, :] < K)
    slot_keys = tl.load(keys + (kind * P + p[:, None]) * K + k[None, :], mask=key_in, other=0.0)
    unit_keys, key_norm = _unit(slot_keys)
    slots = tl.load(values + p, mask=real, other=0.0)
    sum_keys = tl.zeros((PP, KP), dtype=tl.float32)
    sum_values = tl.zeros((PP,), dtype=tl.float32)
    for block in range(tl.program_id(0), tl.cdiv(N * H, BR), tl.num_programs(0)):
        row = block * BR + tl.arange(0, BR)
        n, h = row // H, row % H
        row_in = row < N * H
        inside = row_in[:, None] & real[None, :]
        grad_usage = tl.zeros((BR, PP), dtype=tl.float32)
        for back in range(J):
            j = J - 1 - back
            component = (n * J + j) * H + h
            place = (kind * N * J * H + component)[:, None] * P + p[None, :]
            line = ((j * N + n) * 3 + kind) * H + h
            q = tl.load(queries + line[:, None] * K + k[None, :], mask=row_in[:, None] & (k[None, :] < K), other=0.0)
            g = tl.sigmoid(tl.load(gates + line[:, None] * P + p[None, :], mask=inside, other=0.0))
            w = tl.load(attention + place, mask=inside, other=0.0)
            factor = tl.load(factors + kind * N * J * H + component, mask=row_in, other=0.0)
            if kind == 2:
                grad = factor[:, None] * slots[None, :]
                sum_values += tl.sum(factor[:, None] * w, axis=0)
            elif MIX:
                vector = grad_coefficients if kind == 1 else read
                grad = factor[:, None] * tl.load(vector + n[:, None] * P + p[None, :], mask=inside, other=0.0)
            else:
                direct = grad_v if kind == 1 else grad_u
                grad = tl.load(direct + component[:, None] * P + p[None, :], mask=inside, other=0.0)
            content, unit, norm = _content(q, unit_keys, sharpness, p, P)
            difference = content
            if j == 0:
                grad += grad_usage
            else:
                usage = tl.zeros((BR, PP), dtype=tl.float32)
                for earlier in range(j):
                    offset = ((n * J + earlier) * H + h + kind * N * J * H)[:, None] * P + p[None, :]
                    usage = tl.maximum(usage, tl.load(attention + offset, mask=inside, other=0.0))
                # m_{j+1} = max(m_j, w_j): to the larger one, a tie split evenly
                later = grad_usage * tl.where(w > usage, 1.0, tl.where(w == usage, 0.5, 0.0))
                grad += later
                grad_usage -= later
                largest = tl.max(usage, axis=1)[:, None]
                chosen = _chosen(usage, p, P, LEAST)
                difference -= tl.where(chosen, largest - usage, 0.0)
                grad_idle = tl.where(chosen & inside, grad * (1 - g), 0.0)
                top = (usage == largest) & real[None, :]
                ties = tl.sum(top.to(tl.float32), axis=1)
                spread = tl.sum(grad_idle, axis=1) / ties
                grad_usage += tl.where(top, spread[:, None], 0.0) - grad_idle
            tl.store(grad_gates + line[:, None] * P + p[None, :], grad * difference * g * (1 - g), mask=inside)
            weighted = tl.where(inside, grad * g * content, 0.0)
            grad_cosine = sharpness * (weighted - content * tl.sum(weighted, axis=1)[:, None])
            grad_unit = tl.dot(grad_cosine, unit_keys, input_precision="ieee")
            into_query = _unit_backward(grad_unit, unit, norm)
            query_in = row_in[:, None] & (k[None, :] < K)
            tl.store(grad_queries + line[:, None] * K + k[None, :], into_query, mask=query_in)
            sum_keys += tl.dot(tl.trans(grad_cosine), unit, input_precision="ieee")
    into_keys = _unit_backward(sum_keys, unit_keys, key_norm)
    share = tl.program_id(0) * 3 + kind
    tl.store(partial_keys + (share * P + p[:, None]) * K + k[None, :], into_keys, mask=key_in)
    if kind == 2:
        tl.store(partial_values + tl.program_id(0) * P + p, sum_values, mask=real)
