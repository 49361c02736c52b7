"""What decides how programs are blended: the reader of core layers."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from . import functional as F


class CoreReader(nn.Module):
    """The blend `h (N, K)`, and the residual's gate `g (N, 1)`.

    With a control, `h = z`, or `h = A z` where K is not the control's width. Without one, `h = tanh(A n(a) + b)` of
    what the slots read, a, and `g = 1 + tanh(w.x / (2 |x|)) / 2` where d_out >= 16.

    Example:
        >>> nc.CoreLinear(8, 4, control_dim=3).reader(torch.ones(1, 3))
        tensor([[1., 1., 1.]])
    """

    def __init__(
        self,
        programs: int,
        slots: int,
        width: int,
        d_out: int,
        steered: bool,
        normalise: bool,
        **options: Any,
    ) -> None:
        super().__init__()
        self.normalise = normalise
        self.weight: nn.Parameter | None = None
        self.bias: nn.Parameter | None = None
        self.gate: nn.Parameter | None = None
        if steered:
            if programs != width:  # without a bias, which C_0 would absorb
                self.weight = nn.Parameter(torch.empty(programs, width, **options))
            return
        if slots:
            self.weight = nn.Parameter(torch.empty(programs, slots, **options))
            self.bias = nn.Parameter(torch.empty(programs, **options))
        if d_out >= F.LEAST_GATED:
            self.gate = nn.Parameter(torch.empty(width, **options))

    def start(self) -> None:
        """Starting values; the gate starts at 1."""
        options: dict[str, Any] = {"device": "cpu", "dtype": torch.float32}
        if self.weight is not None and self.bias is None:
            self.weight.copy_(torch.randn(self.weight.shape, **options) / math.sqrt(self.weight.shape[1]))
        elif self.weight is not None and self.bias is not None:
            bound = 1 / math.sqrt(self.weight.shape[1])
            for parameter in (self.weight, self.bias):
                parameter.copy_(torch.empty(parameter.shape, **options).uniform_(-bound, bound))
        if self.gate is not None:
            nn.init.zeros_(self.gate)

    def forward(self, read: Tensor) -> Tensor:
        """h (N, K) of controls z (N, d_z) or, without a control, of n(a), what the slots read (N, P)."""
        if self.normalise:
            read = F.normalised(read, F.mean_square(read, F.CONTROL_EPSILON))
        if self.weight is None:
            return read
        h = linear(read, self.weight, self.bias)
        return h if self.bias is None else torch.tanh(h)

    def residual_gate(self, rows: Tensor) -> Tensor | None:
        """g (N, 1) of inputs (N, d_z); None: 1."""
        return None if self.gate is None else F.residual_gate(rows, self.gate)
