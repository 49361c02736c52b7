"""Operations as a CUDA graph: the host makes one launch, whatever they are, and waits for nothing."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

WARM_UP = 3
"""Calls before the capture, in which kernels are compiled and optimisers create their state. They do their work, as
every call."""


class Captured:
    """Calls operations that read and write the same tensors each time; on a GPU as a graph, from the fourth call on.

    Nothing in them may depend on values on the host. On a CPU, or without `capture`, they run as they are. They are
    given with each call rather than kept: an owner whose methods they are would else live until garbage is collected,
    and the graph's memory with it.
    """

    def __init__(self, device: torch.device, capture: bool = True) -> None:
        self._side = torch.cuda.Stream(device) if capture and device.type == "cuda" else None
        self._warm = 0
        self._graph: torch.cuda.CUDAGraph | None = None

    def __call__(self, operations: Callable[[], None], before: Callable[[], None] = lambda: None) -> None:
        """`before` is called before the capture, say to forget gradients, so that the graph makes its own."""
        if self._side is None:
            operations()
        elif self._graph is not None:
            self._graph.replay()
        elif self._warm < WARM_UP:
            self._warm += 1
            self._side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self._side), warnings.catch_warnings():
                warnings.filterwarnings("ignore", "This instance was constructed with capturable=True")
                operations()
            torch.cuda.current_stream().wait_stream(self._side)
        else:
            before()
            with captured(self._side) as graph:
                operations()
            self._graph = graph
            graph.replay()


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
