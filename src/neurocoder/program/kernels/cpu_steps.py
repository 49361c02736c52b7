"""The steps of the composition over torch operations, and their backward: the composition network, an LSTM whose input
stays the same, and attention to programs. Inputs last: (J, 3, H, P, N)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten
_AS_INTEGERS = {torch.float32: torch.int32, torch.float64: torch.int64}


def lstm_forward(signal: Tensor, recurrent: Tensor | None, steps: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """`c_j = f_j c_{j-1} + i_j g_j`, `h_j = o_j tanh(c_j)` from `h_0 = c_0 = 0`.

    Args:
        signal: `W_ih x + b`, gates in the order input, forget, cell, output (4 * hidden, N).
        recurrent: W_hh (4 * hidden, hidden), for more than one step.
        steps: J.

    Returns:
        the hidden states, each followed by a one (J, hidden + 1, N); i, f, g, o (J, 4, hidden, N); c and tanh(c), both
        (J, hidden, N)
    """
    hidden, count = signal.shape[0] // 4, signal.shape[1]
    states = signal.new_empty(steps, hidden + 1, count)
    states[:, hidden] = 1
    gates = signal.new_empty(steps, 4, hidden, count)
    cells, squashed = signal.new_empty(2, steps, hidden, count).unbind()
    by_step = zip(
        *(tensor.unbind() for tensor in (states[:, :hidden], gates.view(steps, 4 * hidden, count))),
        *(tensor.unbind() for tensor in (*gates.unbind(1), cells, squashed)),
        strict=True,
    )
    before: tuple[Tensor, Tensor] | None = None  # h and c of the previous step
    for h, all_gates, i, f, g, o, cell, squash in by_step:
        logits = signal
        if before is not None:
            assert recurrent is not None
            logits = torch.addmm(signal, recurrent, before[0])
        torch.sigmoid(logits, out=all_gates)
        torch.tanh(logits[2 * hidden : 3 * hidden], out=g)
        torch.mul(i, g, out=cell)
        if before is not None:
            cell.addcmul_(f, before[1])
        torch.mul(o, torch.tanh(cell, out=squash), out=h)
        before = h, cell
    return states, gates, cells, squashed


def lstm_backward(
    grad_states: Tensor, recurrent: Tensor | None, gates: Tensor, cells: Tensor, squashed: Tensor
) -> Tensor:
    """Gradients of the gates before their non-linearities (J, 4 * hidden, N); overwrites `grad_states`.

    The factors of the gates' gradients are known from the forward, for all steps at once; only the gradients of state
    and cell go from step to step.
    """
    steps, _, hidden, count = gates.shape
    i, f, g, o = gates.unbind(1)
    slopes = torch.addcmul(gates, gates, gates, value=-1)
    slopes[:, 0].mul_(g)
    slopes[0, 1] = 0
    slopes[1:, 1].mul_(cells[:-1])
    slopes[:, 2] = aten.tanh_backward(i, g)
    slopes[:, 3].mul_(squashed)
    into_cells = aten.tanh_backward(o, squashed)
    grads = slopes.view(steps, 4 * hidden, count)
    by_step = zip(
        *(tensor.unbind() for tensor in (grad_states, slopes[:, :3], slopes[:, 3], into_cells, f, grads)), strict=True
    )
    later: tuple[Tensor, Tensor, Tensor] | None = None  # of the next step: gradients of gates and c; f
    for grad, of_cell, of_output, into_cell, forget, of_gates in reversed(list(by_step)):
        if later is not None:
            assert recurrent is not None
            grad.addmm_(recurrent.mT, later[0])
        grad_cell = into_cell.mul_(grad)
        if later is not None:
            grad_cell.addcmul_(later[1], later[2])
        of_cell.mul_(grad_cell)
        of_output.mul_(grad)
        later = of_gates, grad_cell, forget
    return grads


def smallest(usage: Tensor, rank: int) -> Tensor:
    """The `rank`-th smallest usage (..., 1, N) over the slots of a non-negative usage (..., P, N).

    numpy sorts short rows with vector instructions: 2,304 rows of 30 in 0.13 ms on one core, where torch's `sort` takes
    1.0 ms on two. As integers it takes 0.08 ms: non-negative floats sort like their bits.
    """
    integers = _AS_INTEGERS.get(usage.dtype)
    if usage.device.type == "cpu" and integers is not None:
        rows = usage.view(integers).numpy().swapaxes(-1, -2)[..., None, :, :].copy()
        rows.sort()
        return torch.from_numpy(rows[..., rank - 1].copy()).view(usage.dtype)
    return usage.sort(dim=-2).values[..., rank - 1 : rank, :]


def attend(content: Tensor, interpolation: Tensor, least_used: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """`w_j = g_j c_j + (1 - g_j) l_j`, with usage `m_j = max(w_1 .. w_{j-1})`.

    Masks are floats: torch multiplies them with vector instructions, but converts booleans one by one.

    Args:
        content, interpolation: c and g (J, 3, H, P, N).
        least_used: l_I.

    Returns:
        w (J, 3, H, P, N); of each step after the first, J - 1 in all, the usage m (..., 3, H, P, N), the factor of
        `max(m) - m` in w, 1 - g if the slot is among the least used, else 0, and max(m) (..., 3, H, 1, N)
    """
    attention = interpolation * content
    usages, passing = torch.empty_like(attention[1:]), torch.empty_like(attention[1:])
    largest = attention.new_empty(usages[:, :, :, :1].shape)
    steps = attention.unbind()
    before = None
    for w_before, w, g, usage, passed, most in zip(
        steps, steps[1:], interpolation[1:].unbind(), usages.unbind(), passing.unbind(), largest.unbind(), strict=False
    ):
        if before is None:
            usage.copy_(w_before)
        else:
            torch.maximum(before, w_before, out=usage)
        torch.amax(usage, 2, keepdim=True, out=most)
        torch.le(usage, smallest(usage, least_used), out=passed)
        passed.addcmul_(passed, g, value=-1)
        w.addcmul_(passed, torch.sub(most, usage))
        before = usage
    return attention, usages, passing, largest


def attend_backward(
    grad: Tensor,
    content: Tensor,
    interpolation: Tensor,
    attention: Tensor,
    usage: tuple[Tensor, Tensor, Tensor],
    grad_gates: Tensor,
) -> None:
    """Turns the gradient of w into that of c, in place, and fills `grad_gates` with the gradient of the gates before
    the sigmoid: `grad g (c - w)`, since `g (1 - g) (c - l) = g (c - w)`.

    `usage` is what `attend` returned besides w.
    """
    if len(attention) > 1:
        grad[0].add_(_usage_backward(grad, attention, *usage))
    grad.mul_(interpolation)
    torch.sub(content, attention, out=grad_gates).mul_(grad)


def _usage_backward(grad: Tensor, attention: Tensor, usages: Tensor, passing: Tensor, largest: Tensor) -> Tensor:
    """The gradient of the first usage; adds the contributions of later usage to the gradients of w, in place."""
    top = torch.eq(usages, largest, out=torch.empty_like(usages))
    ties = top.sum(3, keepdim=True)
    # m_{j+1} = max(m_j, w_j): the gradient goes to the larger, and ties split it evenly. The last m_j has no successor.
    newer: list[Any] = [*torch.sub(attention[1:-1], usages[:-1]).sign_().add_(1).unbind(), None]
    grad_usage: Tensor | None = None
    by_step = zip(grad[1:].unbind(), passing.unbind(), top.unbind(), ties.unbind(), newer, strict=True)
    for grad_w, passed, largest_ones, equal, now in reversed(list(by_step)):
        if grad_usage is not None:
            grad_w.addcmul_(now, grad_usage, value=0.5)
            grad_usage.addcmul_(now, grad_usage, value=-0.5)
        grad_idle = grad_w * passed
        spread = grad_idle.sum(2, keepdim=True).div_(equal)
        grad_usage = grad_idle.neg_() if grad_usage is None else grad_usage.sub_(grad_idle)
        grad_usage.addcmul_(largest_ones, spread)
    assert grad_usage is not None
    return grad_usage
