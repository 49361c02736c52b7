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
from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor

from ..layer.config import ProgramConfig
from .compiled import run_uncompiled
from .rounding import power_of_two

Implementation = Literal["torch", "cpu", "triton", "reference"]
Backend = Literal["auto", Implementation]

MAX_SLOTS, MAX_KEY, MAX_HIDDEN, MAX_MIX = 256, 16, 64, 16384
_LIMITS = f"at most {MAX_SLOTS} slots, keys of {MAX_KEY}, {MAX_HIDDEN} hidden, and slots * components of {MAX_MIX}"
MAX_ORTHOGONAL = 64, 8192
"""Limits of the orthogonal loss kernel: slots, whose Gram matrix must fit in the 99 KB that the smallest GPUs have on
chip, and their width, since the work grows as its square."""
HAS_TRITON = importlib.util.find_spec("triton") is not None and torch.version.hip is None
"""The kernels need float32 products in three passes, which Triton has only for NVIDIA GPUs."""

_chosen: ContextVar[Backend] = ContextVar("neurocoder_backend", default="auto")
_open: list[Backend] = []
"""The blocks that are currently open, in any thread."""
_last_chosen: Backend = "auto"
"""The last one opened, for compiled code, which cannot read context variables. Results do not depend on it."""


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
    global _last_chosen
    if name not in ("auto", *get_args(Implementation)):
        raise ValueError(f"backend must be 'auto', 'torch', 'cpu', 'triton' or 'reference', got {name!r}")
    if name == "triton" and not HAS_TRITON:
        raise ValueError("backend 'triton' needs the triton package, which is not installed")
    traced: Backend = "auto" if name == "reference" else name
    token = _chosen.set(name)
    _open.append(traced)
    _last_chosen = traced
    try:
        with run_uncompiled() if name == "reference" else nullcontext():
            yield
    finally:
        _chosen.reset(token)
        _open.remove(traced)
        _last_chosen = _open[-1] if _open else "auto"


def chosen() -> Backend:
    """The choice of the innermost `backend` block, or "auto"."""
    return _last_chosen if torch.compiler.is_compiling() else _chosen.get()


def supports(program: ProgramConfig) -> bool:
    """Whether the Triton kernels support this configuration: beyond these sizes, a block's state spills registers."""
    small = program.slots <= MAX_SLOTS and program.key_dim <= MAX_KEY and program.hidden <= MAX_HIDDEN
    return small and power_of_two(program.components) * power_of_two(program.slots) <= MAX_MIX


def is_traced() -> bool:
    """Whether operations are being recorded one by one rather than run: an autograd function would hide them."""
    return torch.compiler.is_compiling() or torch.jit.is_tracing() or torch._C._len_torch_dispatch_stack() > 0


def is_exporting() -> bool:
    """Whether `torch.export` records operations. `torch.compiler.is_exporting()`, which reads the same flag, is always
    true to torch.compile before 2.13."""
    return torch.compiler._is_exporting_flag


def is_transformed() -> bool:
    """Whether `torch.func` or forward-mode differentiation is active; they support only torch operations."""
    return torch._C._are_functorch_transforms_active() or torch.autograd.forward_ad._current_level >= 0


def prefers_triton(tensor: Tensor) -> bool:
    """Whether Triton kernels, where there are any for an operation, serve a tensor like this."""
    return chosen() == "triton" or (chosen() == "auto" and tensor.is_cuda and HAS_TRITON)


class Choice(NamedTuple):
    """An implementation and, for kernels, the dtype of the large products."""

    name: Implementation
    dtype: torch.dtype | None = None

    @property
    def has_kernel(self) -> bool:
        """Whether forward and backward are hand-written, so the layer can run as one operation."""
        return self.dtype is not None


TORCH = Choice("torch")


def choose(tensor: Tensor, x: Tensor, program: ProgramConfig) -> Choice:
    """The implementation for a layer whose parameters are like this tensor, on input x."""
    name = chosen()
    if name == "torch" or name == "reference":
        return Choice(name)
    if name == "triton" and not supports(program):
        raise ValueError(f"backend 'triton' takes {_LIMITS}, got {program}")
    if name == "triton" and tensor.dtype == torch.float64:
        raise ValueError("backend 'triton' takes float32 and narrower types, got a layer in float64")
    if tensor.is_meta or x.is_meta or is_transformed():
        return TORCH
    dtype = _product_dtype(x, tensor)
    if dtype is None:
        return TORCH
    fused = tensor.is_cuda and tensor.dtype != torch.float64 and HAS_TRITON and supports(program)
    if name == "triton" or (name == "auto" and fused):
        return Choice("triton", dtype)
    if is_traced() or (name == "auto" and tensor.device.type != "cpu"):
        return TORCH
    return Choice("cpu", dtype)


def fuses_orthogonality(left: Tensor, right: Tensor) -> bool:
    """Whether the Triton kernels compute the orthogonal loss of M_U (P, d_in) and M_V (P, d_out)."""
    name = chosen()
    if name not in ("auto", "triton") or not HAS_TRITON or torch.compiler.is_compiling():
        return False
    slots, width = MAX_ORTHOGONAL
    small = len(left) <= slots and max(left.shape[1], right.shape[1]) <= width
    return small and left.dtype != torch.float64 and not is_transformed() and (left.is_cuda or name == "triton")


def _product_dtype(x: Tensor, parameter: Tensor) -> torch.dtype | None:
    """The dtype in which a layer multiplies: autocast's if it is on; None if input and parameters do not match."""
    if torch.is_autocast_enabled(x.device.type) and x.dtype != torch.float64:
        return torch.get_autocast_dtype(x.device.type)
    return x.dtype if x.dtype == parameter.dtype else None
