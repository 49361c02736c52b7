"""Triton kernels for the composition network: all J steps of an LSTM cell whose input stays the same.

One program instance takes a block of inputs and keeps hidden state, cell and weights on chip. Layout: steps first,
(J, N, ...). Each state ends in a one, so products with states include the bias and its gradient.
Gates are in the order input, forget, cell, output. `HP` is the hidden size padded to a power of two of at least 16.
Recurrent products use the matrix units in three passes, which keeps float32's accuracy.

A single step is so little work that its kernels also multiply by the composition signal's weight (S, W), whose last
column is the bias, in blocks of BS columns. For several steps that is one large product of its own.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def tanh(x):
    """tanh without overflow."""
    return 2.0 * tl.sigmoid(2.0 * x) - 1.0


@triton.jit
def _load_gates(pointers, step, inside):
    """Four tiles, one for each gate, `step` apart."""
    i = tl.load(pointers, mask=inside, other=0.0)
    f = tl.load(pointers + step, mask=inside, other=0.0)
    g = tl.load(pointers + 2 * step, mask=inside, other=0.0)
    o = tl.load(pointers + 3 * step, mask=inside, other=0.0)
    return i, f, g, o


@triton.jit
def _store_gates(pointers, step, i, f, g, o, inside):
    """The inverse of `_load_gates`."""
    tl.store(pointers, i, mask=inside)
    tl.store(pointers + step, f, mask=inside)
    tl.store(pointers + 2 * step, g, mask=inside)
    tl.store(pointers + 3 * step, o, mask=inside)


@triton.jit
def _load_weights(recurrent, out, inner, H: tl.constexpr):
    """The gates' recurrent weights, at the rows `inner` and columns `out` of the two index tiles."""
    return _load_gates(recurrent + out * H + inner, H * H, (out < H) & (inner < H))


@triton.jit
def lstm_forward_kernel(
    projected, stride, bias, recurrent, signal, states, cells, gates, composition, N,
    J: tl.constexpr, H: tl.constexpr, W: tl.constexpr, S: tl.constexpr, HP: tl.constexpr, BN: tl.constexpr,
    BS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Writes states and a one (J, N, W), cells (J, N, H) and the gates after their non-linearities (J, N, 4, H).

    For a single step also the composition signal (N, S), one block of columns per program instance of the second axis.
    """
    n = (tl.program_id(0) * BN + tl.arange(0, BN)).to(tl.int64)
    h = tl.arange(0, HP)
    inside = (n[:, None] < N) & (h[None, :] < H)
    read_i, read_f, read_g, read_o = _load_gates(projected + n[:, None] * stride + h[None, :], H, inside)
    bias_i, bias_f, bias_g, bias_o = _load_gates(bias + h, H, h < H)
    input_i, input_f = read_i + bias_i[None, :], read_f + bias_f[None, :]
    input_g, input_o = read_g + bias_g[None, :], read_o + bias_o[None, :]
    if J > 1:
        weight_i, weight_f, weight_g, weight_o = _load_weights(recurrent, h[None, :], h[:, None], H)
    cell = tl.zeros((BN, HP), dtype=tl.float32)
    before_i, before_f, before_g, before_o = input_i, input_f, input_g, input_o
    for j in range(J):
        i, f, g, o = tl.sigmoid(before_i), tl.sigmoid(before_f), tanh(before_g), tl.sigmoid(before_o)
        cell = f * cell + i * g
        state = tl.where(inside, o * tanh(cell), 0.0)
        if tl.program_id(1) == 0:
            row = (j * N + n[:, None]) * H + h[None, :]
            state_row = (j * N + n[:, None]) * W
            tl.store(states + state_row + h[None, :], state, mask=inside)
            rest = H + tl.arange(0, 4)[None, :]
            one = tl.zeros((BN, 4), dtype=tl.float32) + tl.where(rest == H, 1.0, 0.0)
            tl.store(states + state_row + rest, one, mask=(n[:, None] < N) & (rest < W))
            tl.store(cells + row, cell, mask=inside)
            gate_row = (j * N + n[:, None]) * 4 * H + h[None, :]
            _store_gates(gates + gate_row, H, i, f, g, o, inside)
        if J == 1:
            s = tl.program_id(1) * BS + tl.arange(0, BS)
            weight = tl.load(signal + s[None, :] * W + h[:, None], mask=(s[None, :] < S) & (h[:, None] < H), other=0.0)
            total = tl.dot(state, weight, input_precision=PRECISION)
            total += tl.load(signal + s * W + H, mask=s < S, other=0.0)[None, :]
            tl.store(composition + n[:, None] * S + s[None, :], total, mask=(n[:, None] < N) & (s[None, :] < S))
        else:
            before_i = tl.dot(state, weight_i, acc=input_i, input_precision="tf32x3")
            before_f = tl.dot(state, weight_f, acc=input_f, input_precision="tf32x3")
            before_g = tl.dot(state, weight_g, acc=input_g, input_precision="tf32x3")
            before_o = tl.dot(state, weight_o, acc=input_o, input_precision="tf32x3")


@triton.jit
def lstm_backward_kernel(
    grad_states, recurrent, signal, states, cells, gates, grad_projected, stride, shares, N,
    J: tl.constexpr, H: tl.constexpr, W: tl.constexpr, S: tl.constexpr, GATE: tl.constexpr, PAD: tl.constexpr,
    HP: tl.constexpr, BN: tl.constexpr, BS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Takes the gradient of the states (J, N, W), or for a single step that of the composition signal (N, S).

    Writes the gradient of the input signal (N, 4, H), with a row stride, and each program instance's share of the sums
    over inputs, one row of 4HH + 4H + 1: the gradients of the recurrent weight (4, H, H) (not for a single step), of
    the input's bias (4, H) and of the gate's bias.

    With GATE, the column after the input signal holds the gradient of the gate's logit. PAD columns at the end of the
    projection are set to zero.
    """
    h, pad = tl.arange(0, HP), tl.arange(0, 8)
    if J > 1:
        weight_i, weight_f, weight_g, weight_o = _load_weights(recurrent, h[:, None], h[None, :], H)
    matrix, vector = tl.zeros((HP, HP), dtype=tl.float32), tl.zeros((HP,), dtype=tl.float32)
    into_weight_i, into_weight_f, into_weight_g, into_weight_o = matrix, matrix, matrix, matrix
    into_bias_i, into_bias_f, into_bias_g, into_bias_o = vector, vector, vector, vector
    into_gate = tl.zeros((BN,), dtype=tl.float32)
    for block in range(tl.program_id(0), tl.cdiv(N, BN), tl.num_programs(0)):
        n = (block * BN + tl.arange(0, BN)).to(tl.int64)
        inside = (n[:, None] < N) & (h[None, :] < H)
        zero = tl.zeros((BN, HP), dtype=tl.float32)
        grad_hidden, grad_cell = zero, zero
        sum_i, sum_f, sum_g, sum_o = zero, zero, zero, zero
        for back in range(J):
            j = J - 1 - back
            row = (j * N + n[:, None]) * H + h[None, :]
            gate_row = (j * N + n[:, None]) * 4 * H + h[None, :]
            i, f, g, o = _load_gates(gates + gate_row, H, inside)
            squashed = tanh(tl.load(cells + row, mask=inside, other=0.0))
            before = zero
            if j > 0:
                before = tl.load(cells + row - N * H, mask=inside, other=0.0)
            state_row = (j * N + n[:, None]) * W + h[None, :]
            if J == 1:
                for start in range(0, S, BS):
                    s = start + tl.arange(0, BS)
                    grad_row = grad_states + n[:, None] * S + s[None, :]
                    grad = tl.load(grad_row, mask=(n[:, None] < N) & (s[None, :] < S), other=0.0)
                    weight_row = signal + s[:, None] * W + h[None, :]
                    weight = tl.load(weight_row, mask=(s[:, None] < S) & (h[None, :] < H), other=0.0)
                    grad_hidden = tl.dot(grad, weight, acc=grad_hidden, input_precision=PRECISION)
            else:
                grad_hidden += tl.load(grad_states + state_row, mask=inside, other=0.0)
            grad_cell += grad_hidden * o * (1 - squashed * squashed)
            into_i = grad_cell * g * i * (1 - i)
            into_f = grad_cell * before * f * (1 - f)
            into_g = grad_cell * i * (1 - g * g)
            into_o = grad_hidden * squashed * o * (1 - o)
            sum_i += into_i
            sum_f += into_f
            sum_g += into_g
            sum_o += into_o
            if J > 1:
                grad_cell = grad_cell * f
                grad_hidden = tl.dot(into_i, weight_i, input_precision="tf32x3")
                grad_hidden = tl.dot(into_f, weight_f, acc=grad_hidden, input_precision="tf32x3")
                grad_hidden = tl.dot(into_g, weight_g, acc=grad_hidden, input_precision="tf32x3")
                grad_hidden = tl.dot(into_o, weight_o, acc=grad_hidden, input_precision="tf32x3")
                if j > 0:
                    state = tl.load(states + state_row - N * W, mask=inside, other=0.0)
                    into_weight_i = tl.dot(tl.trans(into_i), state, acc=into_weight_i, input_precision="tf32x3")
                    into_weight_f = tl.dot(tl.trans(into_f), state, acc=into_weight_f, input_precision="tf32x3")
                    into_weight_g = tl.dot(tl.trans(into_g), state, acc=into_weight_g, input_precision="tf32x3")
                    into_weight_o = tl.dot(tl.trans(into_o), state, acc=into_weight_o, input_precision="tf32x3")
        total = n[:, None] * stride + h[None, :]
        _store_gates(grad_projected + total, H, sum_i, sum_f, sum_g, sum_o, inside)
        into_bias_i += tl.sum(sum_i, axis=0)
        into_bias_f += tl.sum(sum_f, axis=0)
        into_bias_g += tl.sum(sum_g, axis=0)
        into_bias_o += tl.sum(sum_o, axis=0)
        end = grad_projected + n * stride + 4 * H
        if GATE:
            into_gate += tl.load(end, mask=n < N, other=0.0)
        if PAD > 0:
            pads = end[:, None] + GATE + pad[None, :]
            tl.store(pads, tl.zeros((BN, 8), dtype=tl.float32), mask=(n[:, None] < N) & (pad[None, :] < PAD))
    square: tl.constexpr = 4 * H * H if J > 1 else 0
    share = shares + tl.program_id(0) * (square + 4 * H + 1)
    if J > 1:
        at, within = share + h[:, None] * H + h[None, :], (h[:, None] < H) & (h[None, :] < H)
        _store_gates(at, H * H, into_weight_i, into_weight_f, into_weight_g, into_weight_o, within)
    _store_gates(share + square + h, H, into_bias_i, into_bias_f, into_bias_g, into_bias_o, h < H)
    tl.store(share + square + 4 * H, tl.sum(into_gate, axis=0))
