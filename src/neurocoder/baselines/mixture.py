"""Sparsely gated mixture of experts (Shazeer et al., 2017): noisy top-k gating with importance and load losses."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from ..config import MixtureConfig
from .blend import BlendedLinear


class LastForward:
    """The balance loss of the last training forward: part of a graph, hence never copied, pickled or saved."""

    def __init__(self) -> None:
        self.loss: Tensor | None = None

    def __deepcopy__(self, memo: dict[int, Any]) -> LastForward:
        return LastForward()

    def __reduce__(self) -> tuple[type[LastForward], tuple[()]]:
        return LastForward, ()


def noisy_top_k(clean: Tensor, noise_scale: Tensor | None, active: int) -> tuple[Tensor, Tensor | None]:
    """Gates `softmax(keep_top_k(clean + noise))` and, with noise, each expert's smooth load.

    Args:
        clean: x W_g (N, E).
        noise_scale: softplus(x W_noise) (N, E), or None without noise.
        active: k.

    Returns:
        gates (N, E), zero for all but k experts, and P(expert is among the top k if its noise were drawn anew) (N, E).
    """
    experts = clean.shape[-1]
    noisy = clean if noise_scale is None else clean + noise_scale * torch.randn_like(clean)
    top, chosen = noisy.topk(min(active + 1, experts), dim=-1)
    kept = torch.softmax(top[..., :active], dim=-1)
    gates = torch.zeros_like(noisy, dtype=kept.dtype).scatter(-1, chosen[..., :active], kept)
    if noise_scale is None:
        return gates, None
    if active == experts:
        return gates, torch.ones_like(gates)
    # The k-th largest of the others: one further down for an expert that is itself among the top k.
    bar = torch.where(
        noisy >= top[..., active - 1 : active], top[..., active : active + 1], top[..., active - 1 : active]
    )
    return gates, torch.special.ndtr((clean - bar) / noise_scale.clamp_min(1e-6))


def squared_variation(amounts: Tensor) -> Tensor:
    """The squared coefficient of variation of an amount for each expert (E,)."""
    if len(amounts) == 1:
        return amounts.new_zeros(())
    return amounts.var(unbiased=False) / (amounts.mean().square() + 1e-10)


class MixtureLinear(BlendedLinear):
    """`y = sum_i g_i(x) (x W_i^T)` with `active` non-zero gates.

    All experts are computed and k of them kept: shapes do not depend on the data, so that the layer compiles, exports
    and vmaps, and no parameter goes unused. The saving of a sparse dispatch is not what this baseline is for.
    """

    config_type = MixtureConfig
    config: MixtureConfig
    parts = {"bank": "memory", "gating": "controller", "noise": "controller", "bias": "main"}

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        mixture: MixtureConfig | None = None,
        *,
        control_dim: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(mixture, self.set_geometry(in_features, out_features), control_dim)
        options: dict[str, Any] = {"device": device, "dtype": dtype}
        width, experts = control_dim or in_features, self.config.experts
        self.bank = nn.Parameter(torch.empty(experts, *self.weight_shape, **options))
        self.gating = nn.Linear(width, experts, bias=False, **options)
        self.noise = nn.Linear(width, experts, bias=False, **options)
        self.bias = nn.Parameter(torch.empty(out_features, **options)) if bias else None
        self.last = LastForward()
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Gating and noise start at zero, as in the paper: at first the noise alone spreads the load."""
        if self.bank.is_meta:
            return
        with torch.no_grad():
            self.reset_bank()
            nn.init.zeros_(self.gating.weight)
            nn.init.zeros_(self.noise.weight)

    def control_reads_nothing(self) -> bool:
        return not torch.count_nonzero(self.gating.weight)

    def share(self, rows: Tensor) -> Tensor:
        clean, scale = self.gating(rows), softplus(self.noise(rows))
        gates, load = noisy_top_k(clean, scale if self.training else None, self.config.active)
        if load is not None and not torch.compiler.is_exporting():
            self.last.loss = squared_variation(gates.sum(0)) + squared_variation(load.sum(0))
        return gates

    def auxiliary_loss(self) -> Tensor:
        """`balance * (CV(importance)^2 + CV(load)^2)` of the last forward in training mode; 0 before one."""
        if self.last.loss is None:
            return self.bank.new_zeros(())
        return self.config.balance * self.last.loss

    def describe(self) -> str:
        return f"bias={self.bias is not None}, experts={self.config.experts}, active={self.config.active}"
