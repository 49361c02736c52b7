"""The tensors of a program layer as one named tuple, passed between a layer, autograd and the kernels."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch


def cast(tensor: Any, dtype: torch.dtype) -> Any:
    """A tensor, or None, in this dtype; `tensor.to` is ten times slower where there is nothing to do."""
    return tensor if tensor is None or tensor.dtype == dtype else tensor.to(dtype)


class ProgramTensors(NamedTuple):
    """A layer's parameters, their gradients, or whether these are needed; None for what the layer does not have.

    The names are those of the parameters in `ProgramMemory`, `ProgramController` and the layer itself.
    """

    U: Any
    """M_U (P, d_in)"""
    V: Any
    """M_V (P, d_out)"""
    S: Any
    """M_S (P, 1)"""
    key_u_weight: Any
    """(K, d_in)"""
    key_u_bias: Any
    key_v_weight: Any
    """(K, d_out)"""
    key_v_bias: Any
    key_s_weight: Any
    """(K, 1)"""
    key_s_bias: Any
    input_bias: Any
    """(4 * hidden,)"""
    recurrent_weight: Any
    """(4 * hidden, hidden), for more than one step"""
    signal_weight: Any
    """(3 * H * (K + P), hidden): queries first"""
    signal_bias: Any
    integration_bias: Any
    """(1,), for a gated residual"""
    input_weight: Any
    """(4 * hidden, control_dim)"""
    integration_weight: Any
    """(1, control_dim), for a gated residual"""
    R: Any
    """(d_out, d_in); None if the layer executes the residual itself"""
    bias: Any
    """(d_out,)"""

    def composing(self, dtype: torch.dtype) -> ProgramTensors:
        """What the composition takes, in its own precision: all but the input projections, R and the bias."""
        return ProgramTensors(*[cast(tensor, dtype) for tensor in self[:_COMPOSING]], *_OTHERS)

    @property
    def memory(self) -> tuple[Any, ...]:
        """M_U, M_V, M_S; weight and bias of the key networks for u, v, s."""
        return self[:_MEMORY]

    @property
    def slots(self) -> tuple[Any, Any, Any]:
        """M_U, M_V, M_S."""
        return self.U, self.V, self.S

    @property
    def key_weights(self) -> tuple[Any, Any, Any]:
        """The weights of the key networks for u, v, s."""
        return self.key_u_weight, self.key_v_weight, self.key_s_weight

    @property
    def key_biases(self) -> tuple[Any, Any, Any]:
        """The biases of the key networks for u, v, s."""
        return self.key_u_bias, self.key_v_bias, self.key_s_bias


_MEMORY = ProgramTensors._fields.index("input_bias")
_COMPOSING = ProgramTensors._fields.index("input_weight")
_OTHERS = (None,) * (len(ProgramTensors._fields) - _COMPOSING)
NONE = ProgramTensors(*[None] * len(ProgramTensors._fields))
