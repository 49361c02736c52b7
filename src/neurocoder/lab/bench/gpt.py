"""Blocks of a GPT whose MLPs are plain, core layers that read their own input, or core layers that a control steers."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, scaled_dot_product_attention

import neurocoder as nc

from .cases import CONTROL

BLOCKS, LENGTH, HEAD = 6, 1024, 64
"""How many, tokens of a sequence, and the width of an attention head."""


class Block(nn.Module):
    """`x + attention(n(x))`, then `x + MLP(n(x))`."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.heads = max(1, width // HEAD)
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention, self.output = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, hidden), nn.Linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        """(N, T, width) -> (N, T, width)"""
        q, k, v = self.attention(self.first(x)).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        found = scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.output(found.transpose(1, 2).flatten(2))
        return x + self.down(gelu(self.up(self.second(x)), approximate="tanh"))


class Blocks(nn.Module):
    """Some blocks, and the controls of their sequences, which steered layers take."""

    z: Tensor

    def __init__(self, name: str, widths: Sequence[int], batch: int, config: nc.CoreConfig) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*(Block(widths[0], widths[1]) for _ in range(BLOCKS)))
        self.register_buffer("z", torch.randn(batch, CONTROL))
        self.is_steered = name == "gpt-steered"
        if name != "gpt":
            control = {"control_dim": CONTROL} if self.is_steered else {}
            nc.recode(self.blocks, ["up", "down"], config, **control)

    def forward(self, x: Tensor) -> Tensor:
        """(N, T, width) -> (N, T, width)"""
        if not self.is_steered:
            return self.blocks(x)
        with nc.control(self.blocks, self.z):
            return self.blocks(x)
