"""Models wrapped by `torch.compile`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn


def uncompiled(model: nn.Module) -> nn.Module:
    """The model that `torch.compile` wrapped, or the model itself."""
    return getattr(model, "_orig_mod", model)


@contextmanager
def run_uncompiled() -> Iterator[None]:
    """Run compiled code uncompiled: hooks and recorded lists would make it recompile at every call."""
    if "torch._dynamo" not in sys.modules:  # nothing is compiled yet, and importing it takes seconds
        yield
        return
    with torch.compiler.set_stance("force_eager"):
        yield
