"""What the two composition cores, `cpu` and `gpu`, take and return."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor


class Prepared(NamedTuple):
    """What a core computes from the parameters alone."""

    keys: Tensor
    """k for u, v, s, in the core's layout"""
    signal: Tensor
    """Weight and bias of the composition signal, concatenated, for states that end in a one"""


class Composed(NamedTuple):
    """What a core composes, or its gradients. Executed programs leave the core as coefficients, others as attention
    and sigma."""

    scale: Any
    """gate * sigma_r, one per input; None without a gated residual"""
    coefficients: Any = None
    """e and a one per input, in the core's layout: the product with the gradient then includes the bias's gradient"""
    attention: Any = None
    """w for u, v, s (3, N, r, P)"""
    sigma: Any = None
    """(N, r)"""


class Gradients(NamedTuple):
    """Gradients of the core's arguments; `recurrent_weight` and `integration_bias` are empty if the layer has none."""

    projected: Tensor
    """Of the input projections (N, width)"""
    prepared: Prepared
    S: Tensor
    input_bias: Tensor
    recurrent_weight: Tensor
    integration_bias: Tensor
