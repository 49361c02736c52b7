"""The composition core on a GPU, as Triton kernels.

What reads the input arrives as one projection (N, [P +] 4 * hidden [+ 1]): what the slots read, the composition
network's input, the integration network's logit. With the first part the core returns the mix `e`; without, as for
programs that serve several inputs, it leaves the attentions and sigma for the caller to execute.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .fused_execution import execute, execute_backward, prepare, prepare_backward, project, right_backward
from .gradients import Gradients
from .rounding import cdiv, power_of_two
from .side_stream import SideStream
from .sizes import LSTM_PROGRAMS, ONE_STEP_BACKWARD, PROGRAMS, Sizes, sizes_of
from .triton_attention import attention_backward_kernel, attention_forward_kernel
from .triton_layer import sum_shares_kernel
from .triton_lstm import lstm_backward_kernel, lstm_forward_kernel
from .triton_mix import mix_backward_kernel, mix_forward_kernel

__all__ = [
    "backward",
    "execute",
    "execute_backward",
    "forward",
    "prepare",
    "prepare_backward",
    "project",
    "right_backward",
    "sizes_of",
]


def forward(
    projected: Tensor,
    input_bias: Tensor,
    recurrent: Tensor | None,
    signal: Sequence[Tensor],
    keys: Tensor,
    values: Tensor,
    gate_bias: Tensor | None,
    sizes: Sizes,
) -> list[Tensor]:
    """All in float32, rows contiguous.

    Returns:
        e and a one (N, mixed) (empty without mix), scale = gate * sigma_r (N, 1) (empty without gate), attention
        (3, N, r, P), sigma (N, r), and five more that the backward needs
    """
    count, steps, hidden, r = len(projected), sizes.steps, sizes.hidden, sizes.components
    new = projected.new_empty
    coefficients, scale = new(count, sizes.mixed) if sizes.mix else new(0), new(count, 1) if sizes.gate else new(0)
    attention, sigma, small = new(3, count, r, sizes.slots), new(count, r), new(5, count, r)
    states, cells, gates = (new(steps * count, width) for width in (sizes.state, hidden, 4 * hidden))
    if count == 0:
        return [coefficients, scale, attention, sigma, small, states, cells, gates, new(0, sizes.signal)]
    stride = projected.stride(0)
    constants = sizes.lstm(count)
    composition = new(count, sizes.signal) if recurrent is None else states
    blocks = cdiv(sizes.signal, constants["BS"]) if recurrent is None else 1
    lstm_forward_kernel[cdiv(count, constants["BN"]), blocks](
        projected[:, sizes.offset :],
        stride,
        input_bias,
        input_bias if recurrent is None else recurrent,
        signal[0],
        states,
        cells,
        gates,
        composition,
        count,
        **constants,
    )
    if recurrent is not None:
        composition = states @ signal[0].mT
    tiles = sizes.attention()
    before, shadows, thresholds = small[0], small[1], small[2:]
    attention_forward_kernel[cdiv(count * sizes.heads, tiles["BR"]), 3](
        composition,
        sizes.signal,
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
        keys if gate_bias is None else gate_bias,
        sigma,
        coefficients,
        scale,
        count,
        **sizes.mixing(),
    )
    return [coefficients, scale, attention, sigma, small, states, cells, gates, composition]


def backward(
    grad_coefficients: Tensor | None,
    grad_scale: Tensor | None,
    grad_attention: Tensor | None,
    grad_sigma: Tensor | None,
    projected: Tensor,
    recurrent: Tensor | None,
    signal: Sequence[Tensor],
    keys: Tensor,
    values: Tensor,
    gate_bias: Tensor | None,
    saved: list[Tensor],
    sizes: Sizes,
    branch: SideStream,
    sums: SideStream,
) -> Gradients:
    """The gradients: that of the projection on the main path, that of the signal in one branch, all others in the
    other.

    `grad_coefficients` (parts, N, ...) and `grad_scale` (parts, N, 1) are shares of which the sums are meant; those of
    the first may be overwritten. `saved` is what the forward returned from the attention on. `grad_attention` and
    `grad_sigma` are for the form without mix.
    """
    attention, sigma, small, states, cells, gates, composition = saved
    count, hidden = len(projected), sizes.hidden
    new = projected.new_empty
    tiles = sizes.attention()
    programs = min(cdiv(count * sizes.heads, tiles["BR"]), PROGRAMS)
    constants = sizes.lstm(count)
    lstm_programs = min(cdiv(count, constants["BN"]), LSTM_PROGRAMS)
    square = 0 if recurrent is None else recurrent.numel()
    shares = new(programs, keys.numel() + sizes.slots), new(lstm_programs, square + 4 * hidden + 1)
    of_keys, of_lstm = (new(share.shape[1]) if count else share.new_zeros(share.shape[1]) for share in shares)
    grad_projected, grad_composition = torch.empty_like(projected), torch.empty_like(composition)
    if count:
        before, shadows, thresholds = small[0], small[1], small[2:]
        factors, unused = new(3, count, sizes.components), projected
        stride = projected.stride(0)
        into_mix = unused if grad_coefficients is None else grad_coefficients
        mix_backward_kernel[count,](
            into_mix,
            into_mix.stride(-2),
            unused if grad_sigma is None else grad_sigma,
            unused if grad_scale is None else grad_scale,
            attention,
            before,
            shadows,
            sigma,
            projected[:, sizes.logit :],
            stride,
            unused if gate_bias is None else gate_bias,
            factors,
            grad_projected,
            grad_projected[:, sizes.logit :],
            grad_composition,
            count,
            PARTS=1 if grad_coefficients is None else len(grad_coefficients),
            J=sizes.steps,
            SIGNAL=3 * sizes.heads * (sizes.key_dim + sizes.slots),
            SIGNAL_STRIDE=sizes.signal,
            **sizes.mixing(),
        )
        attention_backward_kernel[programs, 3](
            composition,
            sizes.signal,
            keys,
            values,
            projected if grad_attention is None else grad_attention[0],
            stride,
            into_mix if grad_attention is None else grad_attention[1],
            into_mix.stride(-2),
            attention,
            thresholds,
            factors,
            grad_composition,
            shares[0],
            sizes.sharpness,
            count,
            KP=power_of_two(sizes.key_dim),
            **tiles,
        )
        branch.keep(grad_composition, *shares)
        with branch:
            grad_signal = grad_composition.mT @ states
        lstm_backward_kernel[lstm_programs,](
            grad_composition if recurrent is None else grad_composition @ signal[0],
            unused if recurrent is None else recurrent,
            signal[0],
            states,
            cells,
            gates,
            grad_projected[:, sizes.offset :],
            stride,
            shares[1],
            count,
            GATE=int(sizes.gate),
            PAD=projected.shape[1] - sizes.logit - sizes.gate,
            **(constants | ONE_STEP_BACKWARD if recurrent is None else constants),
        )
        blocks = sum(cdiv(share.shape[1], 16) for share in shares)
        described = (shares[0], of_keys, *shares[0].shape, shares[1], of_lstm, *shares[1].shape)
        with sums:
            sum_shares_kernel[blocks,](*described, BR=256, BC=16)
    else:
        grad_signal = torch.zeros_like(signal[0])
    return Gradients(
        grad_projected,
        of_lstm[square : square + 4 * hidden],
        of_lstm[:square].view(-1, hidden),
        [grad_signal],
        of_keys[: keys.numel()].view_as(keys),
        of_keys[keys.numel() :].view_as(values),
        of_lstm[-1 if sizes.gate else len(of_lstm) :],
    )
