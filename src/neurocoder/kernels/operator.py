"""The Triton core as an operator of torch's library, which `torch.compile` and `torch.export` see as one."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from . import fused
from .fused import Sizes


@torch.library.custom_op("neurocoder::compose", mutates_args=())
def compose(
    projected: Tensor,
    input_bias: Tensor,
    recurrent: Tensor | None,
    weight: Tensor,
    bias: Tensor,
    keys: Tensor,
    values: Tensor,
    gate_bias: Tensor | None,
    sizes: list[int],
    sharpness: float,
) -> list[Tensor]:
    """`fused.forward`; `sizes` are those of `Sizes` without the sharpness."""
    tensors = (projected, input_bias, recurrent, weight, bias, keys, values, gate_bias)
    return fused.forward(*tensors, _sizes(sizes, sharpness))


def _sizes(sizes: list[int], sharpness: float) -> Sizes:
    steps, heads, slots, key_dim, hidden, least_used, mix, gate = sizes
    return Sizes(steps, heads, slots, key_dim, hidden, least_used, sharpness, bool(mix), bool(gate))


def _numbers(sizes: Sizes) -> list[int]:
    return [*sizes[:6], int(sizes.mix), int(sizes.gate)]


@compose.register_fake
def _(projected, input_bias, recurrent, weight, bias, keys, values, gate_bias, sizes, sharpness):  # type: ignore[no-untyped-def]
    at = _sizes(sizes, sharpness)
    count, new = projected.shape[0], projected.new_empty
    return [
        new(count, at.slots) if at.mix else new(0),
        new(count, 1) if at.gate else new(0),
        new(3, count, at.components, at.slots),
        new(count, at.components),
        new(5, count, at.components),
        new(at.steps, count, at.hidden),
        new(at.steps, count, at.hidden),
        new(at.steps, count, 4 * at.hidden),
        new(at.steps * count, -(-bias.shape[0] // 4) * 4),
    ]


@torch.library.custom_op("neurocoder::compose_backward", mutates_args=())
def compose_backward(
    grad_coefficients: Tensor | None,
    grad_scale: Tensor | None,
    grad_attention: Tensor | None,
    grad_sigma: Tensor | None,
    projected: Tensor,
    recurrent: Tensor | None,
    weight: Tensor,
    keys: Tensor,
    values: Tensor,
    gate_bias: Tensor | None,
    saved: list[Tensor],
    sizes: list[int],
    sharpness: float,
) -> list[Tensor]:
    """`fused.backward`."""
    *others, grad_keys, grad_values = fused.backward(
        grad_coefficients,
        grad_scale,
        grad_attention,
        grad_sigma,
        projected,
        recurrent,
        weight,
        keys,
        values,
        gate_bias,
        saved,
        _sizes(sizes, sharpness),
    )
    return [*others, grad_keys.clone(), grad_values.clone()]  # an operator's outputs share no storage


@compose_backward.register_fake
def _(gc, gs, ga, gsigma, projected, recurrent, weight, keys, values, gate_bias, saved, sizes, sharpness):  # type: ignore[no-untyped-def]
    new = projected.new_empty
    return [
        new(projected.shape),
        new(0) if recurrent is None else new(recurrent.shape),
        new(weight.shape),
        new(weight.shape[0]),
        new(keys.shape),
        new(values.shape),
    ]


def _setup(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    projected, input_bias, recurrent, weight, _, keys, values, gate_bias, ctx.sizes, ctx.sharpness = inputs
    ctx.input_width = input_bias.shape[0]
    ctx.save_for_backward(projected, recurrent, weight, keys, values, gate_bias, *output[2:])


def _backward(ctx: Any, grads: list[Tensor | None]) -> tuple[Any, ...]:
    projected, recurrent, weight, keys, values, gate_bias, *saved = ctx.saved_tensors
    sizes = _sizes(ctx.sizes, ctx.sharpness)
    attention, sigma = saved[0], saved[1]

    def whole(grad: Tensor | None, like: Tensor) -> Tensor:
        return torch.zeros_like(like) if grad is None else grad.contiguous()

    rows = projected.new_zeros(projected.shape[0], 1)
    grad_coefficients = whole(grads[0], projected[:, : sizes.slots].contiguous()) if sizes.mix else None
    found = compose_backward(
        grad_coefficients,
        whole(grads[1], rows) if sizes.gate else None,
        None if sizes.mix else whole(grads[2], attention),
        None if sizes.mix else whole(grads[3], sigma),
        *(projected, recurrent, weight, keys, values, gate_bias, saved, ctx.sizes, ctx.sharpness),
    )
    grad_projected, grad_recurrent, grad_weight, grad_bias, grad_keys, grad_values = found
    biases = grad_projected.sum(0)
    return (
        grad_projected,
        biases[sizes.offset : sizes.offset + ctx.input_width],
        None if recurrent is None else grad_recurrent,
        *(grad_weight, grad_bias, grad_keys, grad_values),
        biases[sizes.logit : sizes.logit + 1] if sizes.gate else None,
        *(None, None),
    )


compose.register_autograd(_backward, setup_context=_setup)


def run(tensors: tuple[Tensor | None, ...], sizes: Sizes) -> list[Tensor]:
    """The operator in float32, whatever the dtypes and the autocast mode of the caller."""
    device = tensors[0].device.type  # type: ignore[union-attr]  # the projection is always there
    with torch.autocast(device, enabled=False):
        whole = [None if tensor is None else tensor.float().contiguous() for tensor in tensors]
        return compose(*whole, _numbers(sizes), sizes.sharpness)
