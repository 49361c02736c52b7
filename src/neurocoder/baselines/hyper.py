"""HyperNetwork (Ha, Dai & Le, 2017): a small network generates, for each input, scales of a weight's rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from .. import initialisation
from ..config import HyperConfig
from ..geometry import LinearGeometry


class HyperLinear(LinearGeometry):
    """`y = s(x) * (x W^T) + bias`, with `s = 1 + B tanh(A x + a) + b`: row i of the weight is scaled by `s_i`.

    This is the paper's memory-efficient form: scaling rows of the weight is scaling outputs, so no weight is built.
    """

    config_type = HyperConfig
    config: HyperConfig
    parts = {"base": "main", "generator": "controller", "bias": "main"}

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        hyper: HyperConfig | None = None,
        *,
        control_dim: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(hyper, self.set_geometry(in_features, out_features), control_dim)
        options: dict[str, Any] = {"device": device, "dtype": dtype}
        self.base = nn.Parameter(torch.empty(self.weight_shape, **options))
        self.generator = nn.Sequential(
            nn.Linear(control_dim or in_features, self.config.hidden, **options),
            nn.Tanh(),
            nn.Linear(self.config.hidden, out_features, **options),
        )
        self.bias = nn.Parameter(torch.empty(out_features, **options)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """The base as a plain layer's weight; the generator's last layer at zero, so that every scale starts at one."""
        if self.base.is_meta:
            return
        with torch.no_grad():
            self.base.copy_(initialisation.plain_weight(self.weight_shape))
            first = nn.Linear(self.generator[0].in_features, self.config.hidden, device="cpu", dtype=torch.float32)
            self.generator[0].load_state_dict(first.state_dict())
            nn.init.zeros_(self.generator[2].weight)
            nn.init.zeros_(self.generator[2].bias)
            if self.bias is not None:
                self.bias.copy_(initialisation.plain_weight(self.weight_shape)[:, 0])

    def start_from(self, weight: Tensor) -> None:
        self.base.copy_(weight)

    def weight_parameters(self) -> Iterator[nn.Parameter]:
        yield self.base

    def scales(self, rows: Tensor) -> Tensor:
        """s (N, out_features)."""
        return 1 + self.generator(rows)

    def constant_weight(self) -> Tensor | None:
        last = self.generator[2]
        if torch.count_nonzero(last.weight):
            return None
        return (self.base * (1 + last.bias).unsqueeze(-1)).detach()

    def mean_weight(self, x: Tensor, control: Tensor | None = None) -> tuple[Tensor, int]:
        rows, _ = self.rows(x, self.resolve_control(control))
        return (self.base * self.scales(rows).mean(0).unsqueeze(-1)).detach(), len(rows)

    def materialize(self, x: Tensor, control: Tensor | None = None) -> Tensor:
        """The scaled weight (..., in_features, out_features) of each input. For study."""
        rows, leading = self.rows(x, self.resolve_control(control))
        return (self.base.mT * self.scales(rows).unsqueeze(-2)).reshape(*leading, *self.base.mT.shape)

    def forward(self, x: Tensor, control: Tensor | None = None) -> Tensor:
        """(..., in_features) -> (..., out_features)."""
        rows, leading = self.rows(x, self.resolve_control(control))
        y = linear(self.grouped(x, rows, leading), self.base)
        y = (self.scales(rows).unsqueeze(-2) * y).to(y.dtype)
        if self.bias is not None:
            y = y + self.bias.to(y.dtype)
        return y.reshape(x.shape[:-1] + (self.out_features,))

    def auxiliary_loss(self) -> Tensor:
        return self.base.new_zeros(())

    def describe(self) -> str:
        return f"bias={self.bias is not None}, hidden={self.config.hidden}"
