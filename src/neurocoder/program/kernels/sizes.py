"""What the composition kernels specialise on: the sizes of a program, and how work is divided on the chip."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

from ...ops.launch import aligned, padded, power_of_two, precision
from ..config import ProgramConfig

ATTENTION_GRID, LSTM_GRID = 2048, 128
"""Grid sizes of the backward kernels (the attention's per kind); fixed, so that sums over inputs have a fixed order."""
_TILE = 256
"""Rows times slots in one tile of the attention kernels. Measured on an H200 over tiles of 256 to 2,048 and 1 to 4
warps: larger tiles spill registers or leave the chip idle, and few slots need more warps. Computing the gates in these
kernels too, on the matrix units, made the backward three times slower, for the same reason."""
ONE_STEP_BACKWARD = {"BS": 64, "num_warps": 2, "num_stages": 4}
"""The fastest setting tried on an H200 for few inputs, where blocks of the signal's columns run one after another."""


class Sizes:
    """What the kernels specialise on, for a program whose projection has a part for the slots or, not fused, has none.

    Widths of rows are padded, so that each row is aligned to 16 bytes.
    """

    def __init__(self, program: ProgramConfig, fused: bool) -> None:
        slots, hidden, steps, heads = program.slots, program.hidden, program.steps, program.heads
        self.steps = steps
        # Whether the projection ends with the integration network's logit.
        self.gate = program.residual is True
        # Widths of the rows that hold e and a one, a hidden state and a one, the composition signal.
        self.mixed, self.state = aligned(slots + 1), aligned(hidden + 1)
        self.signal = aligned(3 * heads * (program.key_dim + slots))
        # Constants of the attention, mix and LSTM kernels.
        powers = {"PP": power_of_two(slots), "MIX": fused}
        rows = max(2, min(64, _TILE // powers["PP"]))
        warps = 4 if slots <= 16 else 1
        self.attention: dict[str, int] = {"J": steps, "H": heads, "P": slots, "K": program.key_dim, **powers}
        self.attention |= {"BR": rows, "num_warps": warps}
        self.mixing: dict[str, int] = {"R": program.components, "P": slots, "W": self.mixed, "GATE": self.gate}
        self.mixing |= {"RP": power_of_two(program.components), "num_warps": 2, **powers}
        width = padded(hidden)
        self._lstm = {"J": steps, "H": hidden, "W": self.state, "S": self.signal, "HP": width}
        self._lstm["BS"] = min(128, 4096 // width)

    def lstm(self, count: int) -> dict[str, Any]:
        """Constants of the LSTM kernels; each program instance takes BN inputs at a time."""
        inputs = 32 if self.steps == 1 and count > 16 * LSTM_GRID else 16
        return self._lstm | {"BN": inputs, "PRECISION": precision(torch.float32)}


sizes_of = cache(Sizes)
"""The sizes of a configuration."""
