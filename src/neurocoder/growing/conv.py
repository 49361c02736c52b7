"""Convolutional growing layers: every image finds its slots by its control, or by the means of its channels."""

from __future__ import annotations

import torch

from ..layer.conv import CodedConv, CodedConv1d, CodedConv2d
from .config import GrowingConfig
from .layer import GrowingLayer


class _GrowingConv(CodedConv, GrowingLayer):
    """`nn.ConvNd` whose kernels are allocated for new images."""

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
        growing: GrowingConfig | None = None,
        *,
        control_dim: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        geometry = (in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias, padding_mode)
        super().__init__(*geometry, growing, control_dim=control_dim, device=device, dtype=dtype)


class GrowingConv1d(_GrowingConv, CodedConv1d):
    """`nn.Conv1d` with growing memory: ([B,] C_in, L) -> ([B,] C_out, L').

    Example:
        >>> nc.GrowingConv1d(3, 6, kernel_size=5, padding=2)(torch.randn(8, 3, 20)).shape
        torch.Size([8, 6, 20])
    """


class GrowingConv2d(_GrowingConv, CodedConv2d):
    """`nn.Conv2d` with growing memory: ([B,] C_in, H, W) -> ([B,] C_out, H', W').

    Example:
        >>> nc.GrowingConv2d(3, 6, kernel_size=3, padding=1)(torch.randn(8, 3, 16, 16)).shape
        torch.Size([8, 6, 16, 16])
    """
