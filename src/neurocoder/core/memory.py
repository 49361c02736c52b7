"""The memory of core layers: shared slots, and programs that are small tables over them."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from ..layer.start import orthonormal
from .config import CoreConfig

OWN_SCALE = 0.3
"""Size of the tables' first effect relative to C_0's, where the input steers itself."""
SHIFT_SCALE = 0.5
"""Size of the first offsets relative to what the slots read."""


class CoreMemory(nn.Module):
    """P slots, `U (P, d_in)` and `V (P, d_out)`, and K programs: tables `C_k (P, P)`, or (P,) if diagonal.

    Example:
        >>> memory = nc.CoreLinear(8, 4, core=nc.CoreConfig(slots=5), control_dim=3).memory
        >>> memory.U.shape, memory.cores.shape, memory.C_0.shape
        (torch.Size([5, 8]), torch.Size([3, 5, 5]), torch.Size([5, 5]))
    """

    C_0: Tensor
    """The table that all inputs share: trained with a control, else the identity, a buffer."""

    def __init__(
        self, d_in: int, d_out: int, slots: int, programs: int, steered: bool, config: CoreConfig, **options: Any
    ) -> None:
        super().__init__()
        self.config = config
        table = (slots,) if config.diagonal else (slots, slots)
        self.U = nn.Parameter(torch.empty(slots, d_in, **options))
        self.V = nn.Parameter(torch.empty(slots, d_out, **options))
        self.cores = nn.Parameter(torch.empty(programs, *table, **options))
        start = torch.empty(table, **options)
        if steered:
            self.C_0 = nn.Parameter(start)
        else:
            self.register_buffer("C_0", start)
        self.shifts = nn.Parameter(torch.empty(programs, slots, **options)) if config.shift else None
        """The offset (P,) of each program, or None."""

    def start(self, steered: bool) -> None:
        """Starting values. With a residual V is zero, so that the layer starts as the plain one.

        Without one, U and V are orthonormal, V at a scale at which inputs of unit variance give `nn.Linear`'s output
        variance, 1/3: less by sqrt(2) for a zero control, more for a control of unit variance.
        """
        (programs, slots), d_in, d_out = self.cores.shape[:2], self.U.shape[1], self.V.shape[1]
        options: dict[str, Any] = {"device": "cpu", "dtype": torch.float32}
        self.U.copy_(orthonormal(slots, d_in) if steered else torch.randn(slots, d_in, **options))
        if self.config.residual:
            nn.init.zeros_(self.V)
        else:
            variance = min(slots, d_in) / max(slots, d_out)
            self.V.copy_(orthonormal(slots, d_out) * math.sqrt(1 / (3 * math.sqrt(2) * variance)))
        scale = 1 / math.sqrt(programs) if steered else OWN_SCALE
        scale /= 1 if self.config.diagonal else math.sqrt(slots)
        self.cores.copy_(scale * torch.randn(self.cores.shape, **options))
        self.C_0.copy_(torch.ones(slots) if self.config.diagonal else torch.eye(slots))
        if self.shifts is not None:
            self.shifts.copy_(SHIFT_SCALE / math.sqrt(programs) * torch.randn(self.shifts.shape, **options))
