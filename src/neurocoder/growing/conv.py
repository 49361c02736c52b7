"""Convolutional growing layers: every image finds its slots by its control, or by the means of its channels."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as tnf

from ..layer.conv import CodedConv
from .config import GrowingConfig
from .functional import Reading, blended
from .layer import GrowingLayer
from .notes import attach_stats


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
        sizes = (in_channels, out_channels, kernel_size, stride, padding, dilation, groups, padding_mode)
        shape = self.set_geometry(*sizes)
        GrowingLayer.__init__(
            self,
            shape,
            self.in_channels,
            bias=bias,
            growing=growing,
            control_dim=control_dim,
            device=device,
            dtype=dtype,
        )

    def forward(self, x: Tensor, control: Tensor | None = None) -> Tensor:
        """The convolution of each image with its own kernel, `W_t = sum_r (w.U_r)^T (w.V_r) [+ R]`.

        Args:
            x: ([B,] in_channels, *size).
            control: z ([B,] control_dim); without B, one for all images.

        Returns:
            ([B,] out_channels, *size')
        """
        reading, z, leading = self.read(x, self.resolve_control(control))
        self.record_programs(reading, leading)
        images, padding = self._pad(x if leading else x.unsqueeze(0))
        y = self._execute(images, padding, blended(self.memory.U, reading), reading)
        y = attach_stats(y, self.make_stats(reading, z))
        convolve = type(self).convolve
        if self.R is not None:
            y = y + convolve(images, self.R, self.bias, self.stride, padding, self.dilation)
        elif self.bias is not None:
            y = y + self.bias.to(y.dtype).view(-1, *[1] * self.spatial)
        return y if leading else y.squeeze(0)

    def _execute(self, images: Tensor, padding: tuple[int, ...] | str, u: Tensor, reading: Reading) -> Tensor:
        """`sum_r (u_r * x) v_r`: one grouped convolution, in which each image is a group."""
        count, rank = len(images), self.config.rank
        if count == 0:  # a convolution without groups; it still reaches every parameter
            kernel = u.new_zeros(self.out_channels, self.in_channels, *self.kernel_size).to(images.dtype)
            reached = u.sum() + blended(self.memory.V, reading).sum()
            empty = type(self).convolve(images, kernel, None, self.stride, padding, self.dilation)
            return empty + reached.to(empty.dtype)
        kernels = u.reshape(count * rank, self.in_channels, *self.kernel_size)
        flat = images.reshape(1, count * self.in_channels, *images.shape[2:])
        read = type(self).convolve(flat, kernels, None, self.stride, padding, self.dilation, count)
        size = read.shape[2:]
        v = blended(self.memory.V, reading)
        return torch.matmul(v.mT, read.reshape(count, rank, -1)).unflatten(-1, size)

    def materialize(self, x: Tensor, control: Tensor | None = None) -> Tensor:
        """`W_t` ([B,] out_channels, in_channels, *kernel_size) of each image. For inspection."""
        weight, leading = self.working_programs(x, control)
        return weight.mT.reshape(*leading, *self.weight_shape)


class GrowingConv1d(_GrowingConv):
    """`nn.Conv1d` with growing memory: ([B,] C_in, L) -> ([B,] C_out, L').

    Example:
        >>> nc.GrowingConv1d(3, 6, kernel_size=5, padding=2)(torch.randn(8, 3, 20)).shape
        torch.Size([8, 6, 20])
    """

    spatial, plain_type, convolve = 1, nn.Conv1d, tnf.conv1d


class GrowingConv2d(_GrowingConv):
    """`nn.Conv2d` with growing memory: ([B,] C_in, H, W) -> ([B,] C_out, H', W').

    Example:
        >>> nc.GrowingConv2d(3, 6, kernel_size=3, padding=1)(torch.randn(8, 3, 16, 16)).shape
        torch.Size([8, 6, 16, 16])
    """

    spatial, plain_type, convolve = 2, nn.Conv2d, tnf.conv2d
