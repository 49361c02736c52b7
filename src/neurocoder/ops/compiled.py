"""Models wrapped by `torch.compile`."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn


def uncompiled(model: nn.Module) -> nn.Module:
    """The model that `torch.compile` wrapped, or the model itself."""
    return getattr(model, "_orig_mod", model)


_lock = threading.Lock()
_open = 0
_first: Any = None


@contextmanager
def run_uncompiled() -> Iterator[None]:
    """Run compiled code uncompiled: hooks and recorded lists would make it recompile at every call.

    Torch has one stance for all threads. Blocks of several may overlap: the last to end puts back what the first found.
    """
    global _open, _first
    if "torch._dynamo" not in sys.modules:  # nothing is compiled yet, and importing it takes seconds
        yield
        return
    with _lock:
        stance = torch.compiler.set_stance("force_eager")
        _open, _first = _open + 1, _first or stance
    try:
        yield
    finally:
        with _lock:
            _open -= 1
            if not _open:
                _first.__exit__(None, None, None)
                _first = None
