"""Which code composes the programs. The result is the same; a user need not choose.

- "torch": the operations of `neurocoder.functional` under autograd. Works everywhere: `torch.func`, any dtype, double
  backward, CPU `torch.compile`.
- "eager": one autograd function with a backward written by hand, for eager mode in float32 and float64.
- "triton": fused GPU kernels, in eager mode and compiled.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from . import functional as F
from .config import ProgramConfig

if TYPE_CHECKING:
    from .controller import ProgramController
    from .memory import ProgramMemory

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


def _choose(signal: Tensor, program: ProgramConfig, mix: bool) -> Backend:
    """The fastest path that serves this call."""
    if _chosen != "auto":
        return _chosen
    if _transformed():
        return "torch"
    if signal.is_cuda and signal.dtype != torch.float64 and has_triton():
        from .kernels.fused import supports

        if supports(program):
            return "triton"
    plain = signal.dtype in (torch.float32, torch.float64) and not torch.is_autocast_enabled(signal.device.type)
    return "eager" if mix and plain and not signal.is_meta and not torch.compiler.is_compiling() else "torch"


def compose_and_mix(
    signal: Tensor, read: Tensor, controller: ProgramController, memory: ProgramMemory
) -> tuple[Tensor, Tensor]:
    """The active program applied to what its slots read.

    Args:
        signal: the composition network's input signal (N, 4 * hidden).
        read: a = x M_U^T, T inputs for each program (N, T, P).
        controller, memory: those of the layer.

    Returns:
        e (N, T, P), with x P_t = e M_V, and sigma_r (N, 1)
    """
    program = controller.program
    mix = read.shape[1] == 1
    path = _choose(signal, program, mix)
    if path == "torch" or (path == "eager" and not mix):
        u, v, s = controller.attend(signal, memory.keys()).weight.flatten(2, 3)
        sigma = F.singular_values(s, memory.S)
        return F.execute(read, u, v, sigma), sigma[:, -1:]
    recurrent = None if controller.recurrent is None else controller.recurrent.weight
    readers = (controller.query.weight, controller.query.bias, controller.gate.weight, controller.gate.bias)
    others = (recurrent, *readers, memory.keys(), memory.S)
    if path == "eager":
        from .kernels.eager import ComposeAndMix

        coefficients, last = ComposeAndMix.apply(signal, read.squeeze(1), *others, program)
        return coefficients.unsqueeze(1), last
    from .kernels.fused import compose

    if mix:
        coefficients, last = compose((signal, read.squeeze(1), *others), program)
        return coefficients.unsqueeze(1).to(read.dtype), last.to(read.dtype)
    u, v, sigma = (tensor.to(read.dtype) for tensor in compose((signal, None, *others), program))
    return F.execute(read, u, v, sigma), sigma[:, -1:]
