"""How kernels are launched: sizes rounded up, the precision of products, side streams of a CUDA graph.

The kernels of small layers fill only a fraction of a GPU. While a graph is captured, work that the main stream does not
wait for goes to a side stream, and becomes a concurrent branch of the graph. Otherwise it runs in line.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import Any

import torch
from torch import Tensor

WIDTH = 4
"""Maximum number of concurrent side streams."""
_streams: dict[tuple[torch.device, int], torch.cuda.Stream] = {}
"""Up to `WIDTH` per device. They are reused: cuBLAS holds a workspace for every stream it has seen."""


# Triton's own functions for sizes take microseconds per call, and a training step makes thirty calls.


def cdiv(size: int, block: int) -> int:
    """The number of blocks that cover a size."""
    return -(-size // block)


def aligned(size: int) -> int:
    """The size rounded up so that rows are aligned to 16 bytes, as fast matrix products need."""
    return cdiv(size, 4) * 4


def power_of_two(size: int) -> int:
    """The smallest power of two that is at least `size` (>= 1)."""
    return 1 << (size - 1).bit_length()


def padded(size: int) -> int:
    """The next power of two, at least the 16 that products in kernels need."""
    return max(16, power_of_two(size))


def precision(dtype: torch.dtype) -> str:
    """The precision that makes products in the kernels as exact as torch's own."""
    rough = dtype != torch.float32 or torch.backends.cuda.matmul.fp32_precision == "tf32"
    return "tf32" if rough else "tf32x3"


def on_device_of(tensor: Tensor) -> AbstractContextManager[Any]:
    """Makes a tensor's GPU the current device, where Triton launches; a no-op if it already is, since this is slow."""
    if tensor.is_cuda and tensor.get_device() != torch.cuda.current_device():
        return torch.cuda.device(tensor.device)
    return nullcontext()


def capturing(tensor: Tensor) -> bool:
    """Whether work on a tensor is being captured into a CUDA graph."""
    return tensor.is_cuda and torch.cuda.is_current_stream_capturing()


class SideStream:
    """Each `with` block begins after all work so far; `join` makes the main stream wait for the blocks.

    Tensors that a block reads or creates must live until `join`, since memory is reused in the order of one stream.
    Concurrent side streams need different numbers.
    """

    def __init__(self, tensor: Tensor, number: int = 0) -> None:
        self.stream: torch.cuda.Stream | None = None
        self.begun = False
        if capturing(tensor):
            key = (tensor.device, number)
            self.stream = _streams.get(key) or _streams.setdefault(key, torch.cuda.Stream(tensor.device))

    @property
    def active(self) -> bool:
        """Whether blocks run on a separate stream rather than in line."""
        return self.stream is not None

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

    def mark(self) -> torch.cuda.Event | None:
        """Mark the end of the side stream's work so far, for `await_mark`."""
        return None if self.stream is None else self.stream.record_event()

    def await_mark(self, mark: torch.cuda.Event | None) -> None:
        """Make the main stream wait for a mark rather than for the whole side stream."""
        if mark is not None:
            self.main.wait_event(mark)

    def join(self) -> None:
        """Make the main stream wait for the blocks, if there were any."""
        if self.stream is not None and self.begun:
            torch.cuda.current_stream(self.stream.device).wait_stream(self.stream)
