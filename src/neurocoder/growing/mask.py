"""Inputs that growing layers leave out of their notes, as padding: `mask`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from ..layer.base import each_coded_layer
from ..layer.checks import require_module
from ..layer.control import Ambient
from ..ops.torch_private import current_backward

_mask = Ambient("ambient_mask", "mask the inputs of this layer by nc.mask", "train in one thread at a time")
current_mask = _mask.current


@contextmanager
def mask(model: nn.Module, keep: Tensor) -> Iterator[None]:
    """Inside the block, inputs that are masked out neither visit slots nor write them; outputs stay as they are.

    Open it around the forward; with activation checkpointing, which reruns the forward, around the backward too. Layers
    that do not grow ignore it.

    Args:
        model: any module; without growing layers nothing happens.
        keep: True, or not 0, for each input that counts; as transformers' `attention_mask`. Its dimensions are the
            first of the layers' inputs, or the inputs' leading dimensions the first of its own: then an input counts
            if any of its parts does. A layer whose inputs are flattened takes it flattened.

    Example:
        >>> layer = nc.GrowingLinear(8, 4, growing=nc.GrowingConfig(slots=16, writes=4))
        >>> optimiser = torch.optim.Adagrad(layer.parameters(), lr=1e-2)
        >>> growth = nc.grow(layer, optimiser)
        >>> x, attention_mask = torch.randn(2, 3, 8), torch.tensor([[1, 1, 0], [1, 0, 0]])
        >>> with nc.mask(layer, attention_mask):
        ...     layer(x)[attention_mask == 1].square().mean().backward()
        >>> optimiser.step()
        >>> int(layer.memory.written)  # three of six inputs count
        3
    """
    require_module("model", model)
    if not isinstance(keep, Tensor) or keep.is_floating_point() or keep.is_complex() or not keep.dim():
        got = f"{tuple(keep.shape)} of {keep.dtype}" if isinstance(keep, Tensor) else repr(keep)
        raise ValueError(f"keep must be a tensor of booleans or whole numbers, one for each input, got {got}")
    with _mask.block([layer for layer in each_coded_layer(model) if layer.grows], keep):
        yield


def kept(layer: Any, leading: torch.Size, device: torch.device) -> Tensor | None:
    """Which of the layer's inputs, with these leading dimensions, count (N,); None: all.

    It also notices a forward that is rerun outside the block of the first one.
    """
    found = current_mask(layer)
    if not torch.compiler.is_compiling():
        notes = layer.memory.notes
        if current_backward() < 0:
            notes.is_masked = found is not None
        elif notes.is_masked and found is None:
            raise ValueError(
                "nc.mask ended before the backward of a checkpointed layer, which reruns its forward: run the backward "
                "inside the block too"
            )
    if found is None:
        return None
    flags = found.to(device) != 0
    shape, shared = tuple(flags.shape), min(flags.dim(), len(leading))
    if leading.numel() == flags.numel() and len(leading) == 1:
        return flags.flatten()
    if shape[:shared] != tuple(leading[:shared]):
        raise ValueError(
            f"keep must have the first dimensions of the inputs {tuple(leading)} of growing layer "
            f"{layer.name or type(layer).__name__!r}, got {shape}: inside `with nc.mask(model, keep)`"
        )
    if len(leading) > shared:
        return flags.view(*shape, *[1] * (len(leading) - shared)).expand(leading).flatten()
    return flags.reshape(leading.numel(), -1).any(-1) if leading.numel() else flags.new_ones(0)
