"""The Program Controller: the composition network that attends to programs, the integration network that gates R."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from ..layer.start import affine
from . import functional as F
from .config import ProgramConfig
from .part import Part


class Attention(NamedTuple):
    """What the composition network decided for N inputs; each (3, N, J, H, P)."""

    content: Tensor
    interpolation: Tensor
    least_used: Tensor
    weight: Tensor


class ProgramController(Part):
    """Composition network `f_theta` (one LSTM for u, v and s, mapped to queries and gates) and, with a gated residual,
    integration network `f_phi`. Both read the control `z`, which is the layer's input by default.

    The layer calls `controller(z, keys)`, unless a kernel serves it. A hook, a subclass or a parametrization of the
    controller rules out kernels, so it is always honoured.

    Example:
        >>> layer = nc.Linear(8, 4, program=nc.ProgramConfig(slots=10, steps=2, heads=3))
        >>> attention, gate = layer.controller(torch.randn(32, 8), layer.memory.keys())
        >>> attention.weight.shape, gate.shape  # u, v and s; inputs; steps; heads; slots
        (torch.Size([3, 32, 2, 3, 10]), torch.Size([32, 1]))
    """

    recurrent_weight: nn.Parameter | None
    integration_weight: nn.Parameter | None
    integration_bias: nn.Parameter | None

    def __init__(
        self,
        control_dim: int,
        program: ProgramConfig,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.program, self.control_dim = program, control_dim
        hidden, reads = program.hidden, 3 * program.heads
        options: dict[str, Any] = {"device": device, "dtype": dtype}
        self.input_weight, self.input_bias = affine(control_dim, 4 * hidden, **options)
        # With J = 1 the recurrent weight would only ever multiply h_0 = 0.
        recurrent = affine(hidden, 4 * hidden, bias=False, **options)[0] if program.steps > 1 else None
        self.register_parameter("recurrent_weight", recurrent)
        self.signal_weight, self.signal_bias = affine(hidden, reads * (program.key_dim + program.slots), **options)
        weight, bias = affine(control_dim, 1, **options) if program.residual is True else (None, None)
        self.register_parameter("integration_weight", weight)
        self.register_parameter("integration_bias", bias)

    def queries_and_gates(self, control: Tensor) -> tuple[Tensor, Tensor]:
        """The composition signal xi: queries q (3, N, J, H, K) and gates g, after the sigmoid (3, N, J, H, P).

        Args:
            control: z (N, control_dim).
        """
        program = self.program
        read = linear(control, self.input_weight, self.input_bias)
        states = F.composition_states(read, self.recurrent_weight, program.steps)
        signal = linear(states, self.signal_weight, self.signal_bias)
        queries, gates = signal.split((3 * program.heads * program.key_dim, 3 * program.heads * program.slots), dim=-1)
        queries = queries.unflatten(-1, (3, program.heads, program.key_dim)).movedim(-3, 0)
        gates = gates.unflatten(-1, (3, program.heads, program.slots)).movedim(-3, 0)
        return queries, torch.sigmoid(gates)

    def attend(self, control: Tensor, keys: Tensor) -> Attention:
        """Attention over the slots.

        Args:
            control: z (N, control_dim).
            keys: k (3, P, K).
        """
        program = self.program
        queries, interpolation = self.queries_and_gates(control)
        content = F.content_attention(queries, keys, program.sharpness)
        weight, least_used = F.program_attention(content, interpolation, program.least_used)
        return Attention(content, interpolation, least_used, weight)

    def residual_gate(self, control: Tensor) -> Tensor | None:
        """`sigmoid(f_phi(z))`: (N, 1), or None if the residual is not gated."""
        if self.integration_weight is None:
            return None
        return torch.sigmoid(linear(control, self.integration_weight, self.integration_bias))

    def forward(self, control: Tensor, keys: Tensor) -> tuple[Attention, Tensor | None]:
        """Attention over the slots, and the gate of the residual (N, 1) or None, for z (N, control_dim)."""
        return self.attend(control, keys), self.residual_gate(control)
