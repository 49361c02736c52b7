"""Crops and mirror images of a whole batch by one gather, on the device of the images.

The random numbers are drawn apart from their use, an epoch at a time and from only a seed and the epoch's number: a run
resumes in the middle of an epoch with the same pictures, and a CUDA graph can hold all the rest.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor

Kind = Literal["none", "flip", "reflect"]
"""As they are; each mirrored or not; also moved by up to `PAD` pixels each way, reflected at the border."""
PAD = 4


class Draws(NamedTuple):
    """What happens to each picture, tensors of one shape (...): `top` and `left` in 0..2 PAD, `mirrored` 0 or 1."""

    top: Tensor
    left: Tensor
    mirrored: Tensor


def identity(shape: tuple[int, ...], device: torch.device) -> Draws:
    """Draws that change nothing."""
    middle = torch.full(shape, PAD, dtype=torch.int64, device=device)
    return Draws(middle, middle.clone(), torch.zeros_like(middle))


def redraw(draws: Draws, kind: Kind, generator: torch.Generator) -> None:
    """Draw anew, in place, from a generator on the draws' device."""
    if kind == "reflect":
        draws.top.random_(0, 2 * PAD + 1, generator=generator)
        draws.left.random_(0, 2 * PAD + 1, generator=generator)
    if kind != "none":
        draws.mirrored.random_(0, 2, generator=generator)


def pictures(images: Tensor, rows: Tensor, draws: Draws) -> Tensor:
    """The images of these rows, padded by reflection with PAD pixels, cut to size at (top, left), mirrored.

    Args:
        images: bytes (N, H, W, C), contiguous.
        rows: which images (B,).
        draws: of shape (B,).

    Returns:
        bytes (B, H, W, C)
    """
    count, height, width, channels = images.shape
    across, down = (torch.arange(size, device=images.device) for size in (width, height))
    across = torch.where(draws.mirrored.view(-1, 1) == 1, width - 1 - across, across)
    x = reflected(across + draws.left.view(-1, 1) - PAD, width)  # (B, W)
    y = reflected(down + draws.top.view(-1, 1) - PAD, height)  # (B, H)
    place = (rows.view(-1, 1, 1) * height + y.unsqueeze(2)) * width + x.unsqueeze(1)  # (B, H, W), of a pixel among all
    return images.view(count * height * width, channels).index_select(0, place.view(-1)).view(*place.shape, channels)


def reflected(place: Tensor, size: int) -> Tensor:
    """Places just outside 0..size - 1, mirrored at the first and last: -1 is 1, size is size - 2."""
    return (size - 1) - ((size - 1) - place.abs()).abs()


def normalised(pixels: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """Bytes (B, H, W, C) -> numbers (B, C, H, W) in the channels-last layout; mean and std (C,) are of bytes / 255."""
    return ((pixels.float() / 255 - mean) / std).permute(0, 3, 1, 2)
