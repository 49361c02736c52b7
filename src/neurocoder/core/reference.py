"""The equations of core layers, read literally: one input at a time, with the weight built. Slow; the oracle in tests.

Every function takes the tensors of one layer, as `functional` names them, and one control or input.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .functional import CONTROL_EPSILON, EPSILON, GATE, RHO, SHARE


def blend_of_control(z: Tensor, weight: Tensor | None = None, normalise: bool = False) -> Tensor:
    """h (K,) of a control z (d_z,): z itself, or `A z`; of z over its root mean square if that is asked for."""
    if normalise:
        z = z / torch.sqrt((z * z).mean() + CONTROL_EPSILON)
    return z if weight is None else weight @ z


def table(h: Tensor, cores: Tensor, C_0: Tensor) -> Tensor:
    """`C = C_0 + sum_k h_k C_k` (P, P); diagonal tables are given as vectors."""
    C = C_0 if C_0.dim() == 2 else torch.diag(C_0)
    for k in range(len(h)):
        C = C + h[k] * (cores[k] if cores.dim() == 3 else torch.diag(cores[k]))
    return C


def steered_weight(
    z: Tensor,
    *,
    U: Tensor,
    V: Tensor,
    cores: Tensor,
    C_0: Tensor,
    shifts: Tensor | None = None,
    weight: Tensor | None = None,
    normalise: bool = False,
    R: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """`W = R + V^T C U` (d_out, d_in) of a control z (d_z,), and the offset `V^T sum_k h_k s_k` (d_out,)."""
    h = blend_of_control(z, weight, normalise)
    W = V.mT @ table(h, cores, C_0) @ U
    offset = W.new_zeros(len(W))
    if shifts is not None:
        for k in range(len(h)):
            offset = offset + V.mT @ (h[k] * shifts[k])
    return (W if R is None else W + R), offset


def bounded_weight(
    x: Tensor,
    *,
    U: Tensor,
    V: Tensor,
    cores: Tensor,
    C_0: Tensor,
    weight: Tensor,
    bias: Tensor,
    R: Tensor,
    gate: Tensor | None = None,
    serves_many: bool = False,
) -> Tensor:
    """`W = g R + s V^^T (I + D^) U^` (d_out, d_in) of an input x (d_z,), for which `D = sum_k h_k C_k`.

    Args:
        x: the input, or the means (C_in,) of an image's channels.
        U: (P, d_in); with d_in = C_in * kernel in a convolution, where the slots read the mean patch.
        serves_many: the weight is for many inputs: a bound over all directions of a, not over the a that was read.
    """
    P, d_in = U.shape
    unit = torch.stack([row / torch.sqrt((row * row).sum()) for row in U])
    a = unit.reshape(P, len(x), -1).sum(2) @ x
    n = a / torch.sqrt((a * a).mean() + EPSILON)
    h = torch.tanh(weight @ n + bias)
    D = table(h, cores, torch.zeros_like(C_0))
    d = D @ a
    excess = (D * D).sum() / P if serves_many else (d * d).sum() / ((a * a).sum() + P * EPSILON)
    C = table(h * 0, cores, C_0) + D / torch.sqrt(1 + excess)
    s = min(1.0, math.sqrt(SHARE * d_in / P))
    fixed = R.detach().flatten(1)
    held = V / torch.sqrt(1 + s**2 * (V * V).sum() / (RHO**2 * (fixed * fixed).sum()))
    W = s * held.mT @ C @ unit
    g = residual_gate(x, gate)
    return W + g * R.flatten(1)


def residual_gate(x: Tensor, gate: Tensor | None) -> Tensor | float:
    """`g = 1 + tanh(w.x / (2 |x|)) / 2`; 1 without w."""
    if gate is None:
        return 1.0
    return 1 + GATE * torch.tanh(GATE * (gate @ x) / torch.sqrt((x * x).sum()))
