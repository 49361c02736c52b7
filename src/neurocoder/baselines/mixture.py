"""Sparsely gated mixture of experts (Shazeer et al., 2017): noisy top-k gating with importance and load losses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Unpack

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, softplus

from ..layer.config import Config
from ..layer.linear import Options
from ..ops.torch_private import is_exporting
from .blend import BlendedLinear


@dataclass(frozen=True)
class MixtureConfig(Config):
    """Sparsely gated mixture of experts (Shazeer et al., 2017).

    Example:
        >>> model = nc.recode(nn.Sequential(nn.Linear(8, 4)), "0", nc.MixtureConfig(experts=5))
        >>> type(model[0]).__name__
        'MixtureLinear'
    """

    experts: int = 10
    """Number of experts, each a whole weight matrix."""
    active: int = 2
    """k: experts used per input."""
    balance: float = 0.01
    """Weight of the importance and load losses."""

    owner: ClassVar[str] = "mixture"

    def __post_init__(self) -> None:
        self._keep_whole("experts")
        self._keep_whole("active", at_most="experts")
        self._keep_number("balance")


NOISE_EPSILON = 1e-2
"""Added to the scale of the noise, as in the authors' code. Without it the scale falls towards 0 in training, and the
gradient of the load loss, which is divided by it, grows without bound: a LeNet on CIFAR-10 fell from 82% to 10%."""


def top_k_gates(logits: Tensor, active: int) -> Tensor:
    """`G = softmax(keep_top_k(H))`: H (N, E) -> (N, E), zero for all but k experts; the first wins a tie."""
    ranked, order = logits.sort(dim=-1, descending=True, stable=True)
    kept = torch.softmax(ranked[..., :active], dim=-1)
    return torch.zeros_like(logits).scatter(-1, order[..., :active], kept)


def smooth_load(clean: Tensor, noisy: Tensor, noise_scale: Tensor, active: int) -> Tensor:
    """`P(x, i)`: the probability that expert i is among the top k if only its own noise is resampled (appendix A).

    Args:
        clean: x W_g (N, E).
        noisy: H = x W_g + noise (N, E).
        noise_scale: softplus(x W_noise) + NOISE_EPSILON (N, E).
        active: k.

    Returns:
        (N, E)
    """
    if active == clean.shape[-1]:
        return torch.ones_like(clean)
    last_in, first_out = noisy.topk(active + 1, dim=-1).values[..., -2:].split(1, dim=-1)
    # The k-th largest of the other experts: one rank lower for an expert that is itself among the top k.
    bar = torch.where(noisy > first_out, first_out, last_in)
    return torch.special.ndtr((clean - bar) / noise_scale)


def squared_variation(amounts: Tensor) -> Tensor:
    """`CV^2`, the squared coefficient of variation of one amount per expert (E,)."""
    return amounts.var(correction=0) / (amounts.mean().square() + 1e-10)


class MixtureLinear(BlendedLinear):
    """`y = sum_i g_i(x) (x W_i^T)` with `active` non-zero gates.

    All experts are computed and k of them kept: shapes do not depend on the data, so the layer compiles, exports and
    vmaps, and no parameter goes unused. This baseline does not aim for the savings of sparse dispatch.

    Example:
        >>> layer = nc.MixtureLinear(8, 4, mixture=nc.MixtureConfig(experts=5, active=2))
        >>> layer(torch.randn(32, 8)).shape
        torch.Size([32, 4])
        >>> (layer.code(torch.randn(32, 8)) > 0).sum(1).unique()  # experts per input
        tensor([2])
    """

    config_type = MixtureConfig
    config: MixtureConfig
    parts = {"bank": "memory", "gating_weight": "controller", "noise_weight": "controller"}

    balance_loss: Tensor | None = None
    """`CV(importance)^2 + CV(load)^2` of the last forward; None if that was in eval mode.

    A forward without gradients, as in reentrant activation checkpointing, leaves a loss without gradients.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        mixture: MixtureConfig | None = None,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(in_features, out_features, bias, mixture, **options)

    def build(self, options: dict[str, Any]) -> None:
        experts = self.config.experts
        self.bank = nn.Parameter(torch.empty(experts, *self.weight_shape, **options))
        self.gating_weight = nn.Parameter(torch.empty(experts, self.control_width, **options))
        self.noise_weight = nn.Parameter(torch.empty(experts, self.control_width, **options))

    def start(self) -> None:
        """Gating and noise start at zero, as in the paper: at first the noise alone spreads the load."""
        nn.init.zeros_(self.gating_weight)
        nn.init.zeros_(self.noise_weight)
        self.start_bank()

    def reader(self) -> Tensor:
        return self.gating_weight

    def code(self, rows: Tensor) -> Tensor:
        """The gates (N, experts) without noise."""
        return top_k_gates(at_least_float32(linear(rows, self.gating_weight)), self.config.active)

    def forward_code(self, rows: Tensor) -> Tensor:
        loss = None
        if self.training:
            clean = at_least_float32(linear(rows, self.gating_weight))
            noise_scale = softplus(at_least_float32(linear(rows, self.noise_weight))) + NOISE_EPSILON
            noisy = clean + noise_scale * torch.randn_like(clean)
            gates = top_k_gates(noisy, self.config.active)
            load = smooth_load(clean, noisy, noise_scale, self.config.active)
            loss = squared_variation(gates.sum(0)) + squared_variation(load.sum(0))
        else:
            gates = self.code(rows)
        if not is_exporting():  # an exported model has no state to keep
            self.balance_loss = loss
        return gates

    def auxiliary_loss(self) -> Tensor:
        """`balance * (CV(importance)^2 + CV(load)^2)` of the last forward; 0 before one and after one in eval mode."""
        if self.balance_loss is None:
            return super().auxiliary_loss()
        return self.config.balance * self.balance_loss

    def __getstate__(self) -> dict[str, Any]:
        """What is copied and pickled: everything but the loss, which is part of a graph."""
        return {**super().__getstate__(), "balance_loss": None}


def at_least_float32(tensor: Tensor) -> Tensor:
    """At least float32: sums over a batch, ranks and probabilities need more precision than bfloat16 has."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))
