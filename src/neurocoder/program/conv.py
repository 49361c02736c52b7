"""Convolutional program layers."""

from __future__ import annotations

import torch

from ..layer.conv import CodedConv, CodedConv1d, CodedConv2d
from .config import ProgramConfig
from .layer import ProgramLayer


class _Conv(CodedConv, ProgramLayer):
    """`nn.ConvNd` whose kernel is composed for each image."""

    pooled_control = True

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | tuple[int, ...],
        stride: int | tuple[int, ...] = 1,
        padding: int | tuple[int, ...] | str = 0,
        dilation: int | tuple[int, ...] = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: str = "zeros",
        program: ProgramConfig | None = None,
        *,
        control_dim: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        geometry = (in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias, padding_mode)
        super().__init__(*geometry, program, control_dim=control_dim, device=device, dtype=dtype)


class Conv1d(_Conv, CodedConv1d):
    """`nn.Conv1d` whose kernel is composed for each sequence: ([B,] C_in, L) -> ([B,] C_out, L').

    Example:
        >>> nc.Conv1d(3, 6, kernel_size=5, padding=2)(torch.randn(8, 3, 20)).shape
        torch.Size([8, 6, 20])
    """


class Conv2d(_Conv, CodedConv2d):
    """`nn.Conv2d` whose kernel is composed for each image: ([B,] C_in, H, W) -> ([B,] C_out, H', W').

    Example:
        >>> layer = nc.Conv2d(3, 6, kernel_size=3, padding=1, program=nc.ProgramConfig(slots=10))
        >>> images = torch.randn(8, 3, 16, 16)
        >>> layer(images).shape
        torch.Size([8, 6, 16, 16])
        >>> layer.materialize(images).shape  # a kernel for each image
        torch.Size([8, 6, 3, 3, 3])
    """
