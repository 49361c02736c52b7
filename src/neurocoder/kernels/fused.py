"""The composition core on a GPU: Triton kernels around one small matrix product.

What reads the input arrives as one projection (N, [P +] 4 * hidden [+ 1]): what the slots read, the composition
network's input, the integration network's logit. With the first part the core returns the mix `e`; without, as for
programs that serve several inputs, it leaves the attentions and sigma for the caller to execute.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import triton
from torch import Tensor

from ..config import ProgramConfig
from .triton_attention import (
    attention_backward_kernel,
    attention_forward_kernel,
    mix_backward_kernel,
    mix_forward_kernel,
)
from .triton_layer import keys_backward_kernel, keys_forward_kernel, scale_backward_kernel, scale_forward_kernel
from .triton_lstm import lstm_backward_kernel, lstm_forward_kernel

_PROGRAMS = 2048
"""Programs a kind in the backward; fixed, so that sums over inputs have a fixed order."""
_TILE = 256
"""Rows times slots of one tile of the attention kernels. Measured on an H200 over tiles of 256 to 2,048 and 1 to 4
warps: larger ones spill registers or leave the chip idle, and few slots want more warps."""
_INPUTS = 16
"""Inputs of one LSTM program."""


class Sizes(NamedTuple):
    """What the kernels specialise on; `mix` and `gate`: which parts the projection has."""

    steps: int
    heads: int
    slots: int
    key_dim: int
    hidden: int
    least_used: int
    sharpness: float
    mix: bool
    gate: bool

    @property
    def components(self) -> int:
        """r"""
        return self.steps * self.heads

    @property
    def offset(self) -> int:
        """Where in the projection the composition network's input begins."""
        return self.slots if self.mix else 0

    @property
    def logit(self) -> int:
        """Where in the projection the integration network's logit stands."""
        return self.offset + 4 * self.hidden

    def lstm(self) -> dict[str, int]:
        """Constants of the LSTM kernels."""
        padded = max(16, triton.next_power_of_2(self.hidden))
        return {"J": self.steps, "H": self.hidden, "HP": padded, "BN": _INPUTS}

    def attention(self) -> dict[str, int]:
        """Constants of the attention kernels."""
        slots = triton.next_power_of_2(self.slots)
        rows = max(2, min(64, _TILE // slots))
        sizes = {"J": self.steps, "H": self.heads, "P": self.slots, "K": self.key_dim, "MIX": self.mix}
        return sizes | {"PP": slots, "BR": rows, "num_warps": 4 if slots <= 16 else 1}

    def mixing(self) -> dict[str, int]:
        """Constants of the mix kernels."""
        sizes = {"R": self.components, "P": self.slots, "MIX": self.mix, "GATE": self.gate, "num_warps": 2}
        return sizes | {"RP": triton.next_power_of_2(self.components), "PP": triton.next_power_of_2(self.slots)}


def sizes_of(program: ProgramConfig, mix: bool = True) -> Sizes:
    """The sizes of a configuration."""
    shape = (program.steps, program.heads, program.slots, program.key_dim, program.hidden)
    return Sizes(*shape, program.least_used, program.sharpness, mix, program.residual is True)


def forward(
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
    """All in float32, rows contiguous.

    Returns:
        e (N, P) (empty without mix), scale = gate * sigma_r (N, 1) (empty without gate), attention (3, N, r, P),
        sigma (N, r), and five more that the backward needs
    """
    count, hidden, slots, r = len(projected), sizes.hidden, sizes.slots, sizes.components
    new = projected.new_empty
    coefficients, scale = new(count, slots) if sizes.mix else new(0), new(count, 1) if sizes.gate else new(0)
    attention, sigma, small = new(3, count, r, slots), new(count, r), new(5, count, r)
    states, cells, gates = (
        new(sizes.steps, count, hidden),
        new(sizes.steps, count, hidden),
        new(sizes.steps, count, 4 * hidden),
    )
    if count == 0:
        return [coefficients, scale, attention, sigma, small, states, cells, gates, new(0, -(-len(bias) // 4) * 4)]
    stride = projected.stride(0)
    lstm_forward_kernel[triton.cdiv(count, _INPUTS),](
        projected[:, sizes.offset :],
        stride,
        input_bias,
        input_bias if recurrent is None else recurrent,
        states,
        cells,
        gates,
        count,
        **sizes.lstm(),
    )
    # Rows begin at multiples of 16 bytes, for fast products with them in the backward.
    signal = new(sizes.steps * count, -(-len(bias) // 4) * 4)
    torch.addmm(bias, states.view(-1, hidden), weight.mT, out=signal[:, : len(bias)])
    tiles = sizes.attention()
    before, shadows, thresholds = small[0], small[1], small[2:]
    attention_forward_kernel[triton.cdiv(count * sizes.heads, tiles["BR"]), 3](
        signal,
        signal.stride(0),
        keys,
        values,
        projected,
        stride,
        attention,
        thresholds,
        before,
        shadows,
        sizes.sharpness,
        count,
        LEAST=sizes.least_used,
        **tiles,
    )
    mix_forward_kernel[count,](
        attention,
        before,
        shadows,
        projected[:, sizes.logit :],
        stride,
        bias if gate_bias is None else gate_bias,
        sigma,
        coefficients,
        scale,
        count,
        **sizes.mixing(),
    )
    return [coefficients, scale, attention, sigma, small, states, cells, gates, signal]


def backward(
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
    sizes: Sizes,
) -> list[Tensor]:
    """Gradients of the projection, the recurrent weight (empty without), weight and bias of the signal, keys, M_S.

    `saved` is what the forward returned from the attention on. `grad_attention` and `grad_sigma` are for the form
    without mix.
    """
    attention, sigma, small, states, cells, gates, signal = saved
    count, hidden = len(projected), sizes.hidden
    new = projected.new_empty
    grad_projected, grad_recurrent = torch.zeros_like(projected), new(0)  # zero in columns that only pad
    if count == 0:
        if recurrent is not None:
            grad_recurrent = torch.zeros_like(recurrent)
        grads = (
            torch.zeros_like(weight),
            weight.new_zeros(len(weight)),
            torch.zeros_like(keys),
            torch.zeros_like(values),
        )
        return [grad_projected, grad_recurrent, *grads]
    before, shadows, thresholds = small[0], small[1], small[2:]
    factors = new(3, count, sizes.components)
    unused = projected
    stride = projected.stride(0)
    logits, grad_logits = projected[:, sizes.logit :], grad_projected[:, sizes.logit :]
    mix_backward_kernel[count,](
        unused if grad_coefficients is None else grad_coefficients,
        unused if grad_sigma is None else grad_sigma,
        unused if grad_scale is None else grad_scale,
        attention,
        before,
        shadows,
        sigma,
        logits,
        stride,
        unused if gate_bias is None else gate_bias,
        factors,
        grad_projected,
        grad_logits,
        grad_projected.stride(0),
        count,
        **sizes.mixing(),
    )
    tiles = sizes.attention()
    programs = min(triton.cdiv(count * sizes.heads, tiles["BR"]), _PROGRAMS)
    grad_signal = torch.empty_like(signal)
    partial = new(programs, keys.numel() + sizes.slots)
    attention_backward_kernel[programs, 3](
        signal,
        signal.stride(0),
        keys,
        values,
        projected if grad_attention is None else grad_attention[0],
        stride,
        grad_coefficients if grad_attention is None else grad_attention[1],
        attention,
        thresholds,
        factors,
        grad_signal,
        partial,
        sizes.sharpness,
        count,
        KP=triton.next_power_of_2(sizes.key_dim),
        **tiles,
    )
    grad_gates = torch.empty_like(gates)
    grad_signal = grad_signal[:, : len(weight)]
    lstm_backward_kernel[triton.cdiv(count, _INPUTS),](
        grad_signal @ weight,
        unused if recurrent is None else recurrent,
        cells,
        gates,
        grad_gates,
        grad_projected[:, sizes.offset :],
        grad_projected.stride(0),
        count,
        **sizes.lstm(),
    )
    if recurrent is not None:
        grad_recurrent = grad_gates[1:].view(-1, 4 * hidden).mT @ states[:-1].view(-1, hidden)
    summed = partial.sum(0)
    return [
        grad_projected,
        grad_recurrent,
        grad_signal.mT @ states.view(-1, hidden),
        grad_signal.sum(0),
        summed[: keys.numel()].view_as(keys),
        summed[keys.numel() :].view_as(values),
    ]


def make_keys(slots: Sequence[Tensor], networks: Sequence[Tensor]) -> Tensor:
    """k (3, P, K) from M_U, M_V, M_S and weight and bias of each key network."""
    left, right, _ = slots
    count, key_dim = len(left), len(networks[0])
    keys = left.new_empty(3, count, key_dim)
    sizes = {"P": count, "K": key_dim, "KP": triton.next_power_of_2(key_dim), "BD": 512}
    keys_forward_kernel[count, 3](*slots, *networks, keys, left.shape[1], right.shape[1], **sizes)
    return keys


def keys_backward(
    grad_keys: Tensor, slots: Sequence[Tensor], weights: Sequence[Tensor], grad_slots: Sequence[Tensor]
) -> list[Tensor]:
    """Gradients of weight and bias of each key network; adds to those of the slots, in place."""
    left, right, _ = slots
    count, key_dim = len(left), len(weights[0])
    grads, biases = [torch.empty_like(weight) for weight in weights], left.new_empty(3, key_dim)
    sizes = {"P": count, "K": key_dim, "PP": triton.next_power_of_2(count), "BD": 32}
    widths = left.shape[1], right.shape[1]
    keys_backward_kernel[triton.cdiv(max(widths), 32), 3](
        grad_keys, *slots, *weights, *grad_slots, *grads, biases, *widths, **sizes
    )
    return [tensor for pair in zip(grads, biases, strict=True) for tensor in pair]


def scale_rows(x: Tensor, scale: Tensor) -> Tensor:
    """`scale * x` for x (N, D) and scale (N, 1)."""
    scaled = torch.empty_like(x)
    if len(x):
        scale_forward_kernel[len(x), triton.cdiv(x.shape[1], 1024)](x, scale, scaled, x.shape[1], BD=1024)
    return scaled


def scale_backward(grad: Tensor, x: Tensor, scale: Tensor, keep: bool) -> Tensor:
    """`<G, x>` (N, 1) of each row; with `keep`, `grad` is multiplied by the scale in place."""
    grad_scale = torch.empty_like(scale)
    if len(x):
        scale_backward_kernel[len(x),](grad, x, scale, grad_scale, x.shape[1], KEEP=keep, BD=1024)
    return grad_scale
