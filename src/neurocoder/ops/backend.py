"""Which implementation composes the programs. The result is the same; users need not choose.

- "torch": the modules `memory` and `controller` under autograd, over the operations of `neurocoder.functional`. Works
  everywhere: hooks, subclasses, `torch.func`, any dtype, double backward, CPU `torch.compile`.
- "cpu": hand-written forward and backward, on a CPU in eager mode.
- "triton": fused GPU kernels, in eager mode and compiled.
- "reference": the literal equations of `neurocoder.reference`, one input at a time, to check the others.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from typing import Literal, get_args

import torch
from torch import Tensor

from .compiled import run_uncompiled
from .torch_private import is_dispatched, is_exporting, is_transformed

__all__ = ["HAS_TRITON", "backend", "chosen", "is_exporting", "is_traced", "is_transformed", "prefers_triton"]

Implementation = Literal["torch", "cpu", "triton", "reference"]
Backend = Literal["auto", Implementation]

HAS_TRITON = importlib.util.find_spec("triton") is not None and torch.version.hip is None
"""The kernels need float32 products in three passes, which Triton has only for NVIDIA GPUs."""

_chosen: ContextVar[Backend] = ContextVar("neurocoder_backend", default="auto")
_open: list[Backend] = []
"""Of the blocks that are open, in any thread. Compiled code, which cannot read context variables, takes the last one;
results do not depend on it."""


@contextmanager
def backend(name: Backend) -> Iterator[None]:
    """Force one implementation inside the block; "auto" leaves the choice to the library.

    The choice applies in the thread or asyncio task that runs the block. With activation checkpointing, which reruns
    the forward, the backward must run inside the block too. Layers whose memory or controller has hooks, is a subclass
    or is parametrized use "torch" regardless. The reference branches on values, which cannot be compiled: compiled
    models run uncompiled in its block.

    Example:
        >>> layer, x = nc.Linear(8, 4), torch.randn(32, 8)
        >>> with nc.backend("torch"):
        ...     y = layer(x)
        >>> torch.allclose(layer(x), y, atol=1e-5)
        True
    """
    if name not in ("auto", *get_args(Implementation)):
        raise ValueError(f"backend must be 'auto', 'torch', 'cpu', 'triton' or 'reference', got {name!r}")
    if name == "triton" and not HAS_TRITON:
        raise ValueError("backend 'triton' needs the triton package, which is not installed")
    traced: Backend = "auto" if name == "reference" else name
    token = _chosen.set(name)
    _open.append(traced)
    try:
        with run_uncompiled() if name == "reference" else nullcontext():
            yield
    finally:
        _chosen.reset(token)
        _open.remove(traced)


def chosen() -> Backend:
    """The choice of the innermost `backend` block, or "auto"."""
    if torch.compiler.is_compiling():
        return _open[-1] if _open else "auto"
    return _chosen.get()


def is_traced() -> bool:
    """Whether operations are being recorded one by one rather than run: an autograd function would hide them."""
    return torch.compiler.is_compiling() or torch.jit.is_tracing() or is_dispatched()


def prefers_triton(tensor: Tensor) -> bool:
    """Whether Triton kernels, where there are any for an operation, serve a tensor like this."""
    return chosen() == "triton" or (chosen() == "auto" and tensor.is_cuda and HAS_TRITON)
