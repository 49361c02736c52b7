"""Which code composes the programs. The result is the same; a user need not choose.

- "torch": the operations of `neurocoder.functional` under autograd. Works everywhere: `torch.func`, any dtype, double
  backward, CPU `torch.compile`.
- "eager": the whole linear layer as one autograd function with a backward written by hand; eager mode in float32 and
  float64. Other layers and modes go by "torch".
- "triton": fused GPU kernels, in eager mode and compiled.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Literal

import torch
from torch import Tensor

from .config import ProgramConfig

Backend = Literal["auto", "torch", "eager", "triton"]

_chosen: Backend = "auto"


@contextmanager
def backend(name: Backend) -> Iterator[None]:
    """Insist on one path inside the block; "auto" leaves the choice to the library.

    with nc.backend("torch"):
        y = model(x)
    """
    global _chosen
    if name not in ("auto", "torch", "eager", "triton"):
        raise ValueError(f"backend must be 'auto', 'torch', 'eager' or 'triton', got {name!r}")
    if name == "triton" and not has_triton():
        raise ValueError("backend 'triton' needs the triton package, which is not installed")
    before, _chosen = _chosen, name
    try:
        yield
    finally:
        _chosen = before


@cache
def has_triton() -> bool:
    """Whether triton can be imported."""
    return importlib.util.find_spec("triton") is not None


def _transformed() -> bool:
    """Whether `torch.func` or forward-mode differentiation is at work, which sees through torch operations only."""
    return torch._C._are_functorch_transforms_active() or torch.autograd.forward_ad._current_level >= 0


def choose(tensor: Tensor, program: ProgramConfig) -> Backend:
    """The fastest path that serves a layer whose parameters are like this tensor."""
    if _chosen == "triton":
        from .kernels.fused import LIMITS, supports

        if not supports(program):
            raise ValueError(f"backend 'triton' takes {LIMITS}, got {program}")
    if _chosen != "auto":
        return _chosen
    if _transformed() or tensor.is_meta:
        return "torch"
    if tensor.is_cuda and tensor.dtype != torch.float64 and has_triton():
        from .kernels.fused import supports

        if supports(program):
            return "triton"
    return "eager"


def whole_layer(x: Tensor, parameter: Tensor) -> bool:
    """Whether a linear layer can run as one autograd function: eager mode, one full-precision dtype."""
    full = x.dtype == parameter.dtype and x.dtype in (torch.float32, torch.float64)
    return full and not torch.compiler.is_compiling() and not torch.is_autocast_enabled(x.device.type)
