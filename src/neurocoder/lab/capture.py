"""Capture of CUDA graphs."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def captured(stream: torch.cuda.Stream) -> Iterator[torch.cuda.CUDAGraph]:
    """The graph of what is launched in the block.

    The garbage collector does not run in the block: freeing another graph, say of the run before, ends a capture with
    an error.
    """
    graph, enabled = torch.cuda.CUDAGraph(), gc.isenabled()
    gc.disable()
    try:
        with torch.cuda.graph(graph, stream=stream):
            yield graph
    finally:
        if enabled:
            gc.enable()
