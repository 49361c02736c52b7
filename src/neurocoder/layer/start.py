"""Starting values that several kinds share, drawn in float32 on the CPU; and values that must keep their precision."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn


@contextmanager
def full_precision(device: torch.device) -> Iterator[None]:
    """No gradients, and no autocast on the CPU or this device, for values that must be exact.

    Autocast would round, and cache the first rounded copy of a parameter whose values are still being set.
    """
    with torch.no_grad(), ExitStack() as stack:
        for kind in {"cpu", device.type}:
            if torch.amp.is_autocast_available(kind):
                stack.enter_context(torch.autocast(kind, enabled=False))
        yield


def keeping(fn: Callable[[Tensor], Tensor], kept: Iterable[Tensor]) -> Callable[[Tensor], Tensor]:
    """What `nn.Module._apply` is given, such as a change of dtype, without the change of dtype for these tensors."""
    names = {id(tensor) for tensor in kept}

    def applied(tensor: Tensor) -> Tensor:
        new = fn(tensor)
        return tensor.to(new.device) if id(tensor) in names and new.dtype != tensor.dtype else new

    return applied


def plain_weight(shape: tuple[int, ...]) -> Tensor:
    """A weight initialised like `nn.Linear`'s and `nn.Conv2d`'s: uniform in `±1 / sqrt(fan_in)`."""
    bound = 1 / math.sqrt(torch.Size(shape[1:]).numel())
    return torch.empty(shape, device="cpu", dtype=torch.float32).uniform_(-bound, bound)


def orthonormal(rows: int, columns: int) -> Tensor:
    """A random matrix with orthonormal rows, or columns if there are more rows."""
    return nn.init.orthogonal_(torch.empty(rows, columns, device="cpu", dtype=torch.float32))


def affine(inputs: int, outputs: int, **options: Any) -> tuple[Any, Any]:
    """Weight (outputs, inputs) and bias of an affine map inside a layer, initialised like `nn.Linear`.

    They are bare parameters: tools that look for `nn.Linear` (LoRA, quantisers, initialisers) would mistake a submodule
    for a layer of the model.
    """
    linear = nn.Linear(inputs, outputs, **options)
    return linear.weight, linear.bias


def affine_start(weight: Tensor, bias: Tensor) -> None:
    """Initialise an affine map like torch's `nn.Linear`."""
    twin = nn.Linear(weight.shape[1], weight.shape[0], device="cpu", dtype=torch.float32)
    weight.copy_(twin.weight)
    bias.copy_(twin.bias)
