"""Triton kernels for the composition network: all J steps of an LSTM cell whose input signal stays the same.

One program takes a block of inputs and keeps hidden state, cell and weights on chip. Layout: steps first, (J, N, ...).
Gates are in the order input, forget, cell, output. `HP` is the hidden size padded to a power of two of at least 16.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def tanh(x):
    """tanh without overflow."""
    return 2.0 * tl.sigmoid(2.0 * x) - 1.0


@triton.jit
def _gate(signal, recurrent, n, h, k, gate: tl.constexpr, state, first: tl.constexpr, N, H: tl.constexpr):
    """`x W + h W_hh` of one gate (BN, HP)."""
    inside = (n[:, None] < N) & (h[None, :] < H)
    value = tl.load(signal + n[:, None] * 4 * H + gate * H + h[None, :], mask=inside, other=0.0)
    if not first:
        weight = tl.load(
            recurrent + (gate * H + h[None, :]) * H + k[:, None], mask=(h[None, :] < H) & (k[:, None] < H), other=0.0
        )
        value += tl.dot(state, weight, input_precision="ieee")
    return value


@triton.jit
def lstm_forward_kernel(
    signal, recurrent, states, cells, gates, N, J: tl.constexpr, H: tl.constexpr, HP: tl.constexpr, BN: tl.constexpr
):
    """Writes states (J, N, H), cells (J, N, H) and the gates after their non-linearities (J, N, 4, H)."""
    n = tl.program_id(0) * BN + tl.arange(0, BN)
    h = tl.arange(0, HP)
    k = tl.arange(0, HP)
    inside = (n[:, None] < N) & (h[None, :] < H)
    state = tl.zeros((BN, HP), dtype=tl.float32)
    cell = tl.zeros((BN, HP), dtype=tl.float32)
    for j in tl.static_range(J):
        i = tl.sigmoid(_gate(signal, recurrent, n, h, k, 0, state, j == 0, N, H))
        f = tl.sigmoid(_gate(signal, recurrent, n, h, k, 1, state, j == 0, N, H))
        g = tanh(_gate(signal, recurrent, n, h, k, 2, state, j == 0, N, H))
        o = tl.sigmoid(_gate(signal, recurrent, n, h, k, 3, state, j == 0, N, H))
        cell = f * cell + i * g
        state = tl.where(inside, o * tanh(cell), 0.0)
        row = (j * N + n[:, None]) * H + h[None, :]
        tl.store(states + row, state, mask=inside)
        tl.store(cells + row, cell, mask=inside)
        gate_row = (j * N + n[:, None]) * 4 * H + h[None, :]
        tl.store(gates + gate_row, i, mask=inside)
        tl.store(gates + gate_row + H, f, mask=inside)
        tl.store(gates + gate_row + 2 * H, g, mask=inside)
        tl.store(gates + gate_row + 3 * H, o, mask=inside)


@triton.jit
def _into_hidden(grad, recurrent, h, k, gate, H: tl.constexpr):
    """What one gate's gradient (BN, HP) sends back to the hidden state."""
    weight = tl.load(
        recurrent + (gate * H + k[:, None]) * H + h[None, :], mask=(k[:, None] < H) & (h[None, :] < H), other=0.0
    )
    return tl.dot(grad, weight, input_precision="ieee")


@triton.jit
def lstm_backward_kernel(
    grad_states,
    recurrent,
    cells,
    gates,
    grad_gates,
    grad_signal,
    N,
    J: tl.constexpr,
    H: tl.constexpr,
    HP: tl.constexpr,
    BN: tl.constexpr,
):
    """Writes the gradients before the non-linearities (J, N, 4, H), and their sum over the steps (N, 4, H)."""
    n = tl.program_id(0) * BN + tl.arange(0, BN)
    h = tl.arange(0, HP)
    k = tl.arange(0, HP)
    inside = (n[:, None] < N) & (h[None, :] < H)
    zero = tl.zeros((BN, HP), dtype=tl.float32)
    grad_hidden, grad_cell = zero, zero
    sum_i, sum_f, sum_g, sum_o = zero, zero, zero, zero
    for back in tl.static_range(J):
        j = J - 1 - back
        row = (j * N + n[:, None]) * H + h[None, :]
        gate_row = (j * N + n[:, None]) * 4 * H + h[None, :]
        i = tl.load(gates + gate_row, mask=inside, other=0.0)
        f = tl.load(gates + gate_row + H, mask=inside, other=0.0)
        g = tl.load(gates + gate_row + 2 * H, mask=inside, other=0.0)
        o = tl.load(gates + gate_row + 3 * H, mask=inside, other=0.0)
        squashed = tanh(tl.load(cells + row, mask=inside, other=0.0))
        grad_hidden += tl.load(grad_states + row, mask=inside, other=0.0)
        grad_cell += grad_hidden * o * (1 - squashed * squashed)
        before = zero
        if j > 0:
            before = tl.load(cells + row - N * H, mask=inside, other=0.0)
        into_i = grad_cell * g * i * (1 - i)
        into_f = grad_cell * before * f * (1 - f)
        into_g = grad_cell * i * (1 - g * g)
        into_o = grad_hidden * squashed * o * (1 - o)
        tl.store(grad_gates + gate_row, into_i, mask=inside)
        tl.store(grad_gates + gate_row + H, into_f, mask=inside)
        tl.store(grad_gates + gate_row + 2 * H, into_g, mask=inside)
        tl.store(grad_gates + gate_row + 3 * H, into_o, mask=inside)
        sum_i += into_i
        sum_f += into_f
        sum_g += into_g
        sum_o += into_o
        if j > 0:
            grad_cell = grad_cell * f
            grad_hidden = _into_hidden(into_i, recurrent, h, k, 0, H)
            grad_hidden += _into_hidden(into_f, recurrent, h, k, 1, H)
            grad_hidden += _into_hidden(into_g, recurrent, h, k, 2, H)
            grad_hidden += _into_hidden(into_o, recurrent, h, k, 3, H)
    total = n[:, None] * 4 * H + h[None, :]
    tl.store(grad_signal + total, sum_i, mask=inside)
    tl.store(grad_signal + total + H, sum_f, mask=inside)
    tl.store(grad_signal + total + 2 * H, sum_g, mask=inside)
    tl.store(grad_signal + total + 3 * H, sum_o, mask=inside)
