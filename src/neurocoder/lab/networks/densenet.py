"""DenseNet (Huang et al., 2017) without bottlenecks: every layer reads the outputs of all before it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import adaptive_avg_pool2d, avg_pool2d, batch_norm
from torch.utils.checkpoint import checkpoint

FIRST = 16
"""Channels of the first convolution."""


class NormReLU(nn.BatchNorm2d):
    """Batch norm and ReLU of several feature maps as one; activation checkpointing may compute it again."""

    recomputing = False

    def forward(self, *parts: Tensor) -> Tensor:
        """Parts (N, C_i, H, W) -> (N, sum C_i, H, W)"""
        x = torch.cat(parts, 1) if len(parts) > 1 else parts[0]
        if not self.recomputing:
            return super().forward(x).relu()
        # The batch's own statistics again; the running ones already moved the first time, so now copies of them do.
        mean, var = (None if r is None else r.clone() for r in (self.running_mean, self.running_var))
        return batch_norm(x, mean, var, self.weight, self.bias, True, 0.0, self.eps).relu()

    @contextmanager
    def again(self) -> Iterator[None]:
        """Within it, running statistics stay as they are."""
        self.recomputing = True
        try:
            yield
        finally:
            self.recomputing = False


class DenseLayer(nn.Module):
    """`growth` new channels from all that came before."""

    def __init__(self, channels: int, growth: int, checkpointing: bool) -> None:
        super().__init__()
        self.norm = NormReLU(channels)
        self.convolution = nn.Conv2d(channels, growth, 3, padding=1, bias=False)
        self.checkpointing = checkpointing

    def forward(self, *parts: Tensor) -> Tensor:
        """Parts (N, C_i, H, W) -> (N, growth, H, W)"""
        if not (self.checkpointing and self.training and torch.is_grad_enabled()):
            return self.grow(*parts)
        # Nothing in it is random; saving the generators would wait for the device.
        options: Any = {"use_reentrant": False, "preserve_rng_state": False}
        return checkpoint(self.grow, *parts, **options, context_fn=lambda: (nullcontext(), self.norm.again()))

    def grow(self, *parts: Tensor) -> Tensor:
        """The same, keeping all that the backward needs."""
        return self.convolution(self.norm(*parts))


class Transition(nn.Module):
    """Between blocks: a 1 x 1 convolution that keeps the number of channels, and half the resolution."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = NormReLU(channels)
        self.convolution = nn.Conv2d(channels, channels, 1, bias=False)

    def forward(self, *parts: Tensor) -> Tensor:
        """Parts (N, C_i, H, W) -> (N, sum C_i, H / 2, W / 2)"""
        return avg_pool2d(self.convolution(self.norm(*parts)), 2)


class DenseNet(nn.Module):
    """Three dense blocks: 7.0M parameters with depth 100 and growth 12, as in the paper.

    Args:
        classes: number of outputs.
        depth: layers with weights; 3 per layer of a block, and 4 more.
        growth: channels that each layer adds.
        checkpointing: compute each layer again in the backward instead of keeping what it read: the memory of
            activations grows linearly with depth, not quadratically; values and gradients are the same.
    """

    def __init__(self, classes: int, depth: int = 100, growth: int = 12, checkpointing: bool = False) -> None:
        super().__init__()
        if type(depth) is not int or depth < 7 or (depth - 4) % 3:
            raise ValueError(f"depth must be 7, 10, 13, ..., got {depth!r}")
        self.checkpointing = checkpointing
        self.first = nn.Conv2d(3, FIRST, 3, padding=1, bias=False)
        self.blocks, self.transitions = nn.ModuleList(), nn.ModuleList()
        channels = FIRST
        for block in range(3):
            layers = [DenseLayer(channels + growth * i, growth, checkpointing) for i in range((depth - 4) // 3)]
            self.blocks.append(nn.ModuleList(layers))
            channels += growth * len(layers)
            if block < 2:
                self.transitions.append(Transition(channels))
        self.norm = NormReLU(channels)
        self.classifier = nn.Linear(channels, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight)
        nn.init.zeros_(self.classifier.bias)

    def forward(self, x: Tensor) -> Tensor:
        """(N, 3, 32, 32) -> (N, classes)"""
        parts = [self.first(x)]
        for index, block in enumerate(self.blocks):
            for layer in block:  # type: ignore[attr-defined]  # a ModuleList in a ModuleList
                parts.append(layer(*parts))
                if not self.checkpointing:  # as one tensor, so that the backward adds once a layer, not once a pair
                    parts = [torch.cat(parts, 1)]
            if index < 2:
                parts = [self.transitions[index](*parts)]
        return self.classifier(adaptive_avg_pool2d(self.norm(*parts), 1).flatten(1))
