"""The geometry of a convolution: U is a bank of P filters, the mix a P x P map per image, V a 1x1 convolution.
Every image has one program, steered by its globally pooled input unless `control_dim` is set."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as tnf

from .active import ActiveProgram
from .base import CodedLayer
from .checks import require_choice, require_floating, require_whole, whole
from .config import Config


class CodedConv(CodedLayer):
    """The geometry of a convolution, shared by the coded layers that replace `nn.ConvNd`; each image has one weight.

    Built with `nn.ConvNd`'s arguments in their order, then `config, control_dim=, device=, dtype=`.

    Example:
        >>> isinstance(nc.Conv1d(3, 6, 5), nc.CodedConv), isinstance(nc.GrowingConv2d(3, 6, 5), nc.CodedConv)
        (True, True)
    """

    required = ("in_channels", "out_channels", "kernel_size")
    spatial: ClassVar[int]
    convolve: ClassVar[Callable[..., Tensor]]
    in_channels: int
    out_channels: int
    kernel_size: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...] | str
    dilation: tuple[int, ...]
    groups: int
    padding_mode: str

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
        config: Config | None = None,
        *,
        control_dim: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        name = type(self).__name__
        self.in_channels = require_whole(f"{name}: in_channels", in_channels)
        self.out_channels = require_whole(f"{name}: out_channels", out_channels)
        if whole(groups) != 1:
            raise ValueError(f"{name}: groups must be 1 (a program spans all channels), got {groups!r}")
        require_choice(f"{name}: padding_mode", padding_mode, ("zeros", "reflect", "replicate", "circular"))
        self.kernel_size = self._sizes("kernel_size", kernel_size, 1)
        self.stride = self._sizes("stride", stride, 1)
        self.dilation = self._sizes("dilation", dilation, 1)
        self.groups, self.padding_mode = 1, padding_mode
        if isinstance(padding, str):
            if padding not in ("same", "valid"):
                raise ValueError(f"{name}: padding must be 'same', 'valid' or whole numbers, got {padding!r}")
            if padding == "same" and any(step != 1 for step in self.stride):
                raise ValueError(f"{name}: padding='same' needs stride 1, got {self.stride}")
            self.padding = padding
        else:
            self.padding = self._sizes("padding", padding, 0)
        shape = (self.out_channels, self.in_channels, *self.kernel_size)
        super().__init__(config, shape, control_dim, bias=bias, dtype=dtype)
        self.create(bias, device, dtype)

    def _sizes(self, name: str, value: Any, low: int) -> tuple[int, ...]:
        """One whole number for each spatial dimension."""
        each = value if isinstance(value, tuple | list) else (value,) * self.spatial
        sizes = tuple(size for size in (whole(item, low) for item in each) if size is not None)
        if not len(sizes) == len(each) == self.spatial:
            raise ValueError(
                f"{type(self).__name__}: {name} must be a whole number >= {low} or {self.spatial} such, got {value!r}"
            )
        return sizes

    @staticmethod
    def arguments(layer: Any) -> tuple[Any, ...]:
        """The arguments of `nn.ConvNd`."""
        sizes = (layer.in_channels, layer.out_channels, layer.kernel_size, layer.stride, layer.padding, layer.dilation)
        return (*sizes, layer.groups, layer.bias is not None, layer.padding_mode)

    def _pad(self, x: Tensor) -> tuple[Tensor, tuple[int, ...] | str]:
        """Apply a padding mode that the convolution does not support; returns x and the padding left to do."""
        if self.padding_mode == "zeros":
            return x, self.padding
        margins: list[int] = []
        for i in reversed(range(self.spatial)):
            total = self.dilation[i] * (self.kernel_size[i] - 1) if self.padding == "same" else 0
            total = total if isinstance(self.padding, str) else 2 * self.padding[i]
            margins += [total // 2, total - total // 2]
        return tnf.pad(x, margins, mode=self.padding_mode), (0,) * self.spatial

    def rows(self, x: Tensor, control: Tensor | None) -> tuple[Tensor, torch.Size]:
        unbatched = self.spatial + 1
        name = type(self).__name__
        require_floating(f"{name}: x", x)
        if x.dim() not in (unbatched, unbatched + 1) or x.shape[-unbatched] != self.in_channels:
            shape = f"([B,] {self.in_channels}, {', '.join('DHW'[-self.spatial :])})"
            raise ValueError(f"{name}: x must have shape {shape}, got {tuple(x.shape)}")
        leading = x.shape[:-unbatched]
        if control is None:
            control = x.flatten(-self.spatial).mean(-1)
        else:
            self.match_control(control, leading)
            control = control.expand(*leading, -1)
        return control.reshape(-1, control.shape[-1]), leading

    def forward(self, x: Tensor, control: Tensor | None = None) -> Tensor:
        """The convolution of each image with its own kernel.

        Args:
            x: ([B,] in_channels, *size).
            control: z ([B,] control_dim); without B, one for all images.

        Returns:
            ([B,] out_channels, *size')
        """
        control = self.resolve_control(control)
        rows, leading = self.rows(x, control)
        self.record_programs(x, control)
        y = self.execute(*self._pad(x if leading else x.unsqueeze(0)), self.compose(rows))
        return y if leading else y.squeeze(0)

    def execute(self, images: Tensor, padding: tuple[int, ...] | str, active: ActiveProgram) -> Tensor:
        """The active program of each image (B, in_channels, *size), applied to it: (B, out_channels, *size')."""
        bias, R, convolve = self.bias, self.R, type(self).convolve
        if active.U.dim() == 2:
            read = self._filter(images, active.U.view(-1, self.in_channels, *self.kernel_size), padding)
            mixed = active.coefficients(read.flatten(2).mT).mT.unflatten(-1, read.shape[2:])
            y, bias = convolve(mixed, active.V.mT.view(self.out_channels, -1, *[1] * self.spatial), bias), None
        else:
            y = self._execute_own(images, padding, active)
        each = (-1, *[1] * self.spatial)
        if R is not None:
            xR = self._filter(images, R, padding, bias if active.scale is None else None)
            y = y + (xR if active.scale is None else active.scale.view(-1, 1, *each[1:]) * xR).to(y.dtype)
            bias = bias if active.scale is not None else None
        return active.finish(y if bias is None else y + bias.to(y.dtype).view(each))

    def _execute_own(self, images: Tensor, padding: tuple[int, ...] | str, active: ActiveProgram) -> Tensor:
        """With U and V for each image: one grouped convolution, in which each image is a group."""
        U, V = active.U, active.V
        count, rows = U.shape[:2]
        if count == 0:  # a convolution without groups; it still reaches every parameter
            kernel = U.new_zeros(self.weight_shape).to(images.dtype)
            empty, reached = self._filter(images, kernel, padding), U.sum() + V.sum()
            return empty + reached.to(empty.dtype)
        kernels = U.reshape(count * rows, self.in_channels, *self.kernel_size)
        flat = images.reshape(1, count * self.in_channels, *images.shape[2:])
        read = type(self).convolve(flat, kernels, None, self.stride, padding, self.dilation, count)
        mixed = active.coefficients(read.reshape(count, rows, -1).mT).mT
        return torch.matmul(V.mT, mixed).unflatten(-1, read.shape[2:])

    def _filter(self, x: Tensor, kernel: Tensor, padding: tuple[int, ...] | str, bias: Tensor | None = None) -> Tensor:
        """The convolution of all images with one kernel."""
        return type(self).convolve(x, kernel, bias, self.stride, padding, self.dilation)

    def materialized(self, weight: Tensor, leading: torch.Size) -> Tensor:
        """([B,] out_channels, in_channels, *kernel_size)"""
        return weight.expand(math.prod(leading), -1, -1).mT.reshape(*leading, *self.weight_shape)

    def extra_repr(self) -> str:
        geometry = f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, stride={self.stride}"
        mode = "" if self.padding_mode == "zeros" else f", padding_mode={self.padding_mode}"
        return f"{geometry}, padding={self.padding}, dilation={self.dilation}{mode}, {self.describe()}"


class CodedConv1d(CodedConv):
    """The geometry of `nn.Conv1d`: ([B,] C_in, L) -> ([B,] C_out, L').

    Example:
        >>> isinstance(nc.Conv1d(3, 6, 5), nc.CodedConv1d), isinstance(nc.GrowingConv1d(3, 6, 5), nc.CodedConv1d)
        (True, True)
    """

    spatial, plain_type, convolve = 1, nn.Conv1d, tnf.conv1d


class CodedConv2d(CodedConv):
    """The geometry of `nn.Conv2d`: ([B,] C_in, H, W) -> ([B,] C_out, H', W').

    Example:
        >>> isinstance(nc.Conv2d(3, 6, 5), nc.CodedConv2d), isinstance(nc.GrowingConv2d(3, 6, 5), nc.CodedConv2d)
        (True, True)
    """

    spatial, plain_type, convolve = 2, nn.Conv2d, tnf.conv2d
