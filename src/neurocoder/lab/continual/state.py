"""Copies of nested states: dicts and lists of tensors, numbers, strings and None."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def copied(state: Any, device: torch.device | str) -> Any:
    """A copy on this device that shares no tensor with the original."""
    if isinstance(state, Tensor):
        return state.detach().to(device, copy=True).contiguous()
    if isinstance(state, dict):
        return {key: copied(value, device) for key, value in state.items()}
    if isinstance(state, list | tuple):
        return [copied(value, device) for value in state]
    return state
