"""Composition and mix as one autograd function over torch operations, with its backward written by hand.

Autograd over `neurocoder.functional` keeps every intermediate and runs an operation for each. Here operations are fewer
and larger, and the backward keeps five tensors a step. It is the path of eager mode; the arithmetic is `functional`'s.

Layout: kinds first, then steps, (3, J, N, H, P), so that one batched product reads all gates and a step is one slice.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ..config import ProgramConfig

aten = torch.ops.aten


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
    usage = attention[:, 0]
    for j in range(1, content.shape[1]):
        if j > 1:
            usage = torch.maximum(usage, attention[:, j - 1])
        threshold, largest = order_statistics(usage, least_used)
        chosen = torch.le(usage, threshold, out=torch.empty_like(usage))
        idle = torch.sub(largest, usage).mul_(chosen)
        attention[:, j].add_(idle).addcmul_(interpolation[:, j], idle, value=-1)
        saved.append((usage, idle, chosen, largest))
    return attention, saved


def attend_backward(
    grad: Tensor, content: Tensor, interpolation: Tensor, attention: Tensor, saved: list[tuple[Any, ...]]
) -> tuple[Tensor, Tensor]:
    """Gradients of content attention and of the gates before the sigmoid; overwrites `grad`."""
    difference = content.clone() if saved else content
    grad_usage: Tensor | None = None
    for j in reversed(range(1, content.shape[1])):
        usage, idle, chosen, largest = saved[j - 1]
        if grad_usage is not None:  # m_{j+1} = max(m_j, w_j): to the larger one, a tie split evenly
            from_later = torch.sub(attention[:, j], usage).sign_().add_(1).mul_(0.5).mul_(grad_usage)
            grad[:, j].add_(from_later)
            grad_usage.sub_(from_later)
        difference[:, j].sub_(idle)
        grad_idle = torch.addcmul(grad[:, j], grad[:, j], interpolation[:, j], value=-1).mul_(chosen)
        top = torch.eq(usage, largest, out=torch.empty_like(usage))
        spread = grad_idle.sum(dim=-1, keepdim=True).div_(top.sum(dim=-1, keepdim=True))
        grad_idle.neg_().addcmul_(top, spread)
        grad_usage = grad_idle if grad_usage is None else grad_idle.add_(grad_usage)
    if grad_usage is not None:
        grad[:, 0].add_(grad_usage)
    grad_gates = aten.sigmoid_backward(grad * difference, interpolation)
    return grad.mul_(interpolation), grad_gates


class ComposeAndMix(torch.autograd.Function):
    """From the composition network's input signal and what the slots read of x, to coefficients of the right slots."""

    @staticmethod
    def forward(
        ctx: Any,
        signal: Tensor,
        read: Tensor,
        recurrent: Tensor | None,
        query_weight: Tensor,
        query_bias: Tensor,
        gate_weight: Tensor,
        gate_bias: Tensor,
        keys: Tensor,
        values: Tensor,
        program: ProgramConfig,
    ) -> tuple[Tensor, Tensor]:
        """Args as in `functional`; `keys` (3, P, K) as the key networks made them, `values` M_S (P, 1).

        Returns:
            e (N, P) and sigma_r (N, 1)
        """
        steps, heads, slots, count = program.steps, program.heads, program.slots, signal.shape[0]
        states, lstm = lstm_forward(signal, recurrent, steps)
        rows = steps * count
        flat = states.view(rows, program.hidden)
        gates = torch.baddbmm(
            gate_bias.view(3, 1, -1), flat.expand(3, -1, -1), gate_weight.view(3, heads * slots, -1).mT
        )
        interpolation = gates.sigmoid_().view(3, steps, count, heads, slots)
        queries = torch.addmm(query_bias, flat, query_weight.mT).view(rows, 3, heads, program.key_dim)
        query_norm = queries.norm(dim=-1, keepdim=True).clamp_min_(1e-12)
        unit_queries = (queries / query_norm).transpose(0, 1).reshape(3, rows * heads, program.key_dim)
        key_norm = keys.norm(dim=-1, keepdim=True).clamp_min_(1e-12)
        unit_keys = keys / key_norm
        cosine = torch.bmm(unit_queries, (program.sharpness * unit_keys).mT)
        content = _softmax_of_cosines(cosine, program.sharpness).view_as(interpolation)
        attention, usages = attend(content, interpolation, program.least_used)

        u, v, s = attention
        before = torch.matmul(s, values).squeeze(-1)  # (J, N, H), and so are the next three
        sigma = torch.nn.functional.softplus(before).transpose(0, 1).flatten(1).flip(-1).cumsum(-1).flip(-1)
        sigma = sigma.view(count, steps, heads).transpose(0, 1)
        projected = torch.matmul(u, read.unsqueeze(-1)).squeeze(-1)
        strength = sigma * projected
        coefficients = torch.matmul(strength.unsqueeze(-2), v).squeeze(-2).sum(0)

        ctx.program = program
        # All through save_for_backward, so that activation checkpointing can drop them.
        ctx.save_for_backward(
            *(read, recurrent, query_weight, gate_weight, values),
            *(flat, interpolation, content, attention, query_norm, unit_queries, key_norm, unit_keys),
            *(before, sigma, projected, strength),
            *(tensor for step in lstm for tensor in step),
            *(tensor for step in usages for tensor in step),
        )
        return coefficients, sigma[-1, :, -1:].clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_coefficients: Tensor, grad_last: Tensor) -> tuple[Tensor | None, ...]:
        """Reverse order of the forward."""
        program: ProgramConfig = ctx.program
        saved = ctx.saved_tensors
        read, recurrent, query_weight, gate_weight, values = saved[:5]
        flat, interpolation, content, attention, query_norm, unit_queries, key_norm, unit_keys = saved[5:13]
        before, sigma, projected, strength = saved[13:17]
        lstm = _groups(saved[17 : 17 + 6 * program.steps], 6)
        usages = _groups(saved[17 + 6 * program.steps :], 4)
        steps, count, heads = before.shape
        rows, slots, key_dim = steps * count, program.slots, program.key_dim
        u, v, s = attention

        grad_strength = torch.matmul(v, grad_coefficients.unsqueeze(-1)).squeeze(-1)
        grad_sigma = grad_strength * projected
        grad_sigma[-1, :, -1:] += grad_last
        grad_projected = grad_strength * sigma
        summed = grad_sigma.transpose(0, 1).flatten(1).cumsum(-1).view(count, steps, heads).transpose(0, 1)
        grad_before = summed * before.sigmoid()
        grad_values = torch.mm(s.reshape(rows * heads, slots).mT, grad_before.reshape(rows * heads, 1))
        grad_read = torch.matmul(grad_projected.unsqueeze(-2), u).squeeze(-2).sum(0)

        grad = torch.empty_like(attention)
        torch.mul(grad_projected.unsqueeze(-1), read.unsqueeze(-2), out=grad[0])
        torch.mul(strength.unsqueeze(-1), grad_coefficients.unsqueeze(-2), out=grad[1])
        torch.mul(grad_before.unsqueeze(-1), values.view(-1), out=grad[2])
        grad_content, grad_gates = attend_backward(grad, content, interpolation, attention, usages)

        weighted = grad_content.mul_(content)
        grad_cosine = weighted.addcmul_(content, weighted.sum(dim=-1, keepdim=True), value=-1)
        grad_cosine = grad_cosine.view(3, rows * heads, slots)
        if program.sharpness != 1.0:
            grad_cosine.mul_(program.sharpness)
        grad_unit_keys = torch.bmm(grad_cosine.mT, unit_queries)
        grad_keys = _unit_backward(grad_unit_keys, unit_keys, key_norm)
        grad_unit_queries = torch.bmm(grad_cosine, unit_keys).view(3, rows, heads, key_dim).transpose(0, 1)
        unit = unit_queries.view(3, rows, heads, key_dim).transpose(0, 1)
        grad_queries = _unit_backward(grad_unit_queries, unit, query_norm).reshape(rows, 3 * heads * key_dim)

        grad_gates = grad_gates.view(3, rows, heads * slots)
        gates_by_kind = gate_weight.view(3, heads * slots, program.hidden)
        grad_gate_weight = torch.bmm(grad_gates.mT, flat.expand(3, -1, -1)).view_as(gate_weight)
        grad_states = torch.addmm(torch.bmm(grad_gates, gates_by_kind).sum(0), grad_queries, query_weight)
        grad_query_weight = grad_queries.mT @ flat
        by_step = lstm_backward(grad_states.view(steps, count, program.hidden), lstm, recurrent)
        grad_signal = by_step[0] if steps == 1 else torch.stack(by_step).sum(0)
        grad_recurrent = None
        if recurrent is not None:
            grad_recurrent = torch.cat(by_step[1:]).mT @ flat[: (steps - 1) * count]
        return (
            grad_signal,
            grad_read,
            grad_recurrent,
            grad_query_weight,
            grad_queries.sum(0),
            grad_gate_weight,
            grad_gates.sum(1).view(-1),
            grad_keys,
            grad_values,
            None,
        )


def _groups(tensors: tuple[Tensor, ...], size: int) -> list[tuple[Any, ...]]:
    """Tensors of several steps, a tuple for each step."""
    return [tensors[start : start + size] for start in range(0, len(tensors), size)]


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
    return (grad - unit * (grad * unit).sum(-1, keepdim=True)) / norm
