"""What hand-written forward and backward passes share."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor


def cast(tensor: Any, dtype: torch.dtype) -> Any:
    """A tensor, or None, in this dtype; `tensor.to` is ten times slower where there is nothing to do."""
    return tensor if tensor is None or tensor.dtype == dtype else tensor.to(dtype)


def refuse_second_derivatives() -> None:
    """Raise an error in a backward that is itself recorded."""
    if torch.is_grad_enabled():
        raise RuntimeError(
            "this backward cannot itself be differentiated: run forward and backward inside "
            "`with nc.backend('torch'):` where create_graph=True is used"
        )


def without_autocast(tensor: Tensor) -> AbstractContextManager[Any]:
    """Disable autocast for code that does its own casts; only if it is on, since disabling it costs time."""
    device = tensor.device.type
    return torch.autocast(device, enabled=False) if torch.is_autocast_enabled(device) else nullcontext()
