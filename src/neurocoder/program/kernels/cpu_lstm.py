"""The composition network over torch operations: an LSTM whose input stays the same, inputs last, and its backward."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

aten = torch.ops.aten


class States(NamedTuple):
    """The composition network's values at every step."""

    states: Tensor
    """Hidden states, each followed by a one (J, hidden + 1, N)"""
    gates: Tensor
    """i, f, g, o (J, 4, hidden, N)"""
    cells: Tensor
    """c (J, hidden, N)"""
    squashed: Tensor
    """tanh(c) (J, hidden, N)"""


def lstm_forward(signal: Tensor, recurrent: Tensor | None, steps: int) -> States:
    """`c_j = f_j c_{j-1} + i_j g_j`, `h_j = o_j tanh(c_j)` from `h_0 = c_0 = 0`.

    Args:
        signal: `W_ih x + b`, gates in the order input, forget, cell, output (4 * hidden, N).
        recurrent: W_hh (4 * hidden, hidden), for more than one step.
        steps: J.
    """
    hidden, count = len(signal) // 4, signal.shape[1]
    states = signal.new_empty(steps, hidden + 1, count)
    states[:, hidden] = 1
    gates = signal.new_empty(steps, 4, hidden, count)
    cells, squashed = signal.new_empty(2, steps, hidden, count)
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
    return States(states, gates, cells, squashed)


def lstm_backward(grad_states: Tensor, recurrent: Tensor | None, saved: States) -> Tensor:
    """Gradients of the gates before their non-linearities (J, 4 * hidden, N); overwrites `grad_states`.

    The factors of the gates' gradients are known from the forward, for all steps at once; only the gradients of state
    and cell go from step to step.
    """
    _, gates, cells, squashed = saved
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
