"""Linear layers that a latent steers, as others have them: x (N or 1, T, d_in), z (N, L) -> y (N, T, d_out).

A first dimension of 1 is for points that all latents see. All are linear in z. `scale` is the standard deviation of the
outputs of the unsteered weight for inputs of unit variance.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

SHIFT = 0.5
"""Standard deviation of an offset over that of the outputs, for a latent of unit variance."""


def _normal(*shape: int, std: float) -> nn.Parameter:
    return nn.Parameter(torch.randn(*shape) * std)


class Unsteered(nn.Module):
    """`y = W x + b`: nothing of z."""

    def __init__(self, d_in: int, d_out: int, latent: int, scale: float = 1.0) -> None:
        super().__init__()
        self.W = _normal(d_out, d_in, std=scale / math.sqrt(d_in))
        self.b = nn.Parameter(torch.zeros(d_out))

    def forward(self, x: Tensor, z: Tensor) -> Tensor:
        return linear(x, self.W, self.b)


class Shift(Unsteered):
    """`y = W x + b + S z` (COIN++, functa); in the first layer alone: the latent beside the place (concatenated)."""

    def __init__(self, d_in: int, d_out: int, latent: int, scale: float = 1.0) -> None:
        super().__init__(d_in, d_out, latent, scale)
        self.S = _normal(d_out, latent, std=scale * SHIFT / math.sqrt(latent))

    def forward(self, x: Tensor, z: Tensor) -> Tensor:
        return linear(x, self.W) + linear(z, self.S, self.b).unsqueeze(1)


class FiLM(Shift):
    """`y = (1 + G z) * (W x + b) + S z`."""

    def __init__(self, d_in: int, d_out: int, latent: int, scale: float = 1.0) -> None:
        super().__init__(d_in, d_out, latent, scale)
        self.G = _normal(d_out, latent, std=SHIFT / math.sqrt(latent))

    def forward(self, x: Tensor, z: Tensor) -> Tensor:
        gain, shift = 1 + linear(z, self.G), linear(z, self.S)
        return linear(x, self.W, self.b) * gain.unsqueeze(1) + shift.unsqueeze(1)


class FullHyper(Shift):
    """`y = (W + sum_k z_k H_k) x + b + S z`: a full hypernetwork, linear in z."""

    def __init__(self, d_in: int, d_out: int, latent: int, scale: float = 1.0) -> None:
        super().__init__(d_in, d_out, latent, scale)
        self.H = _normal(latent, d_out, d_in, std=scale / math.sqrt(d_in * latent))

    def forward(self, x: Tensor, z: Tensor) -> Tensor:
        W = torch.addmm(self.W.flatten(), z, self.H.flatten(1)).unflatten(1, self.W.shape)
        return _each(x, W.mT) + linear(z, self.S, self.b).unsqueeze(1)


class LowRankHyper(Unsteered):
    """`y = W x + b + B(z) A(z) x`, with A (r, d_in) and B (d_out, r) affine in z."""

    def __init__(self, d_in: int, d_out: int, latent: int, scale: float = 1.0, rank: int = 4) -> None:
        super().__init__(d_in, d_out, latent, scale)
        self.A_0, self.B_0 = _normal(d_in, rank, std=1 / math.sqrt(d_in)), nn.Parameter(torch.zeros(rank, d_out))
        self.A = _normal(latent, d_in, rank, std=1 / math.sqrt(d_in * latent))
        self.B = _normal(latent, rank, d_out, std=scale / math.sqrt(rank * latent))

    def forward(self, x: Tensor, z: Tensor) -> Tensor:
        A = torch.addmm(self.A_0.flatten(), z, self.A.flatten(1)).unflatten(1, self.A_0.shape)
        B = torch.addmm(self.B_0.flatten(), z, self.B.flatten(1)).unflatten(1, self.B_0.shape)
        return linear(x, self.W, self.b) + torch.bmm(_each(x, A), B)


class Basis(nn.Module):
    """`y = sum_k a_k (M_k x + m_k)`, with K coefficients `a = q + Q z` (mNIF)."""

    def __init__(self, d_in: int, d_out: int, latent: int, scale: float = 1.0, members: int = 16) -> None:
        super().__init__()
        self.M = _normal(members, d_in, d_out, std=scale / math.sqrt(d_in))
        self.m = nn.Parameter(torch.zeros(members, d_out))
        self.Q = _normal(members, latent, std=1 / math.sqrt(latent))
        self.q = nn.Parameter(torch.ones(members) / math.sqrt(members))

    def forward(self, x: Tensor, z: Tensor) -> Tensor:
        a = linear(z, self.Q, self.q)
        return _each(x, (a @ self.M.flatten(1)).unflatten(1, self.M.shape[1:])) + (a @ self.m).unsqueeze(1)


class Pattern(nn.Module):
    """`y = U^T V(z) x + b`, with V (r, d_in) affine in z (Instance Pattern Composers: the second layer alone)."""

    def __init__(self, d_in: int, d_out: int, latent: int, scale: float = 1.0, rank: int = 10) -> None:
        super().__init__()
        self.U = _normal(rank, d_out, std=scale / math.sqrt(rank))
        self.V_0 = _normal(d_in, rank, std=1 / math.sqrt(d_in))
        self.V = _normal(latent, d_in, rank, std=1 / math.sqrt(d_in * latent))
        self.b = nn.Parameter(torch.zeros(d_out))

    def forward(self, x: Tensor, z: Tensor) -> Tensor:
        V = torch.addmm(self.V_0.flatten(), z, self.V.flatten(1)).unflatten(1, self.V_0.shape)
        return linear(_each(x, V), self.U.mT, self.b)


class Coded(nn.Module):
    """A coded layer whose control is z, or softmax(A z + a) of as many numbers."""

    def __init__(self, layer: nn.Module, latent: int, softmax: bool = False) -> None:
        super().__init__()
        self.layer = layer
        self.reads = nn.Linear(latent, latent) if softmax else None

    def forward(self, x: Tensor, z: Tensor) -> Tensor:
        control = z if self.reads is None else self.reads(z).softmax(-1)
        return self.layer(x.expand(len(z), -1, -1), control=control)


def _each(x: Tensor, weights: Tensor) -> Tensor:
    """(N or 1, T, i), (N, i, o) -> (N, T, o)"""
    return torch.bmm(x.expand(len(weights), -1, -1), weights)
