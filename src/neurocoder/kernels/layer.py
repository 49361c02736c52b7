"""The whole linear program layer as one autograd function, for eager mode: few operations, and few tensors kept.

What reads the input is one projection. In the backward, the large products of the residual depend on nothing that is
composed, so that in a CUDA graph they run beside it.

No operation in here is recorded by autograd, so all go below it, which shortens each.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch._C import _AutoDispatchBelowAutograd as BelowAutograd

from ..config import ProgramConfig
from . import cpu
from .side_stream import SideStream, on_device_of


def core_of(fused: bool) -> Any:
    """The module with the composition core: Triton kernels, or torch operations."""
    if not fused:
        return cpu
    from . import fused as kernels

    return kernels


class ProgramLinear(torch.autograd.Function):
    """`y = x W_t + bias` for x (N, d_in). `fused`: whether the Triton core composes, or the one in torch operations."""

    @staticmethod
    def forward(
        ctx: Any,
        fused: bool,
        program: ProgramConfig,
        dtype: torch.dtype,
        x: Tensor,
        left: Tensor,
        right: Tensor,
        values: Tensor,
        key_u: Tensor,
        key_u_bias: Tensor,
        key_v: Tensor,
        key_v_bias: Tensor,
        key_s: Tensor,
        key_s_bias: Tensor,
        input_weight: Tensor,
        input_bias: Tensor,
        recurrent: Tensor | None,
        signal: Tensor,
        signal_bias: Tensor,
        integration: Tensor | None,
        integration_bias: Tensor | None,
        residual: Tensor | None,
        bias: Tensor | None,
    ) -> Tensor:
        """Parameters of the layer in the order of the arguments; `residual` (d_out, d_in).

        Large products are in `dtype`, the composition in at least float32.
        """
        core, full = core_of(fused), torch.promote_types(dtype, torch.float32)
        with _without_autocast(x), on_device_of(x), BelowAutograd():
            x = x.to(dtype)
            plain, branch = None, SideStream(x)
            with branch:
                networks = (key_u, key_u_bias, key_v, key_v_bias, key_s, key_s_bias)
                slots, networks = _to((left, right, values), full), _to(networks, full)
                input_bias, recurrent, signal, signal_bias, gate_bias = _to(
                    (input_bias, recurrent, signal, signal_bias, integration_bias), full
                )
                keys, prepared = core.prepare(slots, networks, signal, signal_bias)
                ready = branch.mark()
                if residual is not None:
                    residual = residual.to(dtype)
                    if integration is not None:
                        plain = torch.mm(x, residual.mT)
            readers = _readers(left, input_weight, integration).to(dtype)
            projected = core.project(x, readers).to(full)
            branch.await_mark(ready)
            tensors = (projected, input_bias, recurrent, prepared, keys, slots[2], gate_bias)
            coefficients, scale, *saved = core.forward(*tensors, core.sizes_of(program))
            right, bias = right.to(dtype), None if bias is None else bias.to(dtype)
            branch.join()
            y = core.execute(coefficients, right, bias, plain, None if plain is None else scale)
            if residual is not None and plain is None:
                y.addmm_(x, residual.mT)
        ctx.fused, ctx.program, ctx.has_bias, ctx.prepared = fused, program, bias is not None, len(prepared)
        # All through save_for_backward, so that activation checkpointing can drop them.
        ctx.save_for_backward(
            *(x, *slots, *networks[::2], recurrent, signal, gate_bias, right, residual),
            *(readers, projected, keys, coefficients, scale, plain, *prepared, *saved),
        )
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        """Reverse order of the forward; the large products only where their gradient is wanted."""
        if torch.is_grad_enabled():
            raise RuntimeError(
                "this backward cannot itself be differentiated: run forward and backward inside "
                "`with nc.backend('torch'):` where create_graph=True is used"
            )
        saved = ctx.saved_tensors  # once: activation checkpointing hands them out a single time, and may compute them
        with _without_autocast(grad), BelowAutograd():
            return _backward(ctx, saved, grad)


def _without_autocast(tensor: Tensor) -> AbstractContextManager[Any]:
    """Casts are this file's own; leaving autocast costs time, so only where it is on."""
    device = tensor.device.type
    return torch.autocast(device, enabled=False) if torch.is_autocast_enabled(device) else nullcontext()


def _readers(left: Tensor, input_weight: Tensor, integration: Tensor | None) -> Tensor:
    """The weights of what reads the input, one under the other; on a GPU padded to a multiple of eight rows, so that
    the rows of the projection begin at multiples of 16 bytes, as fast matrix products want them."""
    parts = [left, input_weight] if integration is None else [left, input_weight, integration]
    missing = -sum(map(len, parts)) % 8 if left.is_cuda else 0
    if missing:
        spare = input_weight if missing <= len(input_weight) else left.new_zeros(missing, left.shape[1])
        parts.append(spare[:missing])  # any rows do: the columns that they make are ignored
    return torch.cat(parts)


def _to(tensors: Sequence[Tensor | None], dtype: torch.dtype) -> tuple[Any, ...]:
    return tuple(tensor if tensor is None or tensor.dtype == dtype else tensor.to(dtype) for tensor in tensors)


def _backward(ctx: Any, tensors: Sequence[Any], grad: Tensor) -> tuple[Any, ...]:
    """The gradients; autograd casts each to the dtype of its parameter."""
    x, left, right, values, *weights, recurrent, signal, gate_bias, right_low, residual = tensors[:12]
    readers, projected, keys, coefficients, scale, plain, *saved = tensors[12:]
    program: ProgramConfig = ctx.program
    dtype, full = x.dtype, projected.dtype
    core, gated = core_of(ctx.fused), plain is not None
    prepared, saved = saved[: ctx.prepared], saved[ctx.prepared :]
    wants_x, wants_residual = ctx.needs_input_grad[3], ctx.needs_input_grad[20]
    grad = grad.contiguous()
    scaled = torch.empty_like(grad) if gated else None
    of_plain = grad if scaled is None else scaled  # the gradient of `x R`
    wants_memory = any(ctx.needs_input_grad[4:20])
    branch, sums = SideStream(grad), SideStream(grad, 1)
    grad_right = grad_bias = None
    with branch:
        if wants_memory or ctx.needs_input_grad[21]:
            grad_right, grad_bias = core.right_backward(grad, coefficients, program.slots)
    grad_coefficients, grad_scale = core.execute_backward(grad, right_low, plain, scale, scaled)
    if branch.beside:
        with branch:
            grad_x, grad_residual = _plain_backward(of_plain, x, residual, wants_x, wants_residual)
            ready = branch.mark()
    found = core.backward(
        *(grad_coefficients, grad_scale, None, None),
        *(projected, recurrent, prepared, keys, values, gate_bias, saved, core.sizes_of(program), branch, sums),
    )
    into_projected = found.projected.to(dtype)
    of_memory: tuple[Any, ...] = (None,) * 16
    with branch:
        grad_readers = (into_projected.mT @ x).to(full) if wants_memory else None
        sums.join()
        if grad_readers is not None and grad_right is not None:
            slots, end = program.slots, program.slots + 4 * program.hidden
            grad_slots = (grad_readers[:slots], grad_right.to(full), found.values)
            grad_networks, *grad_signal = core.prepare_backward(
                found.keys, found.signal, (left, right, values), weights, signal, grad_slots
            )
            of_memory = (
                *grad_slots,
                *grad_networks,
                *(grad_readers[slots:end], found.input_bias),
                None if recurrent is None else found.recurrent,
                *grad_signal,
                *((grad_readers[end : end + 1], found.gate_bias) if gated else (None, None)),
            )
    if branch.beside:
        branch.await_mark(ready)
    else:  # now, so as to leave the caches to the composition before
        grad_x, grad_residual = _plain_backward(of_plain, x, residual, wants_x, wants_residual)
    if grad_x is not None:
        grad_x.addmm_(into_projected, readers)
    elif wants_x:
        grad_x = into_projected @ readers
    branch.join()
    return None, None, None, grad_x, *of_memory, grad_residual, grad_bias if ctx.has_bias else None


def _plain_backward(
    grad: Tensor, x: Tensor, residual: Tensor | None, wants_x: bool, wants_residual: bool
) -> tuple[Tensor | None, Tensor | None]:
    """Gradients of x and R from that of `x R`, where they are wanted."""
    into_x = grad @ residual if wants_x and residual is not None else None
    return into_x, grad.mT @ x if wants_residual else None
