"""Crops and mirror images of a whole batch by one gather, on the device of the images.

The random numbers are drawn apart from their use, an epoch at a time and from only a seed and the epoch's number: a run
resumes in the middle of an epoch with the same pictures, and a CUDA graph can hold all the rest.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor

Kind = Literal["none", "flip", "crop"]
"""As they are; each mirrored or not; also moved by up to `PAD` pixels each way, black where nothing is left."""
PAD = 4


class Draws(NamedTuple):
    """What happens to each picture, tensors of one shape (...): `top` and `left` in 0..2 PAD, `mirrored` 0 or 1."""

    top: Tensor
    left: Tensor
    mirrored: Tensor


def still(shape: tuple[int, ...], device: torch.device) -> Draws:
    """Draws that change nothing."""
    middle = torch.full(shape, PAD, dtype=torch.int64, device=device)
    return Draws(middle, middle.clone(), torch.zeros_like(middle))


def redraw(draws: Draws, kind: Kind, generator: torch.Generator) -> None:
    """Draw anew, in place, from a generator on the draws' device."""
    if kind == "crop":
        draws.top.random_(0, 2 * PAD + 1, generator=generator)
        draws.left.random_(0, 2 * PAD + 1, generator=generator)
    if kind != "none":
        draws.mirrored.random_(0, 2, generator=generator)


def pictures(images: Tensor, rows: Tensor, draws: Draws) -> Tensor:
    """The images of these rows, padded with PAD black pixels, cut to size at (top, left), mirrored.

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
    x, y = across + draws.left.view(-1, 1) - PAD, down + draws.top.view(-1, 1) - PAD  # (B, W), (B, H)
    inside = ((x >= 0) & (x < width)).unsqueeze(1) & ((y >= 0) & (y < height)).unsqueeze(2)
    place = (rows.view(-1, 1, 1) * height + y.clamp(0, height - 1).unsqueeze(2)) * width
    place = place + x.clamp(0, width - 1).unsqueeze(1)  # (B, H, W), of a pixel among all
    found = images.view(count * height * width, channels).index_select(0, place.view(-1))
    return found.view(*place.shape, channels) * inside.unsqueeze(-1)


def normalised(pixels: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """Bytes (B, H, W, C) -> numbers (B, C, H, W) in the channels-last layout; mean and std (C,) are of bytes / 255."""
    return ((pixels.float() / 255 - mean) / std).permute(0, 3, 1, 2)
