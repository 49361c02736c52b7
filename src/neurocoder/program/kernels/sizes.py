"""What the composition kernels specialise on: the sizes of a program, and how work is divided on the chip."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, cached_property
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


@dataclass(frozen=True)
class Sizes:
    """What the kernels specialise on; `mix` and `gate` say which parts the projection has."""

    steps: int
    heads: int
    slots: int
    key_dim: int
    hidden: int
    least_used: int
    sharpness: float
    mix: bool
    gate: bool

    @cached_property
    def components(self) -> int:
        """r"""
        return self.steps * self.heads

    @cached_property
    def offset(self) -> int:
        """Where the composition network's input begins in the projection."""
        return self.slots if self.mix else 0

    @cached_property
    def logit(self) -> int:
        """Where the integration network's logit is in the projection."""
        return self.offset + 4 * self.hidden

    @cached_property
    def mixed(self) -> int:
        """Width of the rows that hold e and a one."""
        return aligned(self.slots + 1)

    @cached_property
    def state(self) -> int:
        """Width of the rows that hold a hidden state and a one."""
        return aligned(self.hidden + 1)

    @cached_property
    def signal(self) -> int:
        """Width of the composition signal, padded."""
        return aligned(3 * self.heads * (self.key_dim + self.slots))

    def lstm(self, count: int) -> dict[str, Any]:
        """Constants of the LSTM kernels; each program instance takes BN inputs at a time."""
        inputs = 32 if self.steps == 1 and count > 16 * LSTM_GRID else 16
        return self._lstm | {"BN": inputs, "PRECISION": precision(torch.float32)}

    @cached_property
    def _lstm(self) -> dict[str, Any]:
        width = padded(self.hidden)
        sizes = {"J": self.steps, "H": self.hidden, "W": self.state, "S": self.signal, "HP": width}
        return sizes | {"BS": min(128, 4096 // width)}

    @cached_property
    def attention(self) -> dict[str, int]:
        """Constants of the attention kernels."""
        slots = power_of_two(self.slots)
        rows = max(2, min(64, _TILE // slots))
        sizes = {"J": self.steps, "H": self.heads, "P": self.slots, "K": self.key_dim, "MIX": self.mix}
        return sizes | {"PP": slots, "BR": rows, "num_warps": 4 if slots <= 16 else 1}

    @cached_property
    def mixing(self) -> dict[str, int]:
        """Constants of the mix kernels."""
        sizes = {"R": self.components, "P": self.slots, "W": self.mixed, "MIX": self.mix, "GATE": self.gate}
        powers = {"RP": power_of_two(self.components), "PP": power_of_two(self.slots)}
        return sizes | powers | {"num_warps": 2}


@cache
def sizes_of(program: ProgramConfig, mix: bool = True) -> Sizes:
    """The sizes of a configuration."""
    shape = (program.steps, program.heads, program.slots, program.key_dim, program.hidden)
    return Sizes(*shape, program.least_used, program.sharpness, mix, program.residual is True)
