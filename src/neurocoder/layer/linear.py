"""The geometry of a linear layer, shared by the coded layers that replace `nn.Linear`."""

from __future__ import annotations

import math
from typing import Any, Self

import torch
from torch import Tensor, nn

from .base import CodedLayer, require_floating, require_plain, require_size


class CodedLinear(CodedLayer):
    """Maps (..., in_features) to (..., out_features); built as `cls(in_features, out_features, bias, config, ...)`.

    Example:
        >>> isinstance(nc.Linear(8, 4), nc.CodedLinear), isinstance(nc.MixtureLinear(8, 4), nc.CodedLinear)
        (True, True)
    """

    in_features: int
    out_features: int

    def set_sizes(self, in_features: int, out_features: int) -> tuple[int, int]:
        """Check and keep the sizes; returns the shape of the plain layer's weight."""
        self.in_features = require_size(type(self).__name__, "in_features", in_features)
        self.out_features = require_size(type(self).__name__, "out_features", out_features)
        return self.out_features, self.in_features

    @classmethod
    def like(
        cls, plain: Any, config: Any, *, control_dim: int | None = None, device: torch.device | str | None = None
    ) -> Self:
        require_plain(cls.__name__, plain, "in_features", "out_features")
        build: Any = cls
        return build(
            plain.in_features,
            plain.out_features,
            plain.bias is not None,
            config,
            control_dim=control_dim,
            device=plain.weight.device if device is None else device,
            dtype=plain.weight.dtype,
        )

    def to_plain(self) -> nn.Linear:
        tensor = self.prototype
        options = {"device": tensor.device, "dtype": tensor.dtype}
        return nn.utils.skip_init(nn.Linear, self.in_features, self.out_features, self.bias is not None, **options)

    def rows(self, x: Tensor, control: Tensor | None) -> tuple[Tensor, torch.Size]:
        """What the controller reads, flattened (N, control width), and its leading dimensions."""
        name = type(self).__name__
        require_floating(f"{name}: x", x)
        if x.dim() == 0 or x.shape[-1] != self.in_features:
            raise ValueError(f"{name}: x must have shape (..., {self.in_features}), got {tuple(x.shape)}")
        if control is None:
            return x.reshape(-1, self.in_features), x.shape[:-1]
        self.match_control(control, x.shape[:-1])
        return control.reshape(-1, control.shape[-1]), control.shape[:-1]

    def grouped(self, x: Tensor, rows: Tensor, leading: torch.Size) -> Tensor:
        """The inputs as (N, T, in_features): T inputs share the weight of one row; T is 1 without a control."""
        return x.reshape(rows.shape[0], math.prod(x.shape[len(leading) : -1]), self.in_features)

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, {self.describe()}"
