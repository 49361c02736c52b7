"""Work beside the main path of a CUDA graph.

Kernels of small layers fill a fraction of a GPU. While a graph is recorded, what the main path does not wait for is put
on a stream of its own, and so becomes a branch of the graph that runs at the same time. Elsewhere it runs in line.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import Any

import torch
from torch import Tensor

_streams: dict[tuple[torch.device, bool], torch.cuda.Stream] = {}
"""Two for each device. They are kept: cuBLAS holds a workspace for every stream that it has seen."""


def on_device_of(tensor: Tensor) -> AbstractContextManager[Any]:
    """Makes a tensor's GPU the current one, where Triton launches; only where it is another: it costs time."""
    if tensor.is_cuda and tensor.get_device() != torch.cuda.current_device():
        return torch.cuda.device(tensor.device)
    return nullcontext()


class Branch:
    """Each `with` block begins after all work so far; `join` makes the main path wait for the blocks.

    Tensors that a block reads or makes have to live until then: memory is reused in the order of one stream. A branch
    that begins while another is open is an inner one.
    """

    def __init__(self, tensor: Tensor, inner: bool = False) -> None:
        self.stream: torch.cuda.Stream | None = None
        self.begun = False
        if tensor.is_cuda and torch.cuda.is_current_stream_capturing():
            key = (tensor.device, inner)
            self.stream = _streams.get(key) or _streams.setdefault(key, torch.cuda.Stream(tensor.device))

    def __enter__(self) -> None:
        if self.stream is not None:
            self.begun = True
            self.main = torch.cuda.current_stream(self.stream.device)
            self.stream.wait_stream(self.main)
            torch.cuda.set_stream(self.stream)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.stream is not None:
            torch.cuda.set_stream(self.main)

    def join(self) -> None:
        """Wait for the blocks, if there were any."""
        if self.stream is not None and self.begun:
            torch.cuda.current_stream(self.stream.device).wait_stream(self.stream)
