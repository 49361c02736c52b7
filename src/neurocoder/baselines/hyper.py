"""HyperNetwork (Ha, Dai & Le, 2017): a small network generates scales for a weight's rows, for each input."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Unpack

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from ..layer.config import Config
from ..layer.linear import Options
from ..layer.start import affine, affine_start, plain_weight
from .conditional import ConditionalLinear


@dataclass(frozen=True)
class HyperConfig(Config):
    """HyperNetwork (Ha, Dai & Le, 2017): a small network generates scales for the weight.

    Example:
        >>> model = nc.recode(nn.Sequential(nn.Linear(8, 4)), "0", nc.HyperConfig(hidden=16))
        >>> type(model[0]).__name__
        'HyperLinear'
    """

    hidden: int = 32
    """Size of the hidden layer of the network that generates the scales."""

    owner: ClassVar[str] = "hyper"

    def __post_init__(self) -> None:
        self._keep_whole("hidden")


class HyperLinear(ConditionalLinear):
    """`y = s(x) * (x W^T) + bias`, with `s = 1 + B tanh(A x + a) + b`: row i of the weight is scaled by `s_i`.

    This is the paper's memory-efficient form: scaling the weight's rows scales the outputs, so no weight is built.

    Example:
        >>> layer = nc.HyperLinear(8, 4, hyper=nc.HyperConfig(hidden=16))
        >>> layer(torch.randn(32, 8)).shape
        torch.Size([32, 4])
    """

    config_type = HyperConfig
    config: HyperConfig
    parts = dict.fromkeys(("hidden_weight", "hidden_bias", "scale_weight", "scale_bias"), "controller")

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        hyper: HyperConfig | None = None,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(in_features, out_features, bias, hyper, **options)

    @property
    def prototype(self) -> Tensor:
        return self.base  # a replica of DataParallel has no parameters()

    def build(self, options: dict[str, Any]) -> None:
        hidden = self.config.hidden
        self.base = nn.Parameter(torch.empty(self.weight_shape, **options))
        self.hidden_weight, self.hidden_bias = affine(self.control_width, hidden, **options)
        self.scale_weight, self.scale_bias = affine(hidden, self.out_features, **options)

    def start(self) -> None:
        """Start the base like a plain layer's weight and the small network's last layer at zero: all scales are one."""
        self.base.copy_(plain_weight(self.weight_shape))
        affine_start(self.hidden_weight, self.hidden_bias)
        nn.init.zeros_(self.scale_weight)
        nn.init.zeros_(self.scale_bias)

    def start_from(self, weight: Tensor) -> None:
        self.base.copy_(weight)

    def weight_parameters(self) -> Iterator[nn.Parameter]:
        yield self.base

    def reader(self) -> Tensor:
        return self.scale_weight

    def code(self, rows: Tensor) -> Tensor:
        """s (N, out_features)."""
        hidden = torch.tanh(linear(rows, self.hidden_weight, self.hidden_bias))
        return 1 + linear(hidden, self.scale_weight, self.scale_bias)

    def weight_of(self, code: Tensor) -> Tensor:
        return code.unsqueeze(-1) * self.base

    def apply_code(self, x: Tensor, code: Tensor) -> Tensor:
        y = linear(x, self.base)
        return code.unsqueeze(-2).to(y.dtype) * y
