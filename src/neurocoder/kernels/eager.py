"""The composition core over torch operations, with its backward written by hand.

Autograd over `neurocoder.functional` keeps every intermediate and runs an operation for each. Here operations are fewer
and larger. The arithmetic is `functional`'s.

Layout: kinds first, then steps, (3, J, N, H, P), so that one batched product reads all gates and a step is one slice.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..config import ProgramConfig
from .branch import Branch
from .gradients import Gradients

aten = torch.ops.aten


def sizes_of(program: ProgramConfig) -> ProgramConfig:
    """The sizes of a configuration as this core takes them."""
    return program


def prepare(
    slots: Sequence[Tensor], networks: Sequence[Tensor], weight: Tensor, bias: Tensor
) -> tuple[Tensor, list[Tensor]]:
    """k (3, P, K) from M_U, M_V, M_S and weight and bias of each key network; the signal's parameters as they are."""
    keys = slots[0].new_empty(3, len(slots[0]), len(networks[0]))
    for key, memory, key_weight, key_bias in zip(keys, slots, networks[::2], networks[1::2], strict=True):
        torch.addmm(key_bias, memory, key_weight.mT, out=key)
    return keys, [weight, bias]


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
    biases = grad_keys.sum(1)
    for grad, bias, memory, key_weight, grad_memory in zip(grad_keys, biases, slots, weights, grad_slots, strict=True):
        grad_memory.addmm_(grad, key_weight)
        grads += [grad.mT @ memory, bias]
    return grads, grad_signal[0], grad_signal[1]


def execute(
    coefficients: Tensor, right: Tensor, bias: Tensor | None, plain: Tensor | None, scale: Tensor | None
) -> Tensor:
    """`y = e M_V + bias + scale * (x R)` (N, d_out) for e (N, P), M_V (P, d_out); `plain` is `x R`."""
    low = coefficients.to(right.dtype)
    y = low @ right if bias is None else torch.addmm(bias, low, right)
    return y if plain is None or scale is None else y.addcmul_(plain, scale)


def execute_backward(
    grad: Tensor, right: Tensor, plain: Tensor | None, scale: Tensor | None, scaled: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    """Gradients of e and of the scale (None without); fills `scaled` with `scale * grad`."""
    full = torch.promote_types(grad.dtype, torch.float32)
    grad_scale = None
    if plain is not None and scale is not None:
        grad_scale = torch.linalg.vecdot(grad.to(full), plain.to(full)).unsqueeze(-1)
        torch.mul(grad, scale, out=scaled)
    return (grad @ right.mT).to(full), grad_scale


def right_backward(grad: Tensor, coefficients: Tensor, slots: int) -> tuple[Tensor, Tensor]:
    """Gradients of M_V (P, d_out) and of the bias."""
    return coefficients.to(grad.dtype).mT @ grad, grad.sum(0)


def lstm_forward(signal: Tensor, recurrent: Tensor | None, steps: int) -> tuple[Tensor, list[tuple[Any, ...]]]:
    """Hidden states (J, N, hidden), and what the backward needs of each step."""
    states: list[Tensor] = []
    saved: list[tuple[Any, ...]] = []
    cell: Any = None
    for j in range(steps):
        gates = signal if j == 0 else torch.addmm(signal, states[-1], recurrent.mT)  # type: ignore[union-attr]
        before_i, before_f, before_g, before_o = gates.chunk(4, dim=-1)
        i, g, o = before_i.sigmoid(), before_g.tanh(), before_o.sigmoid()
        f: Any = None if cell is None else before_f.sigmoid()
        cell_before = cell
        cell = i * g if cell is None else torch.addcmul(i * g, f, cell)
        squashed = cell.tanh()
        states.append(o * squashed)
        saved.append((i, f, g, o, squashed, cell_before))
    return torch.stack(states), saved


def lstm_backward(grad_states: Tensor, saved: list[tuple[Any, ...]], recurrent: Tensor | None) -> list[Tensor]:
    """Gradients of the gates before their non-linearities, step by step, each (N, 4 * hidden)."""
    steps = len(saved)
    grads: list[Tensor] = [grad_states] * steps
    grad_cell: Tensor | None = None
    grad_hidden: Tensor | None = None
    for j in reversed(range(steps)):
        i, f, g, o, squashed, cell_before = saved[j]
        grad = grad_states[j] if grad_hidden is None else grad_states[j] + grad_hidden
        into_cell = aten.tanh_backward(grad * o, squashed)
        grad_cell = into_cell if grad_cell is None else into_cell.add_(grad_cell)
        parts = [
            aten.sigmoid_backward(grad_cell * g, i),
            torch.zeros_like(i) if f is None else aten.sigmoid_backward(grad_cell * cell_before, f),
            aten.tanh_backward(grad_cell * i, g),
            aten.sigmoid_backward(grad * squashed, o),
        ]
        grads[j] = torch.cat(parts, dim=-1)
        if j > 0:
            assert recurrent is not None
            grad_cell = grad_cell * f
            grad_hidden = grads[j] @ recurrent
    return grads


def order_statistics(usage: Tensor, least_used: int) -> tuple[Tensor, Tensor]:
    """The `l_I`-th smallest and the largest usage (..., 1) of each row.

    numpy sorts short rows of floats with vector instructions: 0.2 ms for 2,304 rows of 50 on one core, where torch's
    `kthvalue` takes 1.9 ms.
    """
    if usage.device.type == "cpu" and usage.dtype in (torch.float32, torch.float64):
        ordered = torch.from_numpy(np.sort(usage.numpy(), axis=-1))
    else:
        ordered = usage.sort(dim=-1).values
    return ordered[..., least_used - 1 : least_used], ordered[..., -1:]


def attend(content: Tensor, interpolation: Tensor, least_used: int) -> tuple[Tensor, list[tuple[Any, ...]]]:
    """Attention w (3, J, N, H, P), and what the backward needs of each step after the first.

    Masks are floats: torch multiplies those by vector instructions, but converts booleans one by one.
    """
    attention = interpolation * content
    saved: list[tuple[Any, ...]] = []
    steps = attention.unbind(1)
    usage = steps[0]
    for j, (before, w, g) in enumerate(zip(steps, steps[1:], interpolation.unbind(1)[1:], strict=False)):
        if j > 0:
            usage = torch.maximum(usage, before)
        threshold, largest = order_statistics(usage, least_used)
        chosen = torch.le(usage, threshold, out=torch.empty_like(usage))
        idle = torch.sub(largest, usage).mul_(chosen)
        w.add_(idle).addcmul_(g, idle, value=-1)
        saved.append((usage, idle, chosen, largest))
    return attention, saved


def attend_backward(
    grad: Tensor, content: Tensor, interpolation: Tensor, attention: Tensor, saved: list[tuple[Any, ...]]
) -> tuple[Tensor, Tensor]:
    """Gradients of content attention and of the gates before the sigmoid; overwrites `grad`."""
    grad_usage: Tensor | None = None
    by_step = list(zip(grad.unbind(1), attention.unbind(1), interpolation.unbind(1), strict=True))
    for (grad_w, w, g), step in zip(reversed(by_step), reversed(saved), strict=False):
        usage, idle, chosen, largest = step
        if grad_usage is not None:  # m_{j+1} = max(m_j, w_j): to the larger one, a tie split evenly
            from_later = torch.sub(w, usage).sign_().add_(1).mul_(0.5).mul_(grad_usage)
            grad_w.add_(from_later)
            grad_usage.sub_(from_later)
        grad_idle = torch.addcmul(grad_w, grad_w, g, value=-1).mul_(chosen)
        top = torch.eq(usage, largest, out=torch.empty_like(usage))
        spread = grad_idle.sum(dim=-1, keepdim=True).div_(top.sum(dim=-1, keepdim=True))
        grad_idle.neg_().addcmul_(top, spread)
        grad_usage = grad_idle if grad_usage is None else grad_idle.add_(grad_usage)
    if grad_usage is not None:
        grad[:, 0].add_(grad_usage)
    grad.mul_(interpolation)  # of the content; times content minus least-used and (1 - g), of the gates
    grad_gates = content * grad
    for into_gates, (into_content, _, _), (_, idle, _, _) in zip(
        grad_gates.unbind(1)[1:], by_step[1:], saved, strict=True
    ):
        into_gates.addcmul_(into_content, idle, value=-1)
    return grad, grad_gates.addcmul_(grad_gates, interpolation, value=-1)


def forward(
    projected: Tensor,
    input_bias: Tensor,
    recurrent: Tensor | None,
    signal: Sequence[Tensor],
    keys: Tensor,
    values: Tensor,
    gate_bias: Tensor | None,
    program: ProgramConfig,
) -> list[Any]:
    """The composition core.

    Args:
        projected: what reads the input: slots (N, P), composition network (N, 4 * hidden) and, with a gated residual,
            integration network (N, 1), side by side; further columns are ignored, and get no gradient.
        input_bias, gate_bias: the biases of the latter two.
        recurrent: W_hh, for more than one step.
        signal: weight and bias of the composition signal.
        keys: k (3, P, K) as the key networks made them.
        values: M_S (P, 1).

    Returns:
        e (N, P); scale = gate * sigma_r (N, 1), or None without gate; what the backward needs
    """
    steps, heads, slots, key_dim, hidden = program.steps, program.heads, program.slots, program.key_dim, program.hidden
    count = len(projected)
    rows, queried = steps * count, 3 * heads * key_dim
    weight, bias = signal
    read = projected[:, :slots]
    states, lstm = lstm_forward(projected[:, slots : slots + 4 * hidden] + input_bias, recurrent, steps)
    flat = states.view(rows, hidden)
    gates = torch.baddbmm(
        bias[queried:].view(3, 1, -1), flat.expand(3, -1, -1), weight[queried:].view(3, heads * slots, hidden).mT
    )
    interpolation = gates.sigmoid_().view(3, steps, count, heads, slots)
    queries = torch.addmm(bias[:queried], flat, weight[:queried].mT).view(rows, 3, heads, key_dim)
    queries = queries.transpose(0, 1).reshape(3, rows * heads, key_dim)
    query_norm = _inner(queries, queries).sqrt_().clamp_min_(1e-12)
    unit_queries = queries / query_norm
    key_norm = _inner(keys, keys).sqrt_().clamp_min_(1e-12)
    unit_keys = keys / key_norm
    cosine = torch.bmm(unit_queries, (program.sharpness * unit_keys).mT)
    content = _softmax_of_cosines(cosine, program.sharpness).view_as(interpolation)
    attention, usages = attend(content, interpolation, program.least_used)

    u, v, s = attention
    before = torch.matmul(s, values).squeeze(-1)  # (J, N, H), and so are the next three
    sigma = torch.nn.functional.softplus(before).transpose(0, 1).flatten(1).flip(-1).cumsum(-1).flip(-1)
    sigma = sigma.view(count, steps, heads).transpose(0, 1)
    shadow = torch.matmul(u, read.unsqueeze(-1)).squeeze(-1)
    strength = sigma * shadow
    coefficients = torch.matmul(strength.unsqueeze(-2), v).squeeze(-2)
    coefficients = coefficients[0] if steps == 1 else coefficients.sum(0)
    gate, scale = None, None
    if gate_bias is not None:
        gate = (projected[:, slots + 4 * hidden :][:, :1] + gate_bias).sigmoid_()
        scale = gate * sigma[-1, :, -1:]
    return [
        *(coefficients, scale),
        *(flat, interpolation, content, attention, query_norm, unit_queries, key_norm, unit_keys),
        *(before, sigma, shadow, strength, gate),
        *(tensor for step in lstm for tensor in step),
        *(tensor for step in usages for tensor in step),
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
    saved: Sequence[Any],
    program: ProgramConfig,
    grad_projected: Tensor,
    branch: Branch,
) -> Gradients:
    """The arguments are those of `fused.backward`, whose form without mix and whose branch this core does not have."""
    flat, interpolation, content, attention, query_norm, unit_queries, key_norm, unit_keys = saved[:8]
    before, sigma, shadow, strength, gate = saved[8:13]
    lstm, usages = _groups(saved[13 : 13 + 6 * program.steps], 6), _groups(saved[13 + 6 * program.steps :], 4)
    steps, count, heads = before.shape
    slots, key_dim, hidden = program.slots, program.key_dim, program.hidden
    rows, queried = steps * count, 3 * heads * key_dim
    weight, _ = signal
    u, v, s = attention
    read = projected[:, :slots]
    end = slots + 4 * hidden
    if projected.shape[1] > end + (gate is not None):
        grad_projected[:, end + (gate is not None) :] = 0

    grad_strength = torch.matmul(v, grad_coefficients.unsqueeze(-1)).squeeze(-1)
    into_sigma = grad_strength * shadow
    if grad_scale is not None:
        last = sigma[-1, :, -1:]
        into_sigma[-1, :, -1:] += grad_scale * gate
        grad_projected[:, end : end + 1] = aten.sigmoid_backward(grad_scale * last, gate)
    grad_shadow = grad_strength * sigma
    summed = into_sigma.transpose(0, 1).flatten(1).cumsum(-1).view(count, steps, heads).transpose(0, 1)
    grad_before = summed * before.sigmoid()
    grad_values = torch.mm(s.reshape(rows * heads, slots).mT, grad_before.reshape(rows * heads, 1))
    grad_read = torch.matmul(grad_shadow.unsqueeze(-2), u).squeeze(-2)
    torch.sum(grad_read, 0, out=grad_projected[:, :slots])

    grad = torch.empty_like(attention)
    torch.mul(grad_shadow.unsqueeze(-1), read.unsqueeze(-2), out=grad[0])
    torch.mul(strength.unsqueeze(-1), grad_coefficients.unsqueeze(-2), out=grad[1])
    torch.mul(grad_before.unsqueeze(-1), values.view(-1), out=grad[2])
    grad_content, grad_gates = attend_backward(grad, content, interpolation, attention, usages)

    weighted = grad_content.mul_(content)
    grad_cosine = weighted.addcmul_(content, weighted.sum(dim=-1, keepdim=True), value=-1)
    grad_cosine = grad_cosine.view(3, rows * heads, slots)
    if program.sharpness != 1.0:
        grad_cosine.mul_(program.sharpness)
    grad_keys = _unit_backward(torch.bmm(grad_cosine.mT, unit_queries), unit_keys, key_norm)
    grad_queries = _unit_backward(torch.bmm(grad_cosine, unit_keys), unit_queries, query_norm)
    grad_queries = grad_queries.view(3, rows, heads * key_dim).transpose(0, 1).reshape(rows, queried)

    grad_gates = grad_gates.view(3, rows, heads * slots)
    grad_weight, grad_bias = torch.empty_like(weight), weight.new_empty(len(weight))
    torch.mm(grad_queries.mT, flat, out=grad_weight[:queried])
    torch.bmm(grad_gates.mT, flat.expand(3, -1, -1), out=grad_weight[queried:].view(3, heads * slots, hidden))
    torch.sum(grad_queries, 0, out=grad_bias[:queried])
    torch.sum(grad_gates, 1, out=grad_bias[queried:].view(3, heads * slots))
    by_kind = torch.bmm(grad_gates, weight[queried:].view(3, heads * slots, hidden))
    grad_states = torch.addmm(by_kind.sum(0), grad_queries, weight[:queried])
    by_step = lstm_backward(grad_states.view(steps, count, hidden), lstm, recurrent)
    torch.sum(torch.stack(by_step), 0, out=grad_projected[:, slots:end])
    grad_recurrent = weight.new_empty(0)
    if recurrent is not None:
        grad_recurrent = torch.cat(by_step[1:]).mT @ flat[: rows - count]
    into_biases = grad_projected[:, slots:].sum(0)
    return Gradients(
        grad_projected,
        into_biases[: 4 * hidden],
        grad_recurrent,
        *([grad_weight, grad_bias], grad_keys, grad_values),
        into_biases[4 * hidden : 4 * hidden + (gate is not None)],
    )


def _groups(tensors: Sequence[Any], size: int) -> list[tuple[Any, ...]]:
    """Tensors of several steps, a tuple for each step."""
    return [tuple(tensors[start : start + size]) for start in range(0, len(tensors), size)]


def _softmax_of_cosines(scaled: Tensor, sharpness: float) -> Tensor:
    """Softmax over the last dimension of numbers in ±sharpness, overwriting them.

    They are bounded, so moderate ones need no maximum; torch's softmax is slow over few slots (0.3 ms for 2,000 rows
    of 6 on one core, against 0.04 ms).
    """
    if sharpness > 30:
        return scaled.softmax(dim=-1)
    exponentials = scaled.exp_()
    return exponentials.div_(exponentials.sum(dim=-1, keepdim=True))


def _unit_backward(grad: Tensor, unit: Tensor, norm: Tensor) -> Tensor:
    """Gradient of v from that of v / ||v||."""
    return (grad - unit * _inner(grad, unit)).div_(norm)


def _inner(a: Tensor, b: Tensor) -> Tensor:
    """Inner products (..., 1) of short vectors: a product with ones, since torch sums short rows one by one."""
    return torch.matmul(a * b, a.new_ones(a.shape[-1], 1))
