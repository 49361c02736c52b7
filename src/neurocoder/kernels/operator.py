"""The Triton core as an operator of torch's library, which `torch.compile` and `torch.export` see as one."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from . import fused
from .fused_execution import pack
from .side_stream import SideStream, on_device_of
from .sizes import Sizes


@torch.library.custom_op("neurocoder::compose", mutates_args=())
def compose(
    projected: Tensor,
    input_bias: Tensor,
    recurrent: Tensor | None,
    packed: Tensor,
    keys: Tensor,
    values: Tensor,
    gate_bias: Tensor | None,
    sizes: list[int],
    sharpness: float,
) -> list[Tensor]:
    """`fused.forward`; `sizes` are those of `Sizes` without the sharpness."""
    tensors = (projected, input_bias, recurrent, [packed], keys, values, gate_bias)
    with on_device_of(projected):
        return fused.forward(*tensors, _sizes(sizes, sharpness))


def _sizes(sizes: list[int], sharpness: float) -> Sizes:
    steps, heads, slots, key_dim, hidden, least_used, mix, gate = sizes
    return Sizes(steps, heads, slots, key_dim, hidden, least_used, sharpness, bool(mix), bool(gate))


def _numbers(sizes: Sizes) -> list[int]:
    return [*sizes[:6], int(sizes.mix), int(sizes.gate)]


@compose.register_fake
def _(projected, input_bias, recurrent, packed, keys, values, gate_bias, sizes, sharpness):  # type: ignore[no-untyped-def]
    at = _sizes(sizes, sharpness)
    count, new = projected.shape[0], projected.new_empty
    return [
        new(count, at.mixed) if at.mix else new(0),
        new(count, 1) if at.gate else new(0),
        new(3, count, at.components, at.slots),
        new(count, at.components),
        new(5, count, at.components),
        *(new(at.steps * count, width) for width in (at.state, at.hidden, 4 * at.hidden, at.signal)),
    ]


@torch.library.custom_op("neurocoder::compose_backward", mutates_args=())
def compose_backward(
    grad_coefficients: Tensor | None,
    grad_scale: Tensor | None,
    grad_attention: Tensor | None,
    grad_sigma: Tensor | None,
    projected: Tensor,
    recurrent: Tensor | None,
    packed: Tensor,
    keys: Tensor,
    values: Tensor,
    gate_bias: Tensor | None,
    saved: list[Tensor],
    sizes: list[int],
    sharpness: float,
) -> list[Tensor]:
    """`fused.backward`."""
    branch, sums = SideStream(projected), SideStream(projected, 1)
    found = fused.backward(
        None if grad_coefficients is None else grad_coefficients.unsqueeze(0),
        None if grad_scale is None else grad_scale.unsqueeze(0),
        grad_attention,
        grad_sigma,
        projected,
        recurrent,
        [packed],
        keys,
        values,
        gate_bias,
        saved,
        _sizes(sizes, sharpness),
        branch,
        sums,
    )
    branch.join()
    sums.join()
    flat = (found.projected, found.input_bias, found.recurrent, *found.signal, *found[4:])
    return [flat[0], *(grad.clone() for grad in flat[1:])]  # an operator's outputs share no storage


@compose_backward.register_fake
def _(gc, gs, ga, gsigma, projected, recurrent, packed, keys, values, gate_bias, saved, sizes, sharpness):  # type: ignore[no-untyped-def]
    at, new = _sizes(sizes, sharpness), projected.new_empty
    return [
        new(projected.shape),
        new(4 * at.hidden),
        new(0, at.hidden) if recurrent is None else new(recurrent.shape),
        *(new(tensor.shape) for tensor in (packed, keys, values)),
        new(int(at.gate)),
    ]


def _setup(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    projected, _, recurrent, packed, keys, values, gate_bias, ctx.sizes, ctx.sharpness = inputs
    ctx.save_for_backward(projected, recurrent, packed, keys, values, gate_bias, *output[2:])


def _backward(ctx: Any, grads: list[Tensor | None]) -> tuple[Any, ...]:
    projected, recurrent, packed, keys, values, gate_bias, *saved = ctx.saved_tensors
    sizes = _sizes(ctx.sizes, ctx.sharpness)
    attention, sigma = saved[0], saved[1]

    def whole(grad: Tensor | None, *shape: int) -> Tensor:
        return projected.new_zeros(shape) if grad is None else grad.contiguous()

    count = projected.shape[0]
    into_projected, into_bias, into_recurrent, into_packed, into_keys, into_values, into_gate = compose_backward(
        whole(grads[0], count, sizes.mixed) if sizes.mix else None,
        whole(grads[1], count, 1) if sizes.gate else None,
        None if sizes.mix else whole(grads[2], *attention.shape),
        None if sizes.mix else whole(grads[3], *sigma.shape),
        *(projected, recurrent, packed, keys, values, gate_bias, saved, ctx.sizes, ctx.sharpness),
    )
    return (
        *(into_projected, into_bias, None if recurrent is None else into_recurrent),
        *(into_packed, into_keys, into_values, into_gate if sizes.gate else None),
        *(None, None),
    )


compose.register_autograd(_backward, setup_context=_setup)


def run(
    projected: Tensor,
    input_bias: Tensor,
    recurrent: Tensor | None,
    weight: Tensor,
    bias: Tensor,
    keys: Tensor,
    values: Tensor,
    gate_bias: Tensor | None,
    sizes: Sizes,
) -> list[Tensor]:
    """The operator in float32, whatever the dtypes and the autocast mode of the caller; `weight` and `bias` are the
    composition signal's."""
    with torch.autocast(projected.device.type, enabled=False):
        tensors = (projected, input_bias, recurrent, *pack(weight, bias), keys, values, gate_bias)
        whole = [None if tensor is None else tensor.float().contiguous() for tensor in tensors]
        return compose(*whole, _numbers(sizes), sizes.sharpness)
