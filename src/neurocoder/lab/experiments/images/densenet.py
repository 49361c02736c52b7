"""DenseNet (Huang et al., 2017) without bottlenecks: every layer reads the outputs of all before it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import adaptive_avg_pool2d, batch_norm
from torch.utils.checkpoint import checkpoint

from ....ops.backend import is_traced, is_transformed, prefers_triton
from ....ops.torch_private import has_global_hooks
from ....ops.torch_private import has_hooks as is_hooked

FIRST = 16
"""Channels of the first convolution."""
EPS, MOMENTUM = 1e-5, 0.1
"""Of the normalisations; torch's own."""


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

    @property
    def has_kernel(self) -> bool:
        """Whether kernels compute the same: nothing is replaced, hooked or set otherwise."""
        norm, convolution = self.norm, self.convolution
        own = (type(norm), type(convolution), norm.eps, norm.momentum) == (NormReLU, nn.Conv2d, EPS, MOMENTUM)
        sizes = convolution.in_channels % 4 == 0 and convolution.out_channels in (4, 8, 12)
        tracked = norm.running_mean is not None and norm.running_var is not None
        return own and sizes and tracked and not any(map(is_hooked, self.modules()))


class Block(nn.ModuleList):
    """Layers, each of which reads the outputs of all before it. On a GPU they run as Triton kernels, in training with
    gradients and in evaluation without."""

    def __init__(self, channels: int, growth: int, layers: int, checkpointing: bool) -> None:
        super().__init__(DenseLayer(channels + growth * i, growth, checkpointing) for i in range(layers))
        self.checkpointing = checkpointing

    def forward(self, x: Tensor) -> Tensor:
        """(N, C, H, W) -> (N, C + growth * layers, H, W)"""
        if self.has_kernels(x):
            return self.fused(x)
        parts = [x]
        for layer in self.layers:
            parts.append(layer(*parts))
            if not self.checkpointing:  # as one tensor, so that the backward adds once a layer, not once a pair
                parts = [torch.cat(parts, 1)]
        return torch.cat(parts, 1) if self.checkpointing else parts[0]

    @property
    def layers(self) -> list[DenseLayer]:
        """In order."""
        return cast(list[DenseLayer], list(self))

    def has_kernels(self, x: Tensor) -> bool:
        """Whether the kernels compute what the layers would."""
        if not prefers_triton(x) or x.is_meta or is_traced() or is_transformed():
            return False
        trains = torch.is_grad_enabled()
        if any(module.training != trains for module in self.modules()):
            return False
        if x.dim() != 4 or x.shape[1] != self.layers[0].norm.num_features:  # torch says what is wrong
            return False
        if x[:, 0].numel() < 2:  # torch refuses to normalise one value
            return False
        single = all(parameter.dtype == torch.float32 for parameter in self.parameters())
        return single and not has_global_hooks() and all(layer.has_kernel for layer in self.layers)

    def fused(self, x: Tensor) -> Tensor:
        """The same by kernels."""
        from .dense_block import DenseBlock, Layer, evaluate

        norms = [layer.norm for layer in self.layers]
        layers = [Layer(layer.norm.weight, layer.norm.bias, layer.convolution.weight) for layer in self.layers]
        dtype = torch.get_autocast_dtype(x.device.type) if torch.is_autocast_enabled(x.device.type) else x.dtype
        if not self.training:
            known = [(cast(Tensor, norm.running_mean), cast(Tensor, norm.running_var)) for norm in norms]
            return evaluate(x, dtype, EPS, layers, known)
        features, mean, variance = DenseBlock.apply(x, dtype, EPS, *(p for layer in layers for p in layer))
        pixels = features[:, 0].numel()
        with torch.no_grad():
            for name, found in (("running_mean", mean), ("running_var", variance * (pixels / (pixels - 1)))):
                running = [getattr(norm, name) for norm in norms]
                torch._foreach_lerp_(running, [found[: len(old)] for old in running], MOMENTUM)
            torch._foreach_add_([cast(Tensor, norm.num_batches_tracked) for norm in norms], 1)
        return features


class Transition(nn.Module):
    """Between blocks: a 1 x 1 convolution that keeps the number of channels, and half the resolution."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = NormReLU(channels)
        self.convolution = nn.Conv2d(channels, channels, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """(N, C, H, W) -> (N, C, H / 2, W / 2)"""
        return halved(self.convolution(self.norm(x)))


def halved(x: Tensor) -> Tensor:
    """Means of 2 x 2 pixels: (N, C, H, W) -> (N, C, H / 2, W / 2), channels last. On a GPU it takes a quarter of the
    time of `avg_pool2d`, whose backward is slow in this layout."""
    pixels = x.permute(0, 2, 3, 1).unflatten(2, (-1, 2)).unflatten(1, (-1, 2))
    return pixels.mean((2, 4)).permute(0, 3, 1, 2)


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
        self.first = nn.Conv2d(3, FIRST, 3, padding=1, bias=False)
        self.blocks, self.transitions = nn.ModuleList(), nn.ModuleList()
        channels = FIRST
        for block in range(3):
            self.blocks.append(Block(channels, growth, (depth - 4) // 3, checkpointing))
            channels += growth * ((depth - 4) // 3)
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
        x = self.first(x)
        for index, block in enumerate(self.blocks):
            x = block(x)
            if index < 2:
                x = self.transitions[index](x)
        return self.classifier(adaptive_avg_pool2d(self.norm(x), 1).flatten(1))
