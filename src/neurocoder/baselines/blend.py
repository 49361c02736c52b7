"""The base of mixtures and stored programs: a bank of whole weights, whose blend for each input is never built."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from ..layer.start import plain_weight
from .conditional import ConditionalLinear

_DIFFERENCE = 0.02
"""Largest relative difference between the starting rows of the bank's weights and those of the plain layer."""
_PROBES = 256


def blend(x: Tensor, bank: Tensor, share: Tensor) -> Tensor:
    """`y = sum_i share_i (x W_i^T)`.

    Args:
        x: (N, T, d_in), T inputs that use the same shares.
        bank: W (E, d_out, d_in).
        share: (N, E).

    Returns:
        (N, T, d_out)
    """
    # With gradients, N=256, E=10, 784x10 and 1024x1024: 3, 159 ms; (share x) @ bank 13, 337; a loop over E 7, 190.
    answers = linear(x, bank.flatten(0, 1)).unflatten(-1, bank.shape[:2])
    return torch.matmul(share[:, None, None, :].to(answers.dtype), answers).squeeze(-2)


class BlendedLinear(ConditionalLinear):
    """A linear layer whose weight is `sum_i share_i(x) W_i` over a bank of whole weights; the shares sum to one."""

    bank: nn.Parameter
    """W (E, d_out, d_in)"""

    @property
    def prototype(self) -> Tensor:
        return self.bank  # a replica of DataParallel has no parameters()

    def start_bank(self) -> None:
        """Start from independent weights, scaled up so that their blend has the variance of a plain layer's weight.

        A blend of independent weights has `sum_i share_i^2` times the variance of one; probe inputs estimate this.
        """
        probes = torch.randn(_PROBES, self.control_width, device="cpu", dtype=torch.float32).to(self.bank)
        gain = float(self.code(probes).square().sum(-1).mean().rsqrt())
        for weight in self.bank:
            weight.copy_(gain * plain_weight(self.weight_shape))

    def start_from(self, weight: Tensor) -> None:
        """Start every weight from the given one, with slightly rescaled rows; their first blend is the given weight.

        Scaling rows scales outputs: no output moves by more than twice `_DIFFERENCE`, whichever weights are used.
        """
        shape = (len(self.bank), self.out_features)
        scales = torch.empty(shape, device="cpu", dtype=torch.float32).uniform_(-_DIFFERENCE, _DIFFERENCE)
        scales = scales.to(self.bank.device)
        first = self.code(self.bank.new_zeros(1, self.control_width)).to(scales.dtype)
        self.bank.copy_(weight * (1 + scales - first @ scales).unsqueeze(-1))

    def weight_parameters(self) -> Iterator[nn.Parameter]:
        yield self.bank

    def shares(self, rows: Tensor) -> Tensor:
        return self.code(rows)

    def weight_of(self, code: Tensor) -> Tensor:
        return torch.tensordot(code.to(self.bank.dtype), self.bank, 1)

    def apply_code(self, x: Tensor, code: Tensor) -> Tensor:
        return blend(x, self.bank, code)
