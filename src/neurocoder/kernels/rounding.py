"""Sizes rounded up, for launches. Triton's own functions for it take microseconds a call, and a training step makes
thirty."""

from __future__ import annotations


def cdiv(size: int, block: int) -> int:
    """How many blocks cover a size."""
    return -(-size // block)


def aligned(size: int) -> int:
    """Rows of this many numbers begin at multiples of 16 bytes, as fast matrix products want them."""
    return cdiv(size, 4) * 4


def power_of_two(size: int) -> int:
    """The smallest power of two that is not below a size of at least one."""
    return 1 << (size - 1).bit_length()


def padded(size: int) -> int:
    """The next power of two, of at least the 16 that products in kernels want."""
    return max(16, power_of_two(size))
