"""The composition core on a GPU, as Triton kernels.

The keys of the slots are computed before it, the composed program is executed after it.

The input projections arrive as one tensor (N, [P +] 4 * hidden [+ 1]): what the slots read, the composition network's
input, the integration network's logit. With the first part, the core executes and returns the mix `e`. Without it, as
for programs that serve several inputs, it returns attention and sigma for the caller to execute.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...ops.autograd import cast
from ...ops.launch import SideStream, aligned, cdiv, padded, power_of_two, precision
from ..config import ProgramConfig
from ..tensors import IN_MEMORY, CallSpec, Composed, Gradients, Prepared, ProgramTensors
from .sizes import ATTENTION_GRID, LSTM_GRID, ONE_STEP_BACKWARD, Sizes, sizes_of
from .triton_attention import attention_backward_kernel, attention_forward_kernel
from .triton_layer import (
    execute_backward_kernel,
    execute_kernel,
    keys_backward_kernel,
    keys_forward_kernel,
    sum_shares_kernel,
)
from .triton_lstm import lstm_backward_kernel, lstm_forward_kernel
from .triton_mix import mix_backward_kernel, mix_forward_kernel

_EXECUTE_GRID = 64
"""Grid size below which the execution's backward splits its columns."""


class State(NamedTuple):
    """What the backward needs from the forward: row-major, in float32."""

    attention: Tensor
    """w for u, v, s (3, N, r, P)"""
    sigma: Tensor
    """(N, r)"""
    small: Tensor
    """For each component, the softplus argument, what it reads from its input, and for u, v, s the usage up to which a
    slot counts as least used (5, N, r)"""
    states: Tensor
    """h and a one (J * N, padded)"""
    cells: Tensor
    """c (J * N, hidden)"""
    gates: Tensor
    """i, f, g, o (J * N, 4 * hidden)"""
    composition: Tensor
    """The composition signal (J * N, padded)"""


def state_shapes(program: ProgramConfig, sizes: Sizes, count: int) -> list[tuple[int, ...]]:
    """The shape of each tensor of the state, for N inputs."""
    rows, r, hidden = program.steps * count, program.components, program.hidden
    wide = [(rows, sizes.state), (rows, hidden), (rows, 4 * hidden), (rows, sizes.signal)]
    return [(3, count, r, program.slots), (count, r), (5, count, r), *wide]


def forward(spec: CallSpec, projected: Tensor, prepared: Prepared, tensors: ProgramTensors) -> tuple[Composed, State]:
    """The composition: e and a one (N, mixed), or attention (3, N, r, P) and sigma (N, r); with a gated residual, also
    its scale (N, 1)."""
    program, sizes = spec.program, sizes_of(spec.program, spec.fused)
    count, recurrent, gate_bias = projected.shape[0], tensors.recurrent_weight, tensors.integration_bias
    new = projected.new_empty
    *shapes, composition_shape = state_shapes(program, sizes, count)
    attention, sigma, small, states, cells, gates = [new(*shape) for shape in shapes]
    coefficients, scale = new(count, sizes.mixed) if spec.fused else None, new(count, 1) if sizes.gate else None
    composition = new(*composition_shape) if recurrent is None or not count else states
    if count:
        stride, unused = projected.stride(0), projected
        constants = sizes.lstm(count)
        blocks = cdiv(sizes.signal, constants["BS"]) if recurrent is None else 1
        lstm_forward_kernel[cdiv(count, constants["BN"]), blocks](
            *(projected[:, spec.offset :], stride, tensors.input_bias, unused if recurrent is None else recurrent),
            *(prepared.signal, states, cells, gates, composition, count),
            **constants,
        )
        if recurrent is not None:
            composition = states @ prepared.signal.mT
        tiles = sizes.attention
        before, readings, thresholds = small[0], small[1], small[2:]
        attention_forward_kernel[cdiv(count * program.heads, tiles["BR"]), 3](
            *(composition, sizes.signal, prepared.keys, tensors.S, projected, stride),
            *(attention, thresholds, before, readings, program.sharpness, count),
            LEAST=program.least_used,
            **tiles,
        )
        mix_forward_kernel[count,](
            *(attention, before, readings, projected[:, spec.end :], stride),
            *(unused if gate_bias is None else gate_bias, sigma),
            *(unused if coefficients is None else coefficients, unused if scale is None else scale, count),
            **sizes.mixing,
        )
    state = State(attention, sigma, small, states, cells, gates, composition)
    return Composed(scale, coefficients) if spec.fused else Composed(scale, None, attention, sigma), state


def backward(
    spec: CallSpec, grads: Composed, projected: Tensor, prepared: Prepared, tensors: ProgramTensors, state: State
) -> Gradients:
    """The gradients of the forward's arguments: the projection's on the main stream, the signal's on one side stream,
    all others on the other.

    If the layer executes, the gradients of coefficients (parts, N, ...) and scale (parts, N, 1) come as partial sums
    over their first dimension; those of the coefficients may be overwritten.
    """
    program, sizes = spec.program, sizes_of(spec.program, spec.fused)
    count, hidden, recurrent = projected.shape[0], program.hidden, tensors.recurrent_weight
    keys, states, composition = prepared.keys, state.states, state.composition
    new = projected.new_empty
    tiles, constants = sizes.attention, sizes.lstm(count)
    grid = min(cdiv(count * program.heads, tiles["BR"]), ATTENTION_GRID)
    lstm_grid = min(cdiv(count, constants["BN"]), LSTM_GRID)
    square = 0 if recurrent is None else recurrent.numel()
    shares = new(grid, keys.numel() + program.slots), new(lstm_grid, square + 4 * hidden + 1)
    of_keys, of_lstm = (new(share.shape[1]) if count else share.new_zeros(share.shape[1]) for share in shares)
    side, sums = SideStream(projected), SideStream(projected, 1)
    grad_projected, grad_composition = torch.empty_like(projected), torch.empty_like(composition)
    if count:
        before, readings, thresholds = state.small[0], state.small[1], state.small[2:]
        factors, unused, stride = new(3, count, program.components), projected, projected.stride(0)
        if spec.fused:
            into_u, into_v = projected, grads.coefficients
            stride_u, stride_v = stride, into_v.stride(-2)
        else:
            into_u, into_v = grads.attention.contiguous()[:2]
            stride_u, stride_v = stride, 0
        given = (None if spec.fused else grads.sigma.contiguous(), grads.scale, tensors.integration_bias)
        grad_sigma, grad_scale, gate_bias = (unused if tensor is None else tensor for tensor in given)
        mix_backward_kernel[count,](
            *(into_v, stride_v, grad_sigma, grad_scale, state.attention, before, readings, state.sigma),
            *(projected[:, spec.end :], stride, gate_bias),
            *(factors, grad_projected, grad_projected[:, spec.end :], grad_composition, count),
            PARTS=len(into_v) if spec.fused else 1,
            J=program.steps,
            SIGNAL=tensors.signal_weight.shape[0],
            SIGNAL_STRIDE=sizes.signal,
            **sizes.mixing,
        )
        attention_backward_kernel[grid, 3](
            *(composition, sizes.signal, keys, tensors.S, into_u, stride_u, into_v, stride_v),
            *(state.attention, thresholds, factors, grad_composition, shares[0], program.sharpness, count),
            KP=power_of_two(program.key_dim),
            **tiles,
        )
        with side:
            grad_signal = grad_composition.mT @ states
        grad_states = grad_composition if recurrent is None else grad_composition @ prepared.signal
        lstm_backward_kernel[lstm_grid,](
            *(grad_states, unused if recurrent is None else recurrent),
            *(prepared.signal, states, state.cells, state.gates),
            *(grad_projected[:, spec.offset :], stride, shares[1], count),
            GATE=int(sizes.gate),
            PAD=projected.shape[1] - spec.end - sizes.gate,
            **(constants | ONE_STEP_BACKWARD if recurrent is None else constants),
        )
        blocks = sum(cdiv(share.shape[1], 16) for share in shares)
        described = (shares[0], of_keys, *shares[0].shape, shares[1], of_lstm, *shares[1].shape)
        with sums:
            sum_shares_kernel[blocks,](*described, BR=256, BC=16)
    else:
        grad_signal = torch.zeros_like(prepared.signal)
    return Gradients(
        grad_projected,
        Prepared(of_keys[: keys.numel()].view_as(keys), grad_signal),
        of_keys[keys.numel() :].view_as(tensors.S),
        input_bias=of_lstm[square : square + 4 * hidden],
        recurrent_weight=of_lstm[:square].view(-1, hidden),
        integration_bias=of_lstm[-1 if sizes.gate else len(of_lstm) :],
        sums=sums,
        alive=(grad_composition, *shares) if sums.active else (),
    )


def prepare(tensors: ProgramTensors) -> Prepared:
    """k (3, P, K); the signal's weight and bias, concatenated (rows, hidden + 1) and padded."""
    weight = tensors.signal_weight
    (count, d_in), key_dim = tensors.U.shape, tensors.key_u_weight.shape[0]
    rows, hidden = weight.shape
    packed_rows, width = aligned(rows), aligned(hidden + 1)
    keys, packed = weight.new_empty(3, count, key_dim), weight.new_empty(packed_rows, width)
    keys_forward_kernel[count, 4](
        *(*tensors[: len(IN_MEMORY)], keys, weight, tensors.signal_bias, packed),
        *(d_in, tensors.V.shape[1], rows, packed_rows),
        C=hidden,
        W=width,
        P=count,
        K=key_dim,
        KP=power_of_two(key_dim),
        BD=512,
        PACK=512,
        num_warps=8,
    )
    return Prepared(keys, packed)


def prepare_backward(
    grads: Prepared, tensors: ProgramTensors, grad_slots: Sequence[Tensor]
) -> tuple[Sequence[Tensor], Sequence[Tensor], Tensor, Tensor]:
    """Gradients of the key networks' weights and biases and of the signal's weight and bias; adds to the slots'
    gradients in place."""
    left, right, _ = tensors.slots
    count, key_dim = left.shape[0], tensors.key_u_weight.shape[0]
    weights, biases = [torch.empty_like(weight) for weight in tensors.key_weights], left.new_empty(3, key_dim)
    rows, hidden = tensors.signal_weight.shape
    grad_signal, grad_signal_bias = torch.empty_like(tensors.signal_weight), left.new_empty(rows)
    widths = left.shape[1], right.shape[1]
    keys_backward_kernel[cdiv(max(widths), 32), 4](
        *(grads.keys, *tensors.slots, *tensors.key_weights, *grad_slots, *weights, biases),
        *(grads.signal, grad_signal, grad_signal_bias, *widths, rows),
        C=hidden,
        W=grads.signal.shape[1],
        P=count,
        K=key_dim,
        PP=padded(count),
        KP=padded(key_dim),
        BD=32,
        PACK=512,
    )
    return weights, biases.unbind(), grad_signal, grad_signal_bias


def project(x: Tensor, readers: Tensor) -> Tensor:
    """The input projections (N, width) for x (N, d_in) and readers (width, d_in)."""
    return torch.mm(x, readers.mT)


def _tiles(right: Tensor) -> dict[str, Any]:
    """Constants of the execution kernels for M_V (P, d_out)."""
    slots = right.shape[0]
    return {"P": slots, "PP": padded(slots), "PRECISION": precision(right.dtype)}


def execute(composed: Composed, V: Tensor, bias: Tensor | None, xR: Tensor | None) -> Tensor:
    """`y = e M_V + bias + scale * (x R)` (N, d_out) for e (N, mixed), M_V (P, d_out), scale (N, 1)."""
    coefficients, scale = composed.coefficients, composed.scale
    assert coefficients is not None
    count, d_out = coefficients.shape[0], V.shape[1]
    y = V.new_empty(count, d_out)
    if count:
        execute_kernel[cdiv(count, 32), cdiv(d_out, 128)](
            *(coefficients, coefficients.stride(0), V),
            *(V if bias is None else bias, V if xR is None else xR, V if scale is None else scale),
            *(y, count, d_out),
            BIAS=bias is not None,
            SCALED=xR is not None,
            BN=32,
            BD=128,
            num_warps=8,
            **_tiles(V),
        )
    return y


def execute_backward(grad: Tensor, V: Tensor, xR: Tensor | None, scale: Tensor | None, of_xR: Tensor) -> Composed:
    """Shares of the gradients of e (parts, N, P) and of the scale (parts, N, 1); fills `of_xR`, the gradient of `x R`,
    if that is gated. With few inputs the columns are split, to fill the chip."""
    count, (slots, d_out) = grad.shape[0], V.shape
    tiles = _tiles(V)
    block = min(128, 8192 // tiles["PP"], padded(d_out))  # at most 80 KB on chip
    blocks, rows = cdiv(d_out, block), max(1, cdiv(count, 16))
    parts = power_of_two(min(blocks, max(1, _EXECUTE_GRID // rows)))
    grad_coefficients = grad.new_empty(parts, count, slots, dtype=torch.float32)
    grad_scale = None if xR is None else grad_coefficients.new_empty(parts, count, 1)
    if count:
        execute_backward_kernel[rows, parts](
            *(grad, V, V if xR is None else xR, V if scale is None else scale),
            *(grad_coefficients, V if grad_scale is None else grad_scale, of_xR),
            *(count, d_out, cdiv(blocks, parts) * block),
            SCALED=xR is not None,
            BN=16,
            BD=block,
            num_warps=2,
            num_stages=3,
            **tiles,
        )
    return Composed(grad_scale, grad_coefficients)


def write_backward(grad: Tensor, coefficients: Tensor, slots: int) -> tuple[Tensor, Tensor]:
    """Gradients of M_V (P, d_out) and of the bias."""
    summed = cast(coefficients, grad.dtype).mT @ grad
    return summed[:slots], summed[slots]
