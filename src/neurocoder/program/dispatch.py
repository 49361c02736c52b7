"""The composition of programs: one operation, and the choice of its implementation for a call.

`compose` returns the active program, in factored form, of each row that a controller reads; every layer kind executes
it in its own way. If the inputs of a linear layer steer themselves and a kernel serves it, `compose_and_execute` does
both at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from ..ops.backend import TORCH, Choice, choose, is_traced
from ..ops.part import has_global_hooks
from . import functional as F
from . import reference
from .controller import ProgramController
from .kernels.autograd import Form, ProgramFunction, eager_forward
from .memory import ProgramMemory

if TYPE_CHECKING:
    from .layer import ProgramLayer


class ActiveProgram(NamedTuple):
    """`P_t = sum_n sigma_n (w^u_n M_U)^T (w^v_n M_V)` for N rows, factored, and the factor of the residual."""

    U: Tensor
    """M_U (P, d_in)"""
    V: Tensor
    """M_V (P, d_out)"""
    u: Tensor
    """w^u (N, r, P)"""
    v: Tensor
    """w^v (N, r, P)"""
    sigma: Tensor
    """(N, r)"""
    scale: Tensor | None
    """gate * sigma_r (N, 1), or None if the residual is not gated"""

    def execute(self, read: Tensor) -> Tensor:
        """e (N, T, P), with x P_t = e M_V, from a = x M_U^T (N, T, P), for T inputs per program."""
        return F.execute(read, self.u, self.v, self.sigma)


def implementation(layer: ProgramLayer, rows: Tensor) -> Choice:
    """Which implementation serves this layer: "torch", which calls the modules, if a user changed them."""
    memory, controller = layer.memory, layer.controller
    if memory.is_changed(ProgramMemory) or controller.is_changed(ProgramController) or has_global_hooks():
        return TORCH
    return choose(memory.U, rows, layer.config)


def compose(choice: Choice, layer: ProgramLayer, rows: Tensor) -> ActiveProgram:
    """The active programs of rows (N, control width), for the layer to execute."""
    if choice.has_kernel:
        attention, sigma, scale = _run(choice, layer, rows, executes=False)
        dtype = choice.dtype
        u, v, sigma = (tensor.to(dtype) for tensor in (attention[0], attention[1], sigma))
        return ActiveProgram(layer.memory.U, layer.memory.V, u, v, sigma, None if scale is None else scale.to(dtype))
    slots = layer.memory()
    if choice.name == "reference" and len(rows):
        parameters = dict(layer.named_parameters())
        traces = [reference.compose(parameters, layer.config, z) for z in rows]
        u, v, _ = torch.stack([trace.attention for trace in traces], dim=1)
        sigma = torch.stack([trace.sigma for trace in traces])
        gates = [trace.gate for trace in traces if trace.gate is not None]
        gate = torch.stack(gates) if gates else None
    else:
        attention, gate = layer.controller(rows, slots.keys)
        u, v, s = attention.weight.flatten(2, 3)
        sigma = F.singular_values(s, slots.S)
    return ActiveProgram(slots.U, slots.V, u, v, sigma, None if gate is None else sigma[:, -1:] * gate)


def compose_and_execute(choice: Choice, layer: ProgramLayer, x: Tensor) -> Tensor:
    """`y = x W_t + bias` (N, d_out) for inputs (N, d_in) that steer themselves; needs a choice with a kernel."""
    return _run(choice, layer, x, executes=True)


def _run(choice: Choice, layer: ProgramLayer, rows: Tensor, executes: bool) -> Any:
    """The hand-written layer: as an autograd function if a backward may follow, as an operator while traced."""
    assert choice.dtype is not None
    form = Form(choice.name == "triton", layer.config, choice.dtype, executes, torch.is_grad_enabled())
    tensors, rows = layer.tensors(executes), rows.contiguous()
    if form.triton and is_traced():
        from .kernels.operator import run_operator

        outputs: Any = run_operator(form, rows, tensors)
    elif form.keeps:
        return ProgramFunction.apply(form, rows, *tensors)
    else:
        outputs = eager_forward(form, rows, tensors)[0]
    return outputs[0] if executes else outputs
