"""Work beside the main path of a CUDA graph.

Kernels of small layers fill a fraction of a GPU. While a graph is recorded, what the main path does not wait for is put
on a stream of its own, and so becomes a branch of the graph that runs at the same time. Elsewhere it runs in line.
"""

from __future__ import annotations

from types import TracebackType

import torch
from torch import Tensor


class Branch:
    """Each `with` block begins after all work so far; `join` makes the main path wait for the blocks.

    Tensors that a block reads or makes have to live until then: memory is reused in the order of one stream.
    """

    def __init__(self, tensor: Tensor) -> None:
        self.stream: torch.cuda.Stream | None = None
        self.begun = False
        if tensor.is_cuda and torch.cuda.is_current_stream_capturing():
            self.stream = torch.cuda.Stream(tensor.device)

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
