"""A program layer's hand-written forward and backward over a composition core: `cpu`, or `gpu` with Triton kernels.

There are two forms. If each input steers itself, the layer executes: x (N, d_in) becomes y (N, d_out). If one program
serves several inputs, it only composes: rows (N, control_dim) become attention and sigma for the caller to execute.
All readers of the input are one projection: the slots (if the layer executes), the composition network and the
integration network.

In the backward, the residual's large products do not depend on the composition. In a CUDA graph they run concurrently,
on a side stream.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...ops.autograd import cast, refuse_second_derivatives, without_autocast
from ...ops.launch import SideStream, on_device_of
from ...ops.torch_private import BelowAutograd
from ..tensors import IN_MEMORY, NONE, CallSpec, Composed, Gradients, Prepared, ProgramTensors
from . import cpu


@cache
def _gpu() -> Any:
    from . import gpu  # needs Triton

    return gpu


def _core(spec: CallSpec) -> Any:
    """The module that composes."""
    return cpu if spec.implementation == "cpu" else _gpu()


class Saved(NamedTuple):
    """What the backward needs besides the parameters and the core's own state."""

    x: Any
    readers: Any = None
    """The stacked weights of the readers of the input"""
    projected: Any = None
    keys: Any = None
    signal: Any = None
    scale: Any = None
    coefficients: Any = None
    V: Any = None
    R: Any = None
    xR: Any = None
    """`x R`, if the residual is gated"""


def forward(
    spec: CallSpec, x: Tensor, tensors: ProgramTensors
) -> tuple[tuple[Tensor | None, ...], Saved, ProgramTensors, Sequence[Any]]:
    """The outputs, and what the backward needs: `Saved`, the parameters in full precision, the core's state.

    Args:
        spec: how the layer runs.
        x: its inputs (N, d_in), or what the controller reads (N, control_dim) if it only composes.
        tensors: its parameters; without R and bias if it only composes.

    Returns:
        y (N, d_out), or attention (3, N, r, P), sigma (N, r) and scale (N, 1) or None, ...
    """
    core, dtype = _core(spec), spec.dtype
    full = torch.promote_types(dtype, torch.float32)
    V = xR = None
    x, side, gated = cast(x, dtype), SideStream(x), spec.program.residual is True
    with side:
        whole = tensors.composing(full)
        prepared = core.prepare(whole)
        ready = side.mark()
        R = cast(tensors.R, dtype)
        if side.active and gated and R is not None:
            xR = torch.mm(x, R.mT)
    readers = cast(_readers(spec, tensors), dtype)
    projected = cast(core.project(x, readers), full)
    side.await_mark(ready)
    composed, state = core.forward(spec, projected, prepared, whole)
    if not spec.needs_backward:
        state = ()  # frees it before the largest tensors are made
    if spec.fused:
        V, bias = cast(tensors.V, dtype), cast(tensors.bias, dtype)
        if gated and xR is None:
            xR = torch.mm(x, R.mT)
    side.join()
    outputs: tuple[Tensor | None, ...] = (composed.attention, composed.sigma, composed.scale)
    if spec.fused:
        y = core.execute(composed, V, bias, xR)
        if R is not None and xR is None:
            y.addmm_(x, R.mT)
        outputs = (y,)
    kept = Saved(x, readers, projected, prepared.keys, prepared.signal, composed.scale, composed.coefficients, V, R, xR)
    return outputs, kept, whole, state


def backward(
    spec: CallSpec,
    grads: Sequence[Any],
    kept: Saved,
    tensors: ProgramTensors,
    state: Sequence[Any],
    wants_x: bool,
    wants: ProgramTensors,
) -> tuple[Tensor | None, ProgramTensors]:
    """The gradients of x and of the parameters; large ones only if they are needed.

    Args:
        grads: gradients of the forward's outputs.
        kept, tensors, state: what the forward returned.
        wants_x, wants: whether the gradients of x and of each parameter are needed.
    """
    core, slots = _core(spec), spec.program.slots
    x, full = kept.x, kept.projected.dtype
    wants_composition = any(wants._replace(R=False, bias=False))
    side = SideStream(kept.projected)
    grad_V = grad_bias = grad_x = grad_R = ready = None
    if spec.fused:
        grad = grads[0].contiguous()
        of_xR = grad if kept.xR is None else torch.empty_like(grad)  # the gradient of `x R`
        with side:
            if wants_composition or wants.bias:
                grad_V, grad_bias = core.write_backward(grad, kept.coefficients, slots)
        into = core.execute_backward(grad, kept.V, kept.xR, kept.scale, of_xR)
        if side.active:
            with side:
                grad_x, grad_R = _residual_backward(of_xR, x, kept.R, wants_x, wants.R)
                ready = side.mark()
    else:
        into = Composed(grads[2], None, grads[0], grads[1])
    prepared = Prepared(kept.keys, kept.signal)
    found = core.backward(spec, into, kept.projected, prepared, tensors, state)
    grad_projected, found_tensors = cast(found.projected, x.dtype), NONE
    with side:
        grad_readers = cast(grad_projected.mT @ x, full) if wants_composition else None
        if found.sums is not None:
            found.sums.join()
        if grad_readers is not None:
            found_tensors = _composition_gradients(spec, grad_readers, grad_V, found, tensors)
    if spec.fused and not side.active:  # only now, to leave the caches to the composition
        grad_x, grad_R = _residual_backward(of_xR, x, kept.R, wants_x, wants.R)
    side.await_mark(ready)
    if grad_x is not None:
        grad_x.addmm_(grad_projected, kept.readers)
    elif wants_x:
        grad_x = grad_projected @ kept.readers
    side.join()
    return grad_x, found_tensors._replace(R=grad_R, bias=grad_bias if wants.bias else None)


def _composition_gradients(
    spec: CallSpec, grad_readers: Tensor, grad_V: Tensor | None, found: Gradients, tensors: ProgramTensors
) -> ProgramTensors:
    """The gradients of all parameters but R and the bias."""
    full = grad_readers.dtype
    grad_U = grad_readers[: spec.offset] if spec.fused else torch.zeros_like(tensors.U)
    grad_slots = grad_U, torch.zeros_like(tensors.V) if grad_V is None else cast(grad_V, full), found.S
    weights, biases, signal, signal_bias = _core(spec).prepare_backward(found.prepared, tensors, grad_slots)
    gated = tensors.integration_bias is not None
    return NONE._replace(
        **dict(zip(IN_MEMORY[3:], [grad for pair in zip(weights, biases, strict=True) for grad in pair], strict=True)),
        **dict(zip("UVS", grad_slots, strict=True)),
        input_weight=grad_readers[spec.offset : spec.end],
        input_bias=found.input_bias,
        recurrent_weight=None if tensors.recurrent_weight is None else found.recurrent_weight,
        signal_weight=signal,
        signal_bias=signal_bias,
        integration_weight=grad_readers[spec.end : spec.end + 1] if gated else None,
        integration_bias=found.integration_bias if gated else None,
    )


def _residual_backward(
    grad: Tensor, x: Tensor, R: Tensor | None, wants_x: bool, wants_R: bool
) -> tuple[Tensor | None, Tensor | None]:
    """Gradients of x and R from that of `x R`, if they are needed."""
    return grad @ R if wants_x and R is not None else None, grad.mT @ x if wants_R else None


def _readers(spec: CallSpec, tensors: ProgramTensors) -> Tensor:
    """The stacked weights of the readers of the input (slots, LSTM, gate). On a GPU they are padded to a multiple of
    eight rows, so that the projection's rows are aligned to 16 bytes, as fast matrix products need."""
    parts = [tensors.U, tensors.input_weight] if spec.fused else [tensors.input_weight]
    parts += [] if tensors.integration_weight is None else [tensors.integration_weight]
    missing = -sum(map(len, parts)) % 8 if tensors.U.is_cuda else 0
    if missing:
        spare = tensors.input_weight
        parts.append(spare[:missing] if missing <= len(spare) else spare.new_zeros(missing, spare.shape[1]))
    return torch.cat(parts)  # the projection's columns from padding rows are ignored


_UNSAVED: Any = dict.fromkeys(("key_u_bias", "key_v_bias", "key_s_bias", "input_bias", "signal_bias"))
"""Parameters that the backward does not use."""


def eager_forward(
    spec: CallSpec, x: Tensor, tensors: ProgramTensors
) -> tuple[tuple[Any, ...], Saved, ProgramTensors, Any]:
    """`forward` for eager mode. Operations run below autograd, which makes each one cheaper."""
    with without_autocast(x), on_device_of(x), BelowAutograd():
        return forward(spec, x, tensors)


class ProgramFunction(torch.autograd.Function):
    """`forward` and `backward` for eager mode where a backward may follow, below autograd."""

    @staticmethod
    def forward(ctx: Any, spec: CallSpec, x: Tensor, *parameters: Tensor | None) -> Any:
        """Arguments and results are those of `layer.forward`, with the parameters one by one."""
        outputs, kept, tensors, state = eager_forward(spec, x, ProgramTensors(*parameters))
        ctx.spec, ctx.state_type = spec, type(state)
        # Everything goes through save_for_backward, so that activation checkpointing can drop it.
        ctx.save_for_backward(*kept, *tensors._replace(**_UNSAVED), *state)
        return outputs if len(outputs) > 1 else outputs[0]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Any, ...]:
        """The gradients from `layer.backward`."""
        refuse_second_derivatives()
        _, wants_x, *wants = ctx.needs_input_grad
        saved = list(ctx.saved_tensors)  # once: activation checkpointing may recompute them, and unpacks only once
        with without_autocast(saved[0]), BelowAutograd():
            first, second = len(Saved._fields), len(Saved._fields) + len(ProgramTensors._fields)
            kept, tensors = Saved(*saved[:first]), ProgramTensors(*saved[first:second])
            state = ctx.state_type(*saved[second:])
            grad_x, found = backward(ctx.spec, grads, kept, tensors, state, wants_x, ProgramTensors(*wants))
        return None, grad_x, *found
