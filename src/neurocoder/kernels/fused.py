"""Composition and mix on a GPU: Triton kernels around two small matrix products, behind one custom operator.

The operator has two forms. With `read` (N, P), what the slots read of one input for each program, it returns the mix
`e` and sigma_r. Without, it returns the attentions and all sigma, for programs that serve several inputs, as in
convolutions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import triton
from torch import Tensor
from torch.autograd.function import once_differentiable

from ..config import ProgramConfig
from .triton_attention import (
    attention_backward_kernel,
    attention_forward_kernel,
    mix_backward_kernel,
    mix_forward_kernel,
)
from .triton_lstm import lstm_backward_kernel, lstm_forward_kernel

MAX_SLOTS, MAX_KEY, MAX_HIDDEN, MAX_MIX = 256, 64, 64, 16384
"""Beyond these sizes a program's state leaves the registers, and the torch path serves."""
_PROGRAMS = 256
"""Programs a kind in the backward; fixed, so that sums over inputs have a fixed order."""
_INPUTS = 32
"""Inputs of one LSTM program."""


def supports(program: ProgramConfig) -> bool:
    """Whether the kernels take this configuration."""
    mix = triton.next_power_of_2(program.components) * triton.next_power_of_2(program.slots)
    small = program.slots <= MAX_SLOTS and program.key_dim <= MAX_KEY and program.hidden <= MAX_HIDDEN
    return small and mix <= MAX_MIX


def _padded(size: int) -> int:
    """The next power of two that a matrix product inside a kernel takes."""
    return max(16, triton.next_power_of_2(size))


def _rows(slots: int) -> int:
    """Rows of one attention program: about 2,048 numbers a tile."""
    return max(16, min(64, 2048 // _padded(slots)))


class _Shape:
    """The sizes that the kernels share."""

    def __init__(self, signal: Tensor, values: Tensor, keys: Tensor, heads: int, steps: int, least_used: int) -> None:
        self.count, self.hidden = signal.shape[0], signal.shape[1] // 4
        self.steps, self.heads, self.slots, self.key_dim = steps, heads, len(values), keys.shape[-1]
        self.components = steps * heads
        self.lstm = {"J": steps, "H": self.hidden, "HP": _padded(self.hidden), "BN": _INPUTS}
        self.mix = {
            "R": self.components,
            "P": self.slots,
            "RP": triton.next_power_of_2(self.components),
            "PP": triton.next_power_of_2(self.slots),
        }
        self.attention = {
            "J": steps,
            "H": heads,
            "P": self.slots,
            "K": self.key_dim,
            "LEAST": least_used,
            "PP": _padded(self.slots),
            "KP": _padded(self.key_dim),
            "BR": _rows(self.slots),
        }
        self.blocks = triton.cdiv(self.count * heads, _rows(self.slots))


def forward(
    signal: Tensor,
    read: Tensor | None,
    recurrent: Tensor | None,
    query_weight: Tensor,
    query_bias: Tensor,
    gate_weight: Tensor,
    gate_bias: Tensor,
    keys: Tensor,
    values: Tensor,
    steps: int,
    heads: int,
    least_used: int,
    sharpness: float,
) -> list[Tensor]:
    """All in float32. Returns attention (3, N, r, P), sigma (N, r), e (N, P) (empty without `read`), then what the
    backward needs."""
    shape = _Shape(signal, values, keys, heads, steps, least_used)
    count, hidden, slots, components = shape.count, shape.hidden, shape.slots, shape.components
    new = signal.new_empty
    states, cells, lstm_gates = new(steps, count, hidden), new(steps, count, hidden), new(steps, count, 4, hidden)
    attention, before, projected = new(3, count, components, slots), new(count, components), new(count, components)
    sigma, coefficients = new(count, components), new(count, slots) if read is not None else new(0)
    if count == 0:
        gates, queries = new(0, 3 * heads * slots), new(0, 3 * heads * shape.key_dim)
        return [attention, sigma, coefficients, states, cells, lstm_gates, gates, queries, before, projected]
    lstm_forward_kernel[triton.cdiv(count, _INPUTS),](
        signal, signal if recurrent is None else recurrent, states, cells, lstm_gates, count, **shape.lstm
    )
    flat = states.view(-1, hidden)
    gates, queries = torch.addmm(gate_bias, flat, gate_weight.mT), torch.addmm(query_bias, flat, query_weight.mT)
    mix = read is not None
    attention_forward_kernel[shape.blocks, 3](
        gates,
        queries,
        keys,
        values,
        signal if read is None else read,
        attention,
        before,
        projected,
        sharpness,
        count,
        MIX=mix,
        **shape.attention,
    )
    mix_forward_kernel[count,](
        attention, before, projected, sigma, coefficients, count, MIX=mix, **shape.mix, num_warps=2
    )
    return [attention, sigma, coefficients, states, cells, lstm_gates, gates, queries, before, projected]


def backward(
    grad_coefficients: Tensor | None,
    grad_sigma: Tensor,
    grad_u: Tensor | None,
    grad_v: Tensor | None,
    read: Tensor | None,
    recurrent: Tensor | None,
    query_weight: Tensor,
    gate_weight: Tensor,
    keys: Tensor,
    values: Tensor,
    signal: Tensor,
    saved: list[Tensor],
    steps: int,
    heads: int,
    least_used: int,
    sharpness: float,
) -> list[Tensor]:
    """Gradients of signal, read, recurrent, query weight and bias, gate weight and bias, keys, values; a missing
    input's is empty."""
    shape = _Shape(signal, values, keys, heads, steps, least_used)
    attention, sigma, states, cells, lstm_gates, gates, queries, before, projected = saved
    count, hidden, slots = shape.count, shape.hidden, shape.slots
    new = signal.new_empty
    if count == 0:
        inputs = (
            signal,
            read,
            recurrent,
            query_weight,
            query_weight[:, 0],
            gate_weight,
            gate_weight[:, 0],
            keys,
            values,
        )
        return [new(0) if tensor is None else torch.zeros_like(tensor) for tensor in inputs]
    mix = read is not None
    factors, grad_read = new(3, count, shape.components), new(count, slots) if mix else new(0)
    unused = signal
    mix_backward_kernel[count,](
        unused if grad_coefficients is None else grad_coefficients,
        grad_sigma,
        attention,
        before,
        projected,
        sigma,
        factors,
        grad_read,
        count,
        MIX=mix,
        **shape.mix,
        num_warps=2,
    )
    programs = min(shape.blocks, _PROGRAMS)
    grad_gates, grad_queries = torch.empty_like(gates), torch.empty_like(queries)
    partial_keys, partial_values = new(programs, *keys.shape), new(programs, slots)
    attention_backward_kernel[programs, 3](
        gates,
        queries,
        keys,
        values,
        unused if read is None else read,
        unused if grad_coefficients is None else grad_coefficients,
        unused if grad_u is None else grad_u,
        unused if grad_v is None else grad_v,
        attention,
        factors,
        grad_gates,
        grad_queries,
        partial_keys,
        partial_values,
        sharpness,
        count,
        MIX=mix,
        **shape.attention,
    )
    flat = states.view(-1, hidden)
    grad_states = torch.addmm(grad_gates @ gate_weight, grad_queries, query_weight)
    grad_lstm, grad_signal = torch.empty_like(lstm_gates), torch.empty_like(signal)
    lstm_backward_kernel[triton.cdiv(count, _INPUTS),](
        grad_states,
        unused if recurrent is None else recurrent,
        cells,
        lstm_gates,
        grad_lstm,
        grad_signal,
        count,
        **shape.lstm,
    )
    grad_recurrent = new(0)
    if recurrent is not None:
        grad_recurrent = grad_lstm[1:].view(-1, 4 * hidden).mT @ states[:-1].view(-1, hidden)
    return [
        grad_signal,
        grad_read,
        grad_recurrent,
        grad_queries.mT @ flat,
        grad_queries.sum(0),
        grad_gates.mT @ flat,
        grad_gates.sum(0),
        partial_keys.sum(0),
        partial_values.sum(0).unsqueeze(-1),
    ]


class FusedCompose(torch.autograd.Function):
    """The kernels under autograd, for eager mode, where an operator of the library would cost more than it does."""

    @staticmethod
    def forward(ctx: Any, *args: Any) -> tuple[Tensor, ...]:
        """Arguments as `forward`; returns (e, sigma_r) or (u, v, sigma)."""
        out = forward(*args)
        ctx.sizes, ctx.mix = args[9:], args[1] is not None
        ctx.save_for_backward(*args[:9], *out)
        return _outputs(out, ctx.mix)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        """Gradients of the tensors."""
        inputs, out = ctx.saved_tensors[:9], ctx.saved_tensors[9:]
        return (*_gradients(backward, grads, inputs, out, ctx.mix, ctx.sizes), None, None, None, None)


def _outputs(out: Sequence[Tensor], mix: bool) -> tuple[Tensor, ...]:
    """What the caller gets of all that the forward made."""
    attention, sigma, coefficients = out[:3]
    return (coefficients, sigma[:, -1:].clone()) if mix else (attention[0], attention[1], sigma.clone())


def _gradients(
    run: Any, grads: Sequence[Tensor], inputs: Sequence[Any], out: Sequence[Tensor], mix: bool, sizes: Sequence[Any]
) -> list[Tensor | None]:
    """Sort the gradients of the outputs into the backward's arguments, and drop those of missing inputs."""
    signal, read, recurrent, query_weight, _, gate_weight, _, keys, values = inputs
    grad_coefficients, grad_sigma = (grads[0].contiguous(), grads[1]) if mix else (None, grads[2])
    grad_u, grad_v = (None, None) if mix else (grads[0].contiguous(), grads[1].contiguous())
    found = run(
        grad_coefficients,
        grad_sigma.contiguous(),
        grad_u,
        grad_v,
        read,
        recurrent,
        query_weight,
        gate_weight,
        keys,
        values,
        signal,
        [out[0], out[1], *out[3:]],
        *sizes,
    )
    return [None if tensor is None else grad for tensor, grad in zip(inputs, found, strict=True)]


@torch.library.custom_op("neurocoder::compose", mutates_args=())
def compose_op(
    signal: Tensor,
    read: Tensor | None,
    recurrent: Tensor | None,
    query_weight: Tensor,
    query_bias: Tensor,
    gate_weight: Tensor,
    gate_bias: Tensor,
    keys: Tensor,
    values: Tensor,
    steps: int,
    heads: int,
    least_used: int,
    sharpness: float,
) -> list[Tensor]:
    """`forward` as an operator that `torch.compile` and `torch.export` see as one."""
    weights = (query_weight, query_bias, gate_weight, gate_bias)
    return forward(signal, read, recurrent, *weights, keys, values, steps, heads, least_used, sharpness)


@compose_op.register_fake
def _(signal, read, recurrent, query_weight, query_bias, gate_weight, gate_bias, keys, values, steps, heads, *_):  # type: ignore[no-untyped-def]
    count, hidden, slots, components = signal.shape[0], signal.shape[1] // 4, len(values), steps * heads
    new = signal.new_empty
    return [
        new(3, count, components, slots),
        new(count, components),
        new(0) if read is None else new(count, slots),
        new(steps, count, hidden),
        new(steps, count, hidden),
        new(steps, count, 4, hidden),
        new(steps * count, len(gate_bias)),
        new(steps * count, len(query_bias)),
        new(count, components),
        new(count, components),
    ]


@torch.library.custom_op("neurocoder::compose_backward", mutates_args=())
def compose_backward_op(
    grad_coefficients: Tensor | None,
    grad_sigma: Tensor,
    grad_u: Tensor | None,
    grad_v: Tensor | None,
    read: Tensor | None,
    recurrent: Tensor | None,
    query_weight: Tensor,
    gate_weight: Tensor,
    keys: Tensor,
    values: Tensor,
    signal: Tensor,
    saved: list[Tensor],
    steps: int,
    heads: int,
    least_used: int,
    sharpness: float,
) -> list[Tensor]:
    """`backward` as an operator."""
    grads = (grad_coefficients, grad_sigma, grad_u, grad_v)
    weights = (query_weight, gate_weight)
    return backward(*grads, read, recurrent, *weights, keys, values, signal, saved, steps, heads, least_used, sharpness)


@compose_backward_op.register_fake
def _(gc, gs, gu, gv, read, recurrent, query_weight, gate_weight, keys, values, signal, *_):  # type: ignore[no-untyped-def]
    inputs = (signal, read, recurrent, query_weight, query_weight[:, 0], gate_weight, gate_weight[:, 0], keys, values)
    return [signal.new_empty(0) if tensor is None else signal.new_empty(tensor.shape) for tensor in inputs]


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    ctx.sizes, ctx.mix = inputs[9:], inputs[1] is not None
    ctx.save_for_backward(*inputs[:9], *output)


def _backward_of_op(ctx: Any, grads: list[Tensor | None]) -> tuple[Any, ...]:
    inputs, out = ctx.saved_tensors[:9], ctx.saved_tensors[9:]
    whole = [torch.zeros_like(tensor) if grad is None else grad for grad, tensor in zip(grads, out, strict=True)]
    chosen = (whole[2], whole[1][:, -1:]) if ctx.mix else (whole[0][0], whole[0][1], whole[1])
    return (*_gradients(compose_backward_op, chosen, inputs, out, ctx.mix, ctx.sizes), None, None, None, None)


compose_op.register_autograd(_backward_of_op, setup_context=_setup_context)


def compose(tensors: Sequence[Tensor | None], program: ProgramConfig) -> tuple[Tensor, ...]:
    """(e, sigma_r) or, without `read`, (u, v, sigma), computed in float32.

    Args:
        tensors: signal (N, 4 * hidden), read (N, P) or None, recurrent weight or None, query weight and bias, gate
            weight and bias, keys (3, P, K), M_S (P, 1).
        program: the sizes.
    """
    device = tensors[0].device.type  # type: ignore[union-attr]
    sizes = (program.steps, program.heads, program.least_used, program.sharpness)
    with torch.autocast(device, enabled=False):
        whole = [None if tensor is None else tensor.float().contiguous() for tensor in tensors]
        if torch.compiler.is_compiling():
            return _outputs(compose_op(*whole, *sizes), whole[1] is not None)
        return FusedCompose.apply(*whole, *sizes)
