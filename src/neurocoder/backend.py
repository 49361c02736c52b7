"""Which code composes the programs. The result is the same; a user need not choose.

- "torch": the operations of `neurocoder.functional` under autograd. Works everywhere: `torch.func`, any dtype, double
  backward, CPU `torch.compile`.
- "cpu": the whole linear layer as one autograd function with a backward written by hand, in eager mode. Other layers
  and modes go by "torch".
- "triton": fused GPU kernels, in eager mode and compiled.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import torch
from torch import Tensor

from .config import ProgramConfig
from .kernels.rounding import power_of_two

Backend = Literal["auto", "torch", "cpu", "triton"]

MAX_SLOTS, MAX_KEY, MAX_HIDDEN, MAX_MIX = 256, 16, 64, 16384
_LIMITS = f"at most {MAX_SLOTS} slots, keys of {MAX_KEY}, {MAX_HIDDEN} hidden, and slots * components of {MAX_MIX}"
MAX_ORTHOGONAL = 64, 8192
"""Slots, whose Gram matrix the kernel of the orthogonal loss keeps in the 99 KB that the smallest GPUs have for it, and
their width: its work grows as the square of that."""
_HAS_TRITON = importlib.util.find_spec("triton") is not None and torch.version.hip is None
"""The kernels need float32 products in three passes, which Triton has for NVIDIA's GPUs alone."""

_chosen: Backend = "auto"


@contextmanager
def backend(name: Backend) -> Iterator[None]:
    """Insist on one path inside the block; "auto" leaves the choice to the library.

        with nc.backend("torch"):
            y = model(x)

    Where activation checkpointing computes the forward again, the backward has to run inside the block too.
    """
    global _chosen
    if name not in ("auto", "torch", "cpu", "triton"):
        raise ValueError(f"backend must be 'auto', 'torch', 'cpu' or 'triton', got {name!r}")
    if name == "triton" and not _HAS_TRITON:
        raise ValueError("backend 'triton' needs the triton package, which is not installed")
    before, _chosen = _chosen, name
    try:
        yield
    finally:
        _chosen = before


def supports(program: ProgramConfig) -> bool:
    """Whether the Triton kernels take this configuration: beyond these sizes a program's state leaves the registers."""
    small = program.slots <= MAX_SLOTS and program.key_dim <= MAX_KEY and program.hidden <= MAX_HIDDEN
    return small and power_of_two(program.components) * power_of_two(program.slots) <= MAX_MIX


def _transformed() -> bool:
    """Whether `torch.func` or forward-mode differentiation is at work, which sees through torch operations only."""
    return torch._C._are_functorch_transforms_active() or torch.autograd.forward_ad._current_level >= 0


def choose(tensor: Tensor, program: ProgramConfig) -> Backend:
    """The fastest path that serves a layer whose parameters are like this tensor."""
    if _chosen == "triton" and not supports(program):
        raise ValueError(f"backend 'triton' takes {_LIMITS}, got {program}")
    if _chosen == "triton" and tensor.dtype == torch.float64:
        raise ValueError("backend 'triton' takes float32 and narrower types, got a layer in float64")
    if _chosen != "auto":
        return _chosen
    if _transformed() or tensor.is_meta:
        return "torch"
    fused = tensor.is_cuda and tensor.dtype != torch.float64 and _HAS_TRITON and supports(program)
    return "triton" if fused else "cpu"


def fuses_orthogonality(left: Tensor, right: Tensor) -> bool:
    """Whether the Triton kernels compute the orthogonal loss of M_U (P, d_in) and M_V (P, d_out)."""
    if _chosen not in ("auto", "triton") or not _HAS_TRITON or torch.compiler.is_compiling():
        return False
    slots, width = MAX_ORTHOGONAL
    small = len(left) <= slots and max(left.shape[1], right.shape[1]) <= width
    return small and left.dtype != torch.float64 and not _transformed() and (left.is_cuda or _chosen == "triton")


def product_dtype(x: Tensor, parameter: Tensor) -> torch.dtype | None:
    """In which dtype a linear layer multiplies as one autograd function; None where it cannot run as one.

    That is autocast's where it is on. While a graph is traced, torch sees the operations one by one.
    """
    traced = torch.compiler.is_compiling() or torch.jit.is_tracing() or torch._C._len_torch_dispatch_stack() > 0
    if traced or x.is_meta:
        return None
    if torch.is_autocast_enabled(x.device.type) and x.dtype != torch.float64:
        return torch.get_autocast_dtype(x.device.type)
    return x.dtype if x.dtype == parameter.dtype else None
