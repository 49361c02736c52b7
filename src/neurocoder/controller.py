"""The Program Controller: the composition network that attends to programs, the integration network that gates R."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from . import functional as F
from .config import ProgramConfig


class Attention(NamedTuple):
    """What the composition network decided for N inputs; each (3, N, J, H, P)."""

    content: Tensor
    interpolation: Tensor
    least_used: Tensor
    weight: Tensor


class ProgramController(nn.Module):
    """Composition network `f_theta` (one LSTM for u, v and s, read out as queries and gates) and, with a gated
    residual, integration network `f_phi`. Both read the control `z`, which is the layer's input by default."""

    def __init__(
        self,
        control_dim: int,
        program: ProgramConfig,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.program = program
        hidden, reads = program.hidden, 3 * program.heads
        # With J = 1 the recurrent weight would only ever meet h_0 = 0.
        recurrent = program.steps > 1
        options: dict[str, Any] = {"device": device, "dtype": dtype}
        self.input = nn.Linear(control_dim, 4 * hidden, **options)
        self.recurrent = nn.Linear(hidden, 4 * hidden, bias=False, **options) if recurrent else None
        self.signal = nn.Linear(hidden, reads * (program.key_dim + program.slots), **options)
        self.integration = nn.Linear(control_dim, 1, **options) if program.residual is True else None

    def queries_and_gates(self, read: Tensor) -> tuple[Tensor, Tensor]:
        """The composition signal xi: queries q (3, N, J, H, K) and gates g, through the sigmoid (3, N, J, H, P).

        Args:
            read: `input(z)`, what the composition network reads of the control (N, 4 * hidden).
        """
        program = self.program
        recurrent = None if self.recurrent is None else self.recurrent.weight
        signal = self.signal(F.composition_states(read, recurrent, program.steps))
        queries, gates = signal.split((3 * program.heads * program.key_dim, 3 * program.heads * program.slots), dim=-1)
        queries = queries.unflatten(-1, (3, program.heads, program.key_dim)).movedim(-3, 0)
        gates = gates.unflatten(-1, (3, program.heads, program.slots)).movedim(-3, 0)
        return queries, torch.sigmoid(gates)

    def attend(self, read: Tensor, keys: Tensor) -> Attention:
        """Attention over the slots.

        Args:
            read: `input(z)`, what the composition network reads of the control (N, 4 * hidden).
            keys: k (3, P, K).
        """
        program = self.program
        queries, interpolation = self.queries_and_gates(read)
        content = F.content_attention(queries, keys, program.sharpness)
        weight, least_used = F.program_attention(content, interpolation, program.least_used)
        return Attention(content, interpolation, least_used, weight)

    def residual_gate(self, control: Tensor) -> Tensor | None:
        """`sigmoid(f_phi(z))`: (N, 1), or None where the residual is not gated."""
        return None if self.integration is None else torch.sigmoid(self.integration(control))
