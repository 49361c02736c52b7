"""The composition core on a GPU, as Triton kernels.

What reads the input arrives as one projection (N, [P +] 4 * hidden [+ 1]): what the slots read, the composition
network's input, the integration network's logit. With the first part the core returns the mix `e`; without, as for
programs that serve several inputs, it leaves the attentions and sigma for the caller to execute.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..config import ProgramConfig
from .branch import Branch
from .gradients import Gradients
from .rounding import aligned, cdiv, padded, power_of_two
from .triton_attention import attention_backward_kernel, attention_forward_kernel
from .triton_layer import (
    execute_backward_kernel,
    execute_kernel,
    keys_backward_kernel,
    keys_forward_kernel,
    sum_shares_kernel,
)
from .triton_lstm import lstm_backward_kernel, lstm_forward_kernel
from .triton_mix import mix_backward_kernel, mix_forward_kernel

_PROGRAMS, _LSTM_PROGRAMS = 2048, 128
"""Programs of the backward kernels, of the attention's for each kind; fixed, so that sums over inputs have a fixed
order."""
_TILE = 256
"""Rows times slots of one tile of the attention kernels. Measured on an H200 over tiles of 256 to 2,048 and 1 to 4
warps: larger ones spill registers or leave the chip idle, and few slots want more warps. With the gates computed in the
kernels too, by matrix units, the backward took three times as long, for the same reason."""
_ONE_STEP_BACKWARD = {"BS": 64, "num_warps": 2, "num_stages": 4}
"""The fastest of those tried on an H200 for few inputs, where blocks of the signal's columns follow each other."""
_EXECUTE_PROGRAMS = 64
"""Programs of the execution's backward below which its columns are split."""


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

    @property
    def mixed(self) -> int:
        """Width of the rows that hold e and a one."""
        return aligned(self.slots + 1)

    @property
    def state(self) -> int:
        """Width of the rows that hold a hidden state and a one."""
        return aligned(self.hidden + 1)

    @property
    def signal(self) -> int:
        """Width of the composition signal, padded."""
        return aligned(3 * self.heads * (self.key_dim + self.slots))

    def lstm(self, count: int) -> dict[str, Any]:
        """Constants of the LSTM kernels; BN inputs of one program at a time."""
        width = padded(self.hidden)
        inputs = 32 if self.steps == 1 and count > 16 * _LSTM_PROGRAMS else 16
        sizes = {"J": self.steps, "H": self.hidden, "W": self.state, "S": self.signal, "HP": width, "BN": inputs}
        return sizes | {"BS": min(128, 4096 // width), "PRECISION": _precision(torch.float32)}

    def attention(self) -> dict[str, int]:
        """Constants of the attention kernels."""
        slots = power_of_two(self.slots)
        rows = max(2, min(64, _TILE // slots))
        sizes = {"J": self.steps, "H": self.heads, "P": self.slots, "K": self.key_dim, "MIX": self.mix}
        return sizes | {"PP": slots, "BR": rows, "num_warps": 4 if slots <= 16 else 1}

    def mixing(self) -> dict[str, int]:
        """Constants of the mix kernels."""
        sizes = {"R": self.components, "P": self.slots, "W": self.mixed, "MIX": self.mix, "GATE": self.gate}
        powers = {"RP": power_of_two(self.components), "PP": power_of_two(self.slots)}
        return sizes | powers | {"num_warps": 2}


def sizes_of(program: ProgramConfig, mix: bool = True) -> Sizes:
    """The sizes of a configuration."""
    shape = (program.steps, program.heads, program.slots, program.key_dim, program.hidden)
    return Sizes(*shape, program.least_used, program.sharpness, mix, program.residual is True)


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
    branch: Branch,
    sums: Branch,
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
    programs = min(cdiv(count * sizes.heads, tiles["BR"]), _PROGRAMS)
    constants = sizes.lstm(count)
    lstm_programs = min(cdiv(count, constants["BN"]), _LSTM_PROGRAMS)
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
            **(constants | _ONE_STEP_BACKWARD if recurrent is None else constants),
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


def prepare(
    slots: Sequence[Tensor], networks: Sequence[Tensor], weight: Tensor, bias: Tensor
) -> tuple[Tensor, list[Tensor]]:
    """k (3, P, K) from M_U, M_V, M_S and weight and bias of each key network; and the signal's weight (rows, hidden)
    and bias side by side, padded."""
    left, right, _ = slots
    count, key_dim = len(left), len(networks[0])
    rows, hidden = weight.shape
    keys, packed = left.new_empty(3, count, key_dim), weight.new_empty(aligned(rows), aligned(hidden + 1))
    sizes = {"P": count, "K": key_dim, "KP": power_of_two(key_dim), "BD": 512}
    keys_forward_kernel[count, 4](
        *(*slots, *networks, keys, weight, bias, packed, left.shape[1], right.shape[1], rows, len(packed)),
        C=hidden,
        W=packed.shape[1],
        PACK=512,
        **sizes,
    )
    return keys, [packed]


def pack(weight: Tensor, bias: Tensor) -> list[Tensor]:
    """The signal's weight (rows, hidden) and bias side by side, padded, by torch operations."""
    rows, hidden = weight.shape
    both = torch.cat([weight, bias.unsqueeze(1)], dim=1)
    return [torch.nn.functional.pad(both, (0, aligned(hidden + 1) - hidden - 1, 0, aligned(rows) - rows))]


def prepare_backward(
    grad_keys: Tensor,
    grad_signal: Sequence[Tensor],
    slots: Sequence[Tensor],
    weights: Sequence[Tensor],
    weight: Tensor,
    grad_slots: Sequence[Tensor],
) -> tuple[list[Tensor], Tensor, Tensor]:
    """Gradients of weight and bias of each key network, and of those of the signal; adds to those of the slots, in
    place."""
    left, right, _ = slots
    count, key_dim = len(left), len(weights[0])
    grads, biases = [torch.empty_like(tensor) for tensor in weights], left.new_empty(3, key_dim)
    rows, hidden = weight.shape
    grad_weight, grad_bias = torch.empty_like(weight), weight.new_empty(rows)
    sizes = {"P": count, "K": key_dim, "PP": padded(count), "KP": padded(key_dim), "BD": 32}
    widths = left.shape[1], right.shape[1]
    keys_backward_kernel[cdiv(max(widths), 32), 4](
        *(grad_keys, *slots, *weights, *grad_slots, *grads, biases, grad_signal[0], grad_weight, grad_bias),
        *(*widths, rows),
        C=hidden,
        W=grad_signal[0].shape[1],
        PACK=512,
        **sizes,
    )
    return [tensor for pair in zip(grads, biases, strict=True) for tensor in pair], grad_weight, grad_bias


def project(x: Tensor, readers: Tensor) -> Tensor:
    """What reads the input (N, width) for x (N, d_in) and readers (width, d_in)."""
    return torch.mm(x, readers.mT)


def _precision(dtype: torch.dtype) -> str:
    """Products in the kernels are as exact as torch's own."""
    rough = torch.backends.cuda.matmul.fp32_precision == "tf32" or dtype != torch.float32
    return "tf32" if rough else "tf32x3"


def _tiles(right: Tensor) -> dict[str, Any]:
    """Constants of the execution's kernels for M_V (P, d_out)."""
    return {"P": len(right), "PP": padded(len(right)), "PRECISION": _precision(right.dtype)}


def execute(
    coefficients: Tensor, right: Tensor, bias: Tensor | None, plain: Tensor | None, scale: Tensor | None
) -> Tensor:
    """`y = e M_V + bias + scale * (x R)` (N, d_out) for e (N, mixed), M_V (P, d_out); `plain` is `x R`."""
    count, d_out = len(coefficients), right.shape[1]
    y = right.new_empty(count, d_out)
    if count:
        constants = {"BIAS": bias is not None, "SCALED": plain is not None, "BN": 32, "BD": 128, **_tiles(right)}
        execute_kernel[cdiv(count, 32), cdiv(d_out, 128)](
            coefficients,
            coefficients.stride(0),
            right,
            right if bias is None else bias,
            right if plain is None else plain,
            right if scale is None else scale,
            y,
            count,
            d_out,
            num_warps=8,
            **constants,
        )
    return y


def execute_backward(
    grad: Tensor, right: Tensor, plain: Tensor | None, scale: Tensor, scaled: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    """Shares of the gradients of e (parts, N, P) and of the scale (parts, N, 1) (None without); fills `scaled` with
    `scale * grad`. Few inputs are split by columns, so that they fill the chip."""
    count, (slots, d_out) = len(grad), right.shape
    tiles = _tiles(right)
    block = min(128, 8192 // tiles["PP"], padded(d_out))  # 80 KB on chip at most
    blocks, programs = cdiv(d_out, block), max(1, cdiv(count, 16))
    parts = power_of_two(min(blocks, max(1, _EXECUTE_PROGRAMS // programs)))
    grad_coefficients = scale.new_empty(parts, count, slots)
    grad_scale = None if plain is None else scale.new_empty(parts, count, 1)
    if count:
        execute_backward_kernel[programs, parts](
            grad,
            right,
            right if plain is None else plain,
            scale,
            grad_coefficients,
            right if grad_scale is None else grad_scale,
            right if scaled is None else scaled,
            count,
            d_out,
            cdiv(blocks, parts) * block,
            SCALED=plain is not None,
            BN=16,
            BD=block,
            num_warps=2,
            num_stages=3,
            **tiles,
        )
    return grad_coefficients, grad_scale


def right_backward(grad: Tensor, coefficients: Tensor, slots: int) -> tuple[Tensor, Tensor]:
    """Gradients of M_V (P, d_out) and of the bias."""
    summed = coefficients.to(grad.dtype).mT @ grad
    return summed[:slots], summed[slots]
