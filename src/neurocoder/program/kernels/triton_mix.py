"""Triton kernels for the mix: from what attention reads to sigma, the scale of the residual and `e`.

A program instance takes one input. Layouts: attention w (3, N, r, P); values per component and input (N, r); the
projection and its gradient (N, ...) with a row stride: what the slots read, the composition network's input, the gate's
logit.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _softplus(x):
    """log(1 + exp(x)) without overflow."""
    return tl.maximum(x, 0.0) + tl.log(1.0 + tl.exp(-tl.abs(x)))


@triton.jit
def mix_forward_kernel(
    attention, before, readings, logits, stride, gate_bias, sigma, coefficients, scale, N,
    R: tl.constexpr, P: tl.constexpr, W: tl.constexpr, MIX: tl.constexpr, GATE: tl.constexpr, RP: tl.constexpr,
    PP: tl.constexpr,
):  # fmt: skip
    """For one input: sigma (N, r) from `before`; with GATE, `scale = gate sigma_r` (N, 1); with MIX,
    `e = sum_n sigma_n reading_n w^v_n` and a one, (N, W): the product with the gradient then includes the bias's."""
    n = tl.program_id(0).to(tl.int64)
    r, p = tl.arange(0, RP), tl.arange(0, PP)
    component = n * R + r
    steps = tl.where(r < R, _softplus(tl.load(before + component, mask=r < R, other=0.0)), 0.0)
    values = tl.cumsum(steps, axis=0, reverse=True)
    tl.store(sigma + component, values, mask=r < R)
    if GATE:
        gate = tl.sigmoid(tl.load(logits + n * stride) + tl.load(gate_bias))
        tl.store(scale + n, gate * tl.sum(tl.where(r == R - 1, values, 0.0), axis=0))
    if MIX:
        strength = values * tl.load(readings + component, mask=r < R, other=0.0)
        inside = (r[:, None] < R) & (p[None, :] < P)
        v = tl.load(attention + (N * R + component)[:, None] * P + p[None, :], mask=inside, other=0.0)
        tl.store(coefficients + n * W + p, tl.sum(strength[:, None] * v, axis=0), mask=p < P)
        rest = P + tl.arange(0, 4)
        tl.store(coefficients + n * W + rest, tl.where(rest == P, 1.0, 0.0), mask=rest < W)


@triton.jit
def mix_backward_kernel(
    grad_coefficients, coefficient_stride, grad_sigma, grad_scale, attention, before, readings, sigma, logits, stride,
    gate_bias, factors, grad_read, grad_logits, grad_signal, N,
    PARTS: tl.constexpr, J: tl.constexpr, SIGNAL: tl.constexpr, SIGNAL_STRIDE: tl.constexpr, R: tl.constexpr,
    P: tl.constexpr, W: tl.constexpr, MIX: tl.constexpr, GATE: tl.constexpr, RP: tl.constexpr, PP: tl.constexpr,
):  # fmt: skip
    """For one input: the factor of each component's attention gradient, (3, N, r), and the gradients of what was read.

    `grad w^u_n = factor^u_n a`, `grad w^v_n = factor^v_n grad e`, `grad w^s_n = factor^s_n M_S`. Without MIX, the first
    two are given complete, and so is `grad_sigma` (N, r). The gradients of e and of the scale come in PARTS shares; the
    sum for e overwrites the first share. The padding of the signal's gradient, rows (J, N, SIGNAL), is set to zero.
    """
    n = tl.program_id(0).to(tl.int64)
    if SIGNAL < SIGNAL_STRIDE:
        rest = SIGNAL + tl.arange(0, 4)
        for j in range(J):
            row = grad_signal + (j * N + n) * SIGNAL_STRIDE
            tl.store(row + rest, tl.zeros((4,), dtype=tl.float32), mask=rest < SIGNAL_STRIDE)
    r, p = tl.arange(0, RP), tl.arange(0, PP)
    component = n * R + r
    real = r < R
    x = tl.load(before + component, mask=real, other=0.0)
    values = tl.load(sigma + component, mask=real, other=0.0)
    if MIX:
        inside = real[:, None] & (p[None, :] < P)
        row = grad_coefficients + n * coefficient_stride + p
        grad = tl.load(row, mask=p < P, other=0.0)
        for part in tl.static_range(1, PARTS):
            grad += tl.load(row + part * N * coefficient_stride, mask=p < P, other=0.0)
        if PARTS > 1:
            tl.store(row, grad, mask=p < P)
        u = tl.load(attention + component[:, None] * P + p[None, :], mask=inside, other=0.0)
        v = tl.load(attention + (N * R + component)[:, None] * P + p[None, :], mask=inside, other=0.0)
        reading = tl.load(readings + component, mask=real, other=0.0)
        grad_strength = tl.sum(v * grad[None, :], axis=1)
        into_sigma = grad_strength * reading
        into_reading = grad_strength * values
        tl.store(factors + component, into_reading, mask=real)
        tl.store(factors + N * R + component, values * reading, mask=real)
        tl.store(grad_read + n * stride + p, tl.sum(into_reading[:, None] * u, axis=0), mask=p < P)
    else:
        into_sigma = tl.load(grad_sigma + component, mask=real, other=0.0)
    if GATE:
        gate = tl.sigmoid(tl.load(logits + n * stride) + tl.load(gate_bias))
        into_scale = tl.load(grad_scale + n)
        for part in tl.static_range(1, PARTS):
            into_scale += tl.load(grad_scale + part * N + n)
        last = tl.sum(tl.where(r == R - 1, values, 0.0), axis=0)
        tl.store(grad_logits + n * stride, into_scale * last * gate * (1 - gate))
        into_sigma += tl.where(r == R - 1, into_scale * gate, 0.0)
    tl.store(factors + 2 * N * R + component, tl.cumsum(into_sigma, axis=0) * tl.sigmoid(x), mask=real)
