"""What the backward of a composition core finds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor


class Gradients(NamedTuple):
    """Of the core's arguments, by their names; `recurrent` and `gate_bias` are empty where the layer has none.

    `signal` is what the core's `prepare` makes of the composition signal's weight and bias.
    """

    projected: Tensor
    input_bias: Tensor
    recurrent: Tensor
    signal: Sequence[Tensor]
    keys: Tensor
    values: Tensor
    gate_bias: Tensor
