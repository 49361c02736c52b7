"""What the two composition cores, `cpu` and `gpu`, take and return."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor


class Prepared(NamedTuple):
    """What a core makes of the parameters alone."""

    keys: Tensor
    """k for u, v, s, in the core's layout"""
    signal: Tensor
    """Weight and bias of the composition signal side by side, for states that end in a one"""


class Composed(NamedTuple):
    """What a core composes, or the gradients of it. Executed programs leave the core as coefficients, others as
    attention and sigma."""

    scale: Any
    """gate * sigma_r, one for each input; None without a gated residual"""
    coefficients: Any = None
    """e and a one for each input, in the core's layout: so the product of e with the gradient has the bias's too"""
    attention: Any = None
    """w for u, v, s (3, N, r, P)"""
    sigma: Any = None
    """(N, r)"""


class Gradients(NamedTuple):
    """Of the core's arguments; `recurrent_weight` and `integration_bias` are empty where the layer has none."""

    projected: Tensor
    """Of what reads the input (N, width)"""
    prepared: Prepared
    S: Tensor
    input_bias: Tensor
    recurrent_weight: Tensor
    integration_bias: Tensor
