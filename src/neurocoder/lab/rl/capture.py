"""Operations as a CUDA graph: one launch, whatever they are."""

from __future__ import annotations

from collections.abc import Callable

import torch

from ..capture import captured

WARM_UP = 3
"""Calls before the capture, in which kernels are compiled. They do their work, as every call."""


class Captured:
    """Calls operations that read and write the same tensors each time; on a GPU as a graph, from the fourth call on.

    Nothing in them may depend on values on the host.
    """

    def __init__(self, operations: Callable[[], None], device: torch.device, capture: bool) -> None:
        self._operations = operations
        self._side = torch.cuda.Stream(device) if capture and device.type == "cuda" else None
        self._warm = 0
        self._graph: torch.cuda.CUDAGraph | None = None

    def __call__(self) -> None:
        if self._side is None:
            self._operations()
        elif self._graph is not None:
            self._graph.replay()
        elif self._warm < WARM_UP:
            self._warm += 1
            self._side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self._side):
                self._operations()
            torch.cuda.current_stream().wait_stream(self._side)
        else:
            with captured(self._side) as graph:
                self._operations()
            self._graph = graph
            graph.replay()
