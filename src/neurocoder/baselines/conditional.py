"""The base of the baselines: a linear layer whose weight depends on a small code of the input, and is never built."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..layer.linear import CodedLinear
from ..layer.start import full_precision, plain_weight


class ConditionalLinear(CodedLinear):
    """`y = x W(c)^T + bias` with a weight `W` (d_out, d_in) that is linear in the code `c` (C,) of the input.

    A subclass creates its parameters in `build`, sets their values in `start` and `start_from`, and defines the code of
    an input, the weight of a code, and how to apply that weight without building it.
    """

    def drawn_bias(self) -> Tensor:
        return plain_weight((self.out_features, 1))[:, 0] / math.sqrt(self.in_features)

    def code(self, rows: Tensor) -> Tensor:
        """c (N, C) of N inputs or controls (N, control_width)."""
        raise NotImplementedError

    def reader(self) -> Tensor:
        """The weight through which the code depends on the input: if it is zero, the code is constant."""
        raise NotImplementedError

    def weight_of(self, code: Tensor) -> Tensor:
        """W (..., d_out, d_in) of codes (..., C). For inspection."""
        raise NotImplementedError

    def apply_code(self, x: Tensor, code: Tensor) -> Tensor:
        """`x W(c)^T` without building W: x (N, T, d_in), T inputs per code (N, C) -> (N, T, d_out)."""
        raise NotImplementedError

    def forward_code(self, rows: Tensor) -> Tensor:
        """The code that a forward uses: `code`, unless training differs."""
        return self.code(rows)

    def outputs(self, x: Tensor, rows: Tensor, leading: torch.Size) -> Tensor:
        y = self.apply_code(self.grouped(x, rows, leading), self.forward_code(rows))
        return y if self.bias is None else y + self.bias.to(y.dtype)

    def materialize(self, x: Tensor, control: Tensor | None = None) -> Tensor:
        """The weight (..., in_features, out_features) of each input. For inspection: memory grows with the batch."""
        rows, leading = self.rows(x, self.resolve_control(control))
        return self.weight_of(self.code(rows)).mT.reshape(*leading, self.in_features, self.out_features)

    def constant_weight(self) -> Tensor | None:
        if torch.count_nonzero(self.reader()):
            return None
        with full_precision(self.prototype.device):
            return self.weight_of(self.code(self.prototype.new_zeros(1, self.control_width))[0])

    def mean_weight(self, x: Tensor, control: Tensor | None = None) -> tuple[Tensor, int]:
        rows, _ = self.rows(x, self.resolve_control(control))
        return self.weight_of(self.code(rows).mean(0)).detach(), len(rows)
