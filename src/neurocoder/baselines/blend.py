"""What mixtures and stored programs share: a bank of whole weights, blended for each input without building the blend."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from .. import initialisation
from ..geometry import LinearGeometry

_DIFFERENCE = 0.01
"""How far, relative to its norm, each weight of the bank starts from the plain layer's."""


def blend(x: Tensor, bank: Tensor, share: Tensor) -> Tensor:
    """`y = sum_i share_i (x W_i^T)`.

    Args:
        x: (N, T, d_in), T inputs under one share.
        bank: W (E, d_out, d_in).
        share: (N, E).

    Returns:
        (N, T, d_out)
    """
    answers = torch.nn.functional.linear(x, bank.flatten(0, 1)).unflatten(-1, bank.shape[:2])
    return torch.matmul(share[:, None, None, :].to(answers.dtype), answers).squeeze(-2)


class BlendedLinear(LinearGeometry):
    """A linear layer whose weight is `sum_i share_i(x) W_i` over a bank of whole weights."""

    bank: nn.Parameter
    """W (E, d_out, d_in)"""

    def share(self, rows: Tensor) -> Tensor:
        """The share of each weight of the bank (N, E), which sums to one."""
        raise NotImplementedError

    def control_reads_nothing(self) -> bool:
        """Whether the share is the same for every input."""
        raise NotImplementedError

    def reset_bank(self) -> None:
        """Every weight starts as a plain layer's."""
        for weight in self.bank:
            weight.copy_(initialisation.plain_weight(self.weight_shape))
        if self.bias is not None:
            self.bias.copy_(initialisation.plain_weight(self.weight_shape)[:, 0])

    def constant_share(self) -> Tensor:
        """The share (1, E) where it is the same for every input; a mixture's noise is off."""
        mode = self.training
        width = self.in_features if self.control_dim is None else self.control_dim
        share = self.eval().share(self.bank.new_zeros(1, width)).detach()
        self.train(mode)
        return share

    def start_from(self, weight: Tensor) -> None:
        """Every weight starts near the given one; the blend of the first share is the given one exactly."""
        noise = torch.randn(self.bank.shape, device="cpu", dtype=torch.float32).to(self.bank)
        noise = noise * (_DIFFERENCE * weight.norm() / weight.numel() ** 0.5)
        common = torch.einsum("e,eoi->oi", self.constant_share()[0], noise)
        self.bank.copy_(weight + noise - common)

    def weight_parameters(self) -> Iterator[nn.Parameter]:
        yield self.bank

    def constant_weight(self) -> Tensor | None:
        if not self.control_reads_nothing():
            return None
        return torch.einsum("e,eoi->oi", self.constant_share()[0], self.bank.detach())

    def mean_weight(self, x: Tensor, control: Tensor | None = None) -> tuple[Tensor, int]:
        rows, _ = self.rows(x, self.resolve_control(control))
        share = self.share(rows).mean(0).to(self.bank.dtype)
        return torch.einsum("e,eoi->oi", share, self.bank).detach(), len(rows)

    def materialize(self, x: Tensor, control: Tensor | None = None) -> Tensor:
        """The blended weight (..., in_features, out_features) of each input. For study."""
        rows, leading = self.rows(x, self.resolve_control(control))
        return (
            torch.einsum("ne,eoi->nio", self.share(rows), self.bank)
            .unflatten(0, leading or (1,))
            .squeeze(() if leading else 0)
        )

    def forward(self, x: Tensor, control: Tensor | None = None) -> Tensor:
        """`y = sum_i share_i (x W_i^T) + bias`: (..., in_features) -> (..., out_features)."""
        rows, leading = self.rows(x, self.resolve_control(control))
        y = blend(self.grouped(x, rows, leading), self.bank, self.share(rows))
        if self.bias is not None:
            y = y + self.bias.to(y.dtype)
        return y.reshape(x.shape[:-1] + (self.out_features,))
