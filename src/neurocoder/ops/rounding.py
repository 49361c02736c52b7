"""Sizes rounded up, for launches. Triton's own functions take microseconds per call, and a training step makes thirty
calls."""

from __future__ import annotations


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
