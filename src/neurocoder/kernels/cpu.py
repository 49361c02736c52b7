"""The composition core over torch operations, with its backward written by hand.

Autograd over `neurocoder.functional` keeps every intermediate and runs an operation for each. Here operations are fewer
and larger. The arithmetic is `functional`'s.

Layout: inputs last, (J, 3, H, P, N). A step is one block. Sums over slots, and what all slots share, go along the
inputs by vector instructions, where torch would take short rows of slots one by one.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..config import ProgramConfig
from .cpu_attention import attend, attend_backward
from .cpu_lstm import lstm_backward, lstm_forward
from .gradients import Gradients
from .side_stream import SideStream

aten = torch.ops.aten


def sizes_of(program: ProgramConfig) -> ProgramConfig:
    """The sizes of a configuration as this core takes them."""
    return program


def prepare(
    slots: Sequence[Tensor], networks: Sequence[Tensor], weight: Tensor, bias: Tensor
) -> tuple[Tensor, list[Tensor]]:
    """k (3, K, P) from M_U, M_V, M_S and weight and bias of each key network; weight and bias of the signal side by
    side (3 * H * (K + P), hidden + 1), for states that end in a one."""
    keys = slots[0].new_empty(3, len(networks[0]), len(slots[0]))
    for key, memory, key_weight, key_bias in zip(keys, slots, networks[::2], networks[1::2], strict=True):
        torch.addmm(key_bias.unsqueeze(1), key_weight, memory.mT, out=key)
    return keys, [torch.cat([weight, bias.unsqueeze(1)], dim=1)]


def prepare_backward(
    grad_keys: Tensor,
    grad_signal: Sequence[Tensor],
    slots: Sequence[Tensor],
    weights: Sequence[Tensor],
    weight: Tensor,
    grad_slots: Sequence[Tensor],
) -> tuple[list[Tensor], Tensor, Tensor]:
    """Gradients of weight and bias of each key network, and of those of the signal; adds to those of the slots, in
    place."""
    grads: list[Tensor] = []
    biases = grad_keys.sum(2)
    for grad, bias, memory, key_weight, grad_memory in zip(grad_keys, biases, slots, weights, grad_slots, strict=True):
        grad_memory.addmm_(grad.mT, key_weight)
        grads += [grad @ memory, bias]
    return grads, grad_signal[0][:, :-1], grad_signal[0][:, -1]


def project(x: Tensor, readers: Tensor) -> Tensor:
    """What reads the input (width, N) for x (N, d_in) and readers (width, d_in)."""
    return torch.mm(readers, x.mT)


def execute(
    coefficients: Tensor, right: Tensor, bias: Tensor | None, plain: Tensor | None, scale: Tensor | None
) -> Tensor:
    """`y = e M_V + bias + scale * (x R)` (N, d_out) for e and a one (P + 1, N), M_V (P, d_out), scale (1, N); `plain`
    is `x R`."""
    low = coefficients[: len(right)].to(right.dtype).mT
    if plain is None or scale is None:
        return low @ right if bias is None else torch.addmm(bias, low, right)
    y = plain * scale.mT if bias is None else torch.addcmul(bias, plain, scale.mT)
    return y.to(right.dtype).addmm_(low, right)


def execute_backward(
    grad: Tensor, right: Tensor, plain: Tensor | None, scale: Tensor | None, scaled: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    """Gradients of e (P, N) and of the scale (1, N) (None without); fills `scaled` with `scale * grad`."""
    full = torch.promote_types(grad.dtype, torch.float32)
    grad_scale = None
    if plain is not None and scale is not None:
        along = torch.mul(grad, plain, out=scaled) if grad.dtype == full else grad.to(full) * plain.to(full)
        grad_scale = along.sum(1).unsqueeze(0)
        torch.mul(grad, scale.mT, out=scaled)
    return (right @ grad.mT).to(full), grad_scale


def right_backward(grad: Tensor, coefficients: Tensor, slots: int) -> tuple[Tensor, Tensor]:
    """Gradients of M_V (P, d_out) and of the bias."""
    summed = coefficients.to(grad.dtype) @ grad
    return summed[:slots], summed[slots]


def forward(
    projected: Tensor,
    input_bias: Tensor,
    recurrent: Tensor | None,
    signal: Sequence[Tensor],
    keys: Tensor,
    values: Tensor,
    gate_bias: Tensor | None,
    program: ProgramConfig,
) -> list[Tensor | None]:
    """The composition core.

    Args:
        projected: what reads the input: slots (P, N), composition network (4 * hidden, N) and, with a gated residual,
            integration network (1, N), one under the other; further rows are ignored, and get no gradient.
        input_bias, gate_bias: the biases of the latter two.
        recurrent: W_hh, for more than one step.
        signal: weight and bias of the composition signal, side by side.
        keys: k (3, K, P) as the key networks made them.
        values: M_S (P, 1).

    Returns:
        e and a one (P + 1, N), so that the product of e with the gradient has the bias's too; scale = gate * sigma_r
        (1, N), or None without gate; what the backward needs
    """
    steps, heads, slots, key_dim, hidden = program.steps, program.heads, program.slots, program.key_dim, program.hidden
    count, queried, end = projected.shape[1], 3 * heads * key_dim, slots + 4 * hidden
    states, *lstm = lstm_forward(projected[slots:end] + input_bias.unsqueeze(1), recurrent, steps)
    composed = torch.bmm(signal[0].expand(steps, -1, -1), states)
    interpolation = composed[:, queried:].sigmoid_().view(steps, 3, heads, slots, count)
    queries = composed[:, :queried].view(steps, 3, heads, key_dim, count)
    query_norm, key_norm = _norm(queries), _norm(keys)
    unit_queries, unit_keys = queries / query_norm, keys / key_norm
    cosine = torch.matmul((program.sharpness * unit_keys).mT.unsqueeze(1), unit_queries)
    content = _softmax_of_cosines(cosine, program.sharpness)
    attention, *usages = attend(content, interpolation, program.least_used)

    u, v, s = attention.unbind(1)
    before = (s * values).sum(2, keepdim=True)  # (J, H, 1, N), and so are the next three
    rises = torch.nn.functional.softplus(before).view(steps * heads, count)
    sigma = rises.flip(0).cumsum(0).flip(0).view_as(before)
    shadow = (u * projected[:slots]).sum(2, keepdim=True)
    strength = sigma * shadow
    coefficients = strength.new_ones(slots + 1, count)
    torch.sum(v * strength, (0, 1), out=coefficients[:slots])
    gate, scale = None, None
    if gate_bias is not None:
        gate = (projected[end : end + 1] + gate_bias).sigmoid_()
        scale = gate * sigma[-1, -1]
    return [
        *(coefficients, scale, interpolation, content, attention, query_norm, unit_queries, key_norm, unit_keys),
        *(before, sigma, shadow, strength, gate, states, *lstm, *usages),
    ]


def backward(
    grad_coefficients: Tensor,
    grad_scale: Tensor | None,
    grad_attention: None,
    grad_sigma: None,
    projected: Tensor,
    recurrent: Tensor | None,
    signal: Sequence[Tensor],
    keys: Tensor,
    values: Tensor,
    gate_bias: Tensor | None,
    saved: Sequence[Tensor],
    program: ProgramConfig,
    branch: SideStream,
    sums: SideStream,
) -> Gradients:
    """The arguments are those of `fused.backward`, whose form without mix and whose branches this core does not
    have."""
    interpolation, content, attention, query_norm, unit_queries, key_norm, unit_keys = saved[:7]
    before, sigma, shadow, strength, gate, states = saved[7:13]
    lstm, usages = saved[13:16], saved[16:]
    steps, _, heads, slots, count = attention.shape
    hidden, queried, end = program.hidden, 3 * heads * program.key_dim, slots + 4 * program.hidden
    u, v, s = attention.unbind(1)
    read = projected[:slots]
    into_projected = torch.empty_like(projected)

    grad_strength = (v * grad_coefficients).sum(2, keepdim=True)
    into_sigma = grad_strength * shadow
    if grad_scale is not None:
        into_sigma[-1, -1].addcmul_(grad_scale, gate)
        into_projected[end] = aten.sigmoid_backward(grad_scale * sigma[-1, -1], gate)[0]
    if len(projected) > end + (gate is not None):
        into_projected[end + (gate is not None) :] = 0
    grad_shadow = grad_strength.mul_(sigma)
    grad_before = into_sigma.view(steps * heads, count).cumsum(0).view_as(before).mul_(before.sigmoid())
    grad_values = (s * grad_before).sum((0, 1, 3)).unsqueeze(1)
    torch.sum(u * grad_shadow, (0, 1), out=into_projected[:slots])

    grad = torch.empty_like(attention)
    torch.mul(grad_shadow, read, out=grad[:, 0])
    torch.mul(strength, grad_coefficients, out=grad[:, 1])
    torch.mul(grad_before, values, out=grad[:, 2])
    composed = signal[0].new_empty(steps, len(signal[0]), count)
    grad_queries = composed[:, :queried].view_as(unit_queries)
    grad_gates = composed[:, queried:].view_as(attention)
    attend_backward(grad, content, interpolation, attention, usages, grad_gates)

    grad_cosine = aten._softmax_backward_data(grad, content, 3, grad.dtype)
    if program.sharpness != 1.0:
        grad_cosine.mul_(program.sharpness)
    by_head = torch.matmul(unit_queries, grad_cosine.mT)
    grad_keys = _unit_backward(by_head.sum((0, 2)), unit_keys, key_norm)
    into_queries = torch.matmul(unit_keys.unsqueeze(1), grad_cosine)
    _unit_backward(into_queries, unit_queries, query_norm, out=grad_queries)

    grad_signal = torch.bmm(composed, states.mT).sum(0)
    grad_states = torch.bmm(signal[0][:, :hidden].mT.expand(steps, -1, -1), composed)
    by_step = lstm_backward(grad_states, recurrent, *lstm)
    torch.sum(by_step, 0, out=into_projected[slots:end])
    grad_recurrent = values.new_empty(0)
    if recurrent is not None:
        grad_recurrent = torch.bmm(by_step[1:], states[:-1, :hidden].mT).sum(0)
    into_biases = into_projected[slots:].sum(1)
    return Gradients(
        into_projected.mT,
        into_biases[: 4 * hidden],
        grad_recurrent,
        *([grad_signal], grad_keys, grad_values),
        into_biases[4 * hidden : 4 * hidden + (gate is not None)],
    )


def _norm(vectors: Tensor) -> Tensor:
    """Lengths (..., 1, N), never zero, of vectors (..., K, N)."""
    return (vectors * vectors).sum(-2, keepdim=True).sqrt_().clamp_min_(1e-12)


def _softmax_of_cosines(scaled: Tensor, sharpness: float) -> Tensor:
    """Softmax over the slots (J, 3, H, P, N) of numbers in ±sharpness, overwriting them.

    They are bounded, so moderate ones need no maximum.
    """
    if sharpness > 30:
        return scaled.softmax(dim=3)
    exponentials = scaled.exp_()
    return exponentials.div_(exponentials.sum(3, keepdim=True))


def _unit_backward(grad: Tensor, unit: Tensor, norm: Tensor, out: Tensor | None = None) -> Tensor:
    """Gradient of vectors (..., K, N) from that of vectors of length one, which it overwrites."""
    along = (grad * unit).sum(-2, keepdim=True)
    return torch.div(grad.addcmul_(unit, along, value=-1), norm, out=out)
