"""What travels between a program layer, autograd and the composition cores: how a call runs, and its tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from ..ops.autograd import cast
from .config import ProgramConfig


class CallSpec(NamedTuple):
    """How one call runs: everything but the tensors."""

    implementation: Literal["torch", "reference", "cpu", "triton", "operator"]
    """`operator`: the Triton kernels as one operator, in compiled and exported code"""
    program: ProgramConfig
    dtype: torch.dtype = torch.float32
    """Of the large products of a kernel; the composition uses at least float32."""
    fused: bool = False
    """Whether the kernel also executes what it composes."""
    needs_backward: bool = True
    """Whether a backward may follow, which needs the state."""

    @property
    def offset(self) -> int:
        """Where the composition network's part of the projection begins; the integration network's follows it."""
        return self.program.slots if self.fused else 0

    @property
    def end(self) -> int:
        """Where the composition network's part of the projection ends."""
        return self.offset + 4 * self.program.hidden


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
        composing = self[:_COMPOSING]
        if {getattr(tensor, "dtype", dtype) for tensor in composing} != {dtype}:
            composing = tuple(cast(tensor, dtype) for tensor in composing)
        return ProgramTensors(*composing, *NONE[_COMPOSING:])

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


IN_MEMORY, IN_CONTROLLER = ProgramTensors._fields[:9], ProgramTensors._fields[9:16]
"""The names of the memory's parameters and of the controller's; R and the bias are the layer's own."""
_COMPOSING = ProgramTensors._fields.index("input_weight")
NONE = ProgramTensors(*[None] * len(ProgramTensors._fields))


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
    sums: Any = None
    """The side stream that some of them are still computed on; None: none"""
    alive: Sequence[Tensor] = ()
    """What must live until the main side stream is joined"""
