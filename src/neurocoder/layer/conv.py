"""Convolutional program layers: `M_U` is a bank of P filters, the mix a P x P map per image, `M_V` a 1x1 convolution.
Every image has one program, steered by its globally pooled input unless `control_dim` is set."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as tnf

from ..program.dispatch import compose, implementation
from ..program.layer import ProgramLayer
from .base import CodedLayer, require_floating, require_plain, require_size
from .config import ProgramConfig, whole

_PADDING_MODES = ("zeros", "reflect", "replicate", "circular")


class CodedConv(CodedLayer):
    """The geometry of a convolution, shared by the coded layers that replace `nn.ConvNd`; each image has one weight.

    Built with `nn.ConvNd`'s arguments in their order, then `config, control_dim=, device=, dtype=`.
    """

    spatial: ClassVar[int]
    plain_type: ClassVar[Callable[..., nn.Module]]
    convolve: ClassVar[Callable[..., Tensor]]
    in_channels: int
    out_channels: int
    kernel_size: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...] | str
    dilation: tuple[int, ...]
    groups: int
    padding_mode: str

    def set_geometry(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | tuple[int, ...],
        stride: int | tuple[int, ...],
        padding: int | tuple[int, ...] | str,
        dilation: int | tuple[int, ...],
        groups: int,
        padding_mode: str,
    ) -> tuple[int, ...]:
        """Check and keep the geometry; returns the shape of the plain layer's weight."""
        name = type(self).__name__
        self.in_channels = require_size(name, "in_channels", in_channels)
        self.out_channels = require_size(name, "out_channels", out_channels)
        if whole(groups) != 1:
            raise ValueError(f"{name}: groups must be 1 (a program spans all channels), got {groups!r}")
        if padding_mode not in _PADDING_MODES:
            raise ValueError(f"{name}: padding_mode must be one of {_PADDING_MODES}, got {padding_mode!r}")
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
        return (self.out_channels, self.in_channels, *self.kernel_size)

    def _sizes(self, name: str, value: Any, low: int) -> tuple[int, ...]:
        """One whole number for each spatial dimension."""
        each = value if isinstance(value, tuple | list) else (value,) * self.spatial
        sizes = tuple(size for size in (whole(item, low) for item in each) if size is not None)
        if not len(sizes) == len(each) == self.spatial:
            raise ValueError(
                f"{type(self).__name__}: {name} must be a whole number >= {low} or {self.spatial} such, got {value!r}"
            )
        return sizes

    @classmethod
    def like(
        cls, plain: Any, config: Any, *, control_dim: int | None = None, device: torch.device | str | None = None
    ) -> Self:
        require_plain(cls.__name__, plain, "in_channels", "out_channels", "kernel_size")
        build: Any = cls
        return build(
            *_arguments(plain),
            config,
            control_dim=control_dim,
            device=plain.weight.device if device is None else device,
            dtype=plain.weight.dtype,
        )

    def to_plain(self) -> nn.Module:
        tensor = self.prototype
        options = {"device": tensor.device, "dtype": tensor.dtype}
        return nn.utils.skip_init(type(self).plain_type, *_arguments(self), **options)

    def _pad(self, x: Tensor) -> tuple[Tensor, tuple[int, ...] | str]:
        """Apply a padding mode that the convolution does not support; returns x and the padding left to do."""
        if self.padding_mode == "zeros":
            return x, self.padding
        margins: list[int] = []
        for i in reversed(range(self.spatial)):
            if self.padding == "same":
                total = self.dilation[i] * (self.kernel_size[i] - 1)
                margins += [total // 2, total - total // 2]
            else:
                margins += [0, 0] if isinstance(self.padding, str) else [self.padding[i]] * 2
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

    def extra_repr(self) -> str:
        geometry = f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, stride={self.stride}"
        mode = "" if self.padding_mode == "zeros" else f", padding_mode={self.padding_mode}"
        return f"{geometry}, padding={self.padding}, dilation={self.dilation}{mode}, {self.describe()}"


def _arguments(layer: Any) -> tuple[Any, ...]:
    """The arguments that `nn.ConvNd` builds this geometry from, in their order."""
    sizes = (layer.in_channels, layer.out_channels, layer.kernel_size, layer.stride, layer.padding, layer.dilation)
    return (*sizes, layer.groups, layer.bias is not None, layer.padding_mode)


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
        sizes = (in_channels, out_channels, kernel_size, stride, padding, dilation, groups, padding_mode)
        shape = self.set_geometry(*sizes)
        ProgramLayer.__init__(
            self,
            shape,
            self.in_channels,
            bias=bias,
            program=program,
            control_dim=control_dim,
            device=device,
            dtype=dtype,
        )

    def _filter(self, x: Tensor, kernel: Tensor, padding: tuple[int, ...] | str) -> Tensor:
        return type(self).convolve(x, kernel, None, self.stride, padding, self.dilation)

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
        images, padding = self._pad(x if leading else x.unsqueeze(0))
        program = compose(implementation(self, rows), self, rows)
        read = self._filter(images, program.U.view(-1, self.in_channels, *self.kernel_size), padding)
        y = type(self).convolve(
            program.execute(read.flatten(2).mT).mT.unflatten(-1, read.shape[2:]),
            program.V.mT.view(self.out_channels, -1, *([1] * self.spatial)),
            self.bias,
        )
        if self.R is not None:
            xR = self._filter(images, self.R, padding)
            if program.scale is not None:
                xR = program.scale.view(-1, *([1] * (self.spatial + 1))) * xR
            y = y + xR.to(y.dtype)
        return y if leading else y.squeeze(0)

    def materialize(self, x: Tensor, control: Tensor | None = None) -> Tensor:
        """`W_t` ([B,] out_channels, in_channels, *kernel_size) of each image. For inspection: memory grows with B."""
        working = self.working_programs(self.programs(x, control))
        return working.mT.unflatten(-1, (self.in_channels, *self.kernel_size))


class Conv1d(_Conv):
    """`nn.Conv1d` whose kernel is composed for each sequence: ([B,] C_in, L) -> ([B,] C_out, L').

    Example:
        >>> nc.Conv1d(3, 6, kernel_size=5, padding=2)(torch.randn(8, 3, 20)).shape
        torch.Size([8, 6, 20])
    """

    spatial, plain_type, convolve = 1, nn.Conv1d, tnf.conv1d


class Conv2d(_Conv):
    """`nn.Conv2d` whose kernel is composed for each image: ([B,] C_in, H, W) -> ([B,] C_out, H', W').

    Example:
        >>> layer = nc.Conv2d(3, 6, kernel_size=3, padding=1, program=nc.ProgramConfig(slots=10))
        >>> images = torch.randn(8, 3, 16, 16)
        >>> layer(images).shape
        torch.Size([8, 6, 16, 16])
        >>> layer.materialize(images).shape  # a kernel for each image
        torch.Size([8, 6, 3, 3, 3])
    """

    spatial, plain_type, convolve = 2, nn.Conv2d, tnf.conv2d
