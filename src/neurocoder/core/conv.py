"""Convolutional core layers: every image has one blend, by its control or by the means of its channels."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import linear

from ..layer.active import ActiveProgram
from ..layer.conv import CodedConv, CodedConv1d, CodedConv2d
from . import functional as F
from .config import CoreConfig
from .layer import CoreLayer


class _CoreConv(CodedConv, CoreLayer):
    """`nn.ConvNd` whose kernel is moved by a blend of programs for each image."""

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
        core: CoreConfig | None = None,
        *,
        control_dim: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        geometry = (in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias, padding_mode)
        super().__init__(*geometry, core, control_dim=control_dim, device=device, dtype=dtype)

    def read(self, rows: Tensor, U: Tensor) -> tuple[Tensor, Tensor]:
        """The slots read an image's mean patch: the means of its channels, at every place of the kernel."""
        assert self.memory is not None
        a = linear(rows, U.view(len(U), self.in_channels, -1).sum(-1))
        h = self.reader(F.normalised(a, F.mean_square(a)))
        return h, F.gain_bound(F.composed(h, self.memory.cores))

    def execute(self, images: Tensor, padding: tuple[int, ...] | str, active: ActiveProgram) -> Tensor:
        if self.memory is not None:
            return super().execute(images, padding, active)
        y = self._filter(images, self.residual, padding)
        each = (-1, *[1] * self.spatial)
        y = y if active.scale is None else active.scale.to(y.dtype).view(-1, 1, *each[1:]) * y
        return y if self.bias is None else y + self.bias.to(y.dtype).view(each)


class CoreConv1d(_CoreConv, CodedConv1d):
    """`nn.Conv1d` whose kernel is moved by a blend of programs: ([B,] C_in, L) -> ([B,] C_out, L').

    Example:
        >>> layer = nc.CoreConv1d(3, 6, kernel_size=5, padding=2, control_dim=4)
        >>> layer(torch.randn(8, 3, 20), control=torch.randn(8, 4)).shape
        torch.Size([8, 6, 20])
    """


class CoreConv2d(_CoreConv, CodedConv2d):
    """`nn.Conv2d` whose kernel is moved by a blend of programs: ([B,] C_in, H, W) -> ([B,] C_out, H', W').

    Example:
        >>> layer = nc.CoreConv2d(3, 16, kernel_size=3, padding=1, control_dim=4)
        >>> layer(torch.randn(8, 3, 16, 16), control=torch.randn(8, 4)).shape
        torch.Size([8, 16, 16, 16])
    """
