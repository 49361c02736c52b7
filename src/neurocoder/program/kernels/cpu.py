"""The composition core over torch operations, with a hand-written backward.

Autograd over `neurocoder.functional` keeps every intermediate and runs an operation for each. Here operations are fewer
and larger. The arithmetic is `functional`'s.

Layout: inputs last, (J, 3, H, P, N). Each step is one contiguous block. Sums and broadcasts over slots are vectorised
along the inputs; with slots last, torch would process short rows one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..tensors import CallSpec, Composed, Gradients, Prepared, ProgramTensors
from .cpu_steps import attend, attend_backward, lstm_backward, lstm_forward

aten = torch.ops.aten


class State(NamedTuple):
    """What the backward needs from the forward; r components as (J, H, 1, N)."""

    interpolation: Tensor
    content: Tensor
    attention: Tensor
    """g, c and w (J, 3, H, P, N)"""
    query_norm: Tensor
    unit_queries: Tensor
    key_norm: Tensor
    unit_keys: Tensor
    before: Tensor
    """sum_i w^s_i M_S(i), before the softplus"""
    sigma: Tensor
    read: Any
    """sum_i w^u_i a_i, what each component reads from its input, if the layer executes"""
    strength: Any
    """sigma times that"""
    gate: Any
    states: Tensor
    gates: Tensor
    cells: Tensor
    squashed: Tensor
    """What `lstm_forward` returns"""
    usage: Tensor
    passing: Tensor
    largest: Tensor
    """What `attend` returns besides w"""


def prepare(tensors: ProgramTensors) -> Prepared:
    """k (3, K, P); the signal's weight and bias, concatenated (3 * H * (K + P), hidden + 1)."""
    keys = tensors.U.new_empty(3, tensors.key_u_weight.shape[0], tensors.U.shape[0])
    networks = zip(tensors.slots, tensors.key_weights, tensors.key_biases, strict=True)
    for key, (memory, weight, bias) in zip(keys.unbind(), networks, strict=True):
        torch.addmm(bias.unsqueeze(1), weight, memory.mT, out=key)
    return Prepared(keys, torch.cat([tensors.signal_weight, tensors.signal_bias.unsqueeze(1)], dim=1))


def prepare_backward(
    grads: Prepared, tensors: ProgramTensors, grad_slots: Sequence[Tensor]
) -> tuple[Sequence[Tensor], Sequence[Tensor], Tensor, Tensor]:
    """Gradients of the key networks' weights and biases and of the signal's weight and bias; adds to the slots'
    gradients in place."""
    for grad, weight, grad_memory in zip(grads.keys, tensors.key_weights, grad_slots, strict=True):
        grad_memory.addmm_(grad.mT, weight)
    weights = [grad @ memory for grad, memory in zip(grads.keys, tensors.slots, strict=True)]
    return weights, grads.keys.sum(2).unbind(), grads.signal[:, :-1], grads.signal[:, -1]


def project(x: Tensor, readers: Tensor) -> Tensor:
    """The input projections (width, N) for x (N, d_in) and readers (width, d_in)."""
    return torch.mm(readers, x.mT)


def execute(composed: Composed, V: Tensor, bias: Tensor | None, xR: Tensor | None) -> Tensor:
    """`y = e M_V + bias + scale * (x R)` (N, d_out) for e and a one (P + 1, N), M_V (P, d_out), scale (N, 1)."""
    assert composed.coefficients is not None
    low = composed.coefficients[: V.shape[0]].to(V.dtype).mT
    if xR is None or composed.scale is None:
        return low @ V if bias is None else torch.addmm(bias, low, V)
    y = xR * composed.scale if bias is None else torch.addcmul(bias, xR, composed.scale)
    return y.to(V.dtype).addmm_(low, V)


def execute_backward(grad: Tensor, V: Tensor, xR: Tensor | None, scale: Tensor | None, of_xR: Tensor) -> Composed:
    """Gradients of e (P, N) and of the scale (N, 1); fills `of_xR`, the gradient of `x R`, if that is gated."""
    full = torch.promote_types(grad.dtype, torch.float32)
    grad_scale = None
    if xR is not None and scale is not None:
        along = torch.mul(grad, xR, out=of_xR) if grad.dtype == full else grad.to(full) * xR.to(full)
        grad_scale = along.sum(1, keepdim=True)
        torch.mul(grad, scale, out=of_xR)
    return Composed(grad_scale, (V @ grad.mT).to(full))


def write_backward(grad: Tensor, coefficients: Tensor, slots: int) -> tuple[Tensor, Tensor]:
    """Gradients of M_V (P, d_out) and of the bias."""
    summed = coefficients.to(grad.dtype) @ grad
    return summed[:slots], summed[slots]


def forward(spec: CallSpec, projected: Tensor, prepared: Prepared, tensors: ProgramTensors) -> tuple[Composed, State]:
    """The composition.

    Args:
        spec: how the layer runs.
        projected: the stacked input projections: slots (P, N) if the layer executes, composition network
            (4 * hidden, N) and, with a gated residual, integration network (1, N). Further rows are ignored and get no
            gradient.
        prepared: keys (3, K, P) and signal.
        tensors: the layer's parameters; it uses the biases, the recurrent weight and M_S.
    """
    program, end, count = spec.program, spec.end, projected.shape[1]
    steps, heads, slots, key_dim = program.steps, program.heads, program.slots, program.key_dim
    queried = 3 * heads * key_dim
    lstm = lstm_forward(projected[spec.offset : end] + tensors.input_bias.unsqueeze(1), tensors.recurrent_weight, steps)
    composed = torch.bmm(prepared.signal.expand(steps, -1, -1), lstm[0])
    interpolation = composed[:, queried:].sigmoid_().view(steps, 3, heads, slots, count)
    queries = composed[:, :queried].view(steps, 3, heads, key_dim, count)
    query_norm, key_norm = _norm(queries), _norm(prepared.keys)
    unit_queries, unit_keys = queries / query_norm, prepared.keys / key_norm
    cosine = torch.matmul((program.sharpness * unit_keys).mT.unsqueeze(1), unit_queries)
    content = _softmax_of_cosines(cosine, program.sharpness)
    attention, *used = attend(content, interpolation, program.least_used)

    u, v, s = attention.unbind(1)
    before = (s * tensors.S).sum(2, keepdim=True)
    rises = torch.nn.functional.softplus(before).view(steps * heads, count)
    sigma = rises.flip(0).cumsum(0).flip(0).view_as(before)
    gate = scale = read = strength = None
    if tensors.integration_bias is not None:
        gate = (projected[end : end + 1] + tensors.integration_bias).sigmoid_()
        scale = (gate * sigma[-1, -1]).mT
    if spec.fused:
        read = (u * projected[:slots]).sum(2, keepdim=True)
        strength = sigma * read
        coefficients = strength.new_ones(slots + 1, count)
        torch.sum(v * strength, (0, 1), out=coefficients[:slots])
        found = Composed(scale, coefficients)
    else:
        found = Composed(scale, None, _inputs_first(attention), sigma.flatten(0, 2).mT.contiguous())
    attending = (interpolation, content, attention, query_norm, unit_queries, key_norm, unit_keys)
    return found, State(*attending, before, sigma, read, strength, gate, *lstm, *used)


def backward(
    spec: CallSpec, grads: Composed, projected: Tensor, prepared: Prepared, tensors: ProgramTensors, state: State
) -> Gradients:
    """The gradients of the forward's arguments from those of its results."""
    attention, sigma, gate, sharpness = state.attention, state.sigma, state.gate, spec.program.sharpness
    steps, _, heads, slots, count = attention.shape
    hidden, queried, offset, end = spec.program.hidden, 3 * heads * spec.program.key_dim, spec.offset, spec.end
    u, v, s = attention.unbind(1)
    into_projected, grad = torch.empty_like(projected), torch.empty_like(attention)
    if spec.fused:
        grad_strength = (v * grads.coefficients).sum(2, keepdim=True)
        into_sigma = grad_strength * state.read
        grad_read = grad_strength.mul_(sigma)
        torch.sum(u * grad_read, (0, 1), out=into_projected[:slots])
        torch.mul(grad_read, projected[:slots], out=grad[:, 0])
        torch.mul(state.strength, grads.coefficients, out=grad[:, 1])
    else:
        grad.copy_(_inputs_last(grads.attention, attention))
        into_sigma = grads.sigma.mT.reshape_as(sigma).clone()
    if gate is not None and grads.scale is not None:
        into_scale = grads.scale.mT
        into_sigma[-1, -1].addcmul_(into_scale, gate)
        into_projected[end] = aten.sigmoid_backward(into_scale * sigma[-1, -1], gate)[0]
    if len(projected) > end + (gate is not None):
        into_projected[end + (gate is not None) :] = 0
    grad_before = into_sigma.view(steps * heads, count).cumsum(0).view_as(sigma).mul_(state.before.sigmoid())
    grad_S = (s * grad_before).sum((0, 1, 3)).unsqueeze(1)
    torch.mul(grad_before, tensors.S, out=grad[:, 2])

    composed = prepared.signal.new_empty(steps, len(prepared.signal), count)
    grad_queries = composed[:, :queried].view_as(state.unit_queries)
    grad_gates = composed[:, queried:].view_as(attention)
    attend_backward(grad, state.content, state.interpolation, attention, state[-3:], grad_gates)

    grad_cosine = aten._softmax_backward_data(grad, state.content, 3, grad.dtype)
    if sharpness != 1.0:
        grad_cosine.mul_(sharpness)
    by_head = torch.matmul(state.unit_queries, grad_cosine.mT)
    grad_keys = _unit_backward(by_head.sum((0, 2)), state.unit_keys, state.key_norm)
    into_queries = torch.matmul(state.unit_keys.unsqueeze(1), grad_cosine)
    _unit_backward(into_queries, state.unit_queries, state.query_norm, out=grad_queries)

    grad_signal = torch.bmm(composed, state.states.mT).sum(0)
    grad_states = torch.bmm(prepared.signal[:, :hidden].mT.expand(steps, -1, -1), composed)
    by_step = lstm_backward(grad_states, tensors.recurrent_weight, state.gates, state.cells, state.squashed)
    torch.sum(by_step, 0, out=into_projected[offset:end])
    grad_recurrent = tensors.S.new_empty(0)
    if tensors.recurrent_weight is not None:
        grad_recurrent = torch.bmm(by_step[1:], state.states[:-1, :hidden].mT).sum(0)
    into_biases = into_projected[offset:].sum(1)
    return Gradients(
        into_projected.mT,
        Prepared(grad_keys, grad_signal),
        grad_S,
        input_bias=into_biases[: 4 * hidden],
        recurrent_weight=grad_recurrent,
        integration_bias=into_biases[4 * hidden : 4 * hidden + (gate is not None)],
    )


def _inputs_first(attention: Tensor) -> Tensor:
    """(J, 3, H, P, N) as (3, N, r, P)."""
    return attention.permute(1, 4, 0, 2, 3).flatten(2, 3).contiguous()


def _inputs_last(attention: Tensor, like: Tensor) -> Tensor:
    """(3, N, r, P) as (J, 3, H, P, N)."""
    return attention.unflatten(2, (like.shape[0], like.shape[2])).permute(2, 0, 3, 4, 1)


def _norm(vectors: Tensor) -> Tensor:
    """Norms (..., 1, N), never zero, of vectors (..., K, N)."""
    return (vectors * vectors).sum(-2, keepdim=True).sqrt_().clamp_min_(1e-12)


def _softmax_of_cosines(scaled: Tensor, sharpness: float) -> Tensor:
    """Softmax over the slots (J, 3, H, P, N) of numbers in ±sharpness, in place.

    They are bounded, so with a moderate sharpness there is no need to subtract the maximum.
    """
    if sharpness > 30:
        return scaled.softmax(dim=3)
    exponentials = scaled.exp_()
    return exponentials.div_(exponentials.sum(3, keepdim=True))


def _unit_backward(grad: Tensor, unit: Tensor, norm: Tensor, out: Tensor | None = None) -> Tensor:
    """Gradient of vectors (..., K, N) from that of their unit vectors, which it overwrites."""
    along = (grad * unit).sum(-2, keepdim=True)
    return torch.div(grad.addcmul_(unit, along, value=-1), norm, out=out)
