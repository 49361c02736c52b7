"""The equations of core layers, executed as matrix products.

    a = U x        C = C_0 + sum_k h_k C_k        y = g R x + V^T (C a + sum_k h_k s_k) + bias

With a control z, h is z itself, or linear in it, and g = 1. Without one, every part is bounded, so that the layer is
safe at the learning rate of the plain one:

    U^ = rows of U over their norms      a = U^ x      h = tanh(A n(a) + b), n over the root mean square
    d = sum_k h_k C_k a      d^ = d / sqrt(1 + |d|²/|a|²)      g = 1 + tanh(w.x / (2 |x|)) / 2, where d_out >= 16
    V^ = V / sqrt(1 + s² |V|²/(rho² |R|²))      s = min(1, sqrt(.1 d_in / P))      y = g R x + s V^^T (a + d^) + bias
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import linear

from ..ops.backend import is_traced

LEAST_GATED = 16
"""d_out from which the residual has a gate."""
GATE = 0.5
"""The gate stays within 1 - GATE and 1 + GATE, and starts with a slope of GATE²."""
RHO = 0.5
"""The norm of s V^ stays below this share of R's."""
SHARE = 0.1
"""At the start, the programs' part of the tangent kernel is at most this share of R's."""
CONTROL_EPSILON, EPSILON = 1e-4, 1e-12
"""Added to the mean square of a control, and of what the slots read."""


def mean_square(values: Tensor, epsilon: float = EPSILON) -> Tensor:
    """`mean(v²) + epsilon` over the last dimension (..., 1), in at least float32."""
    wide = torch.promote_types(values.dtype, torch.float32)
    return values.square().mean(-1, keepdim=True, dtype=wide) + epsilon


def normalised(values: Tensor, square: Tensor) -> Tensor:
    """`n(v)`: v over its root mean square."""
    return (values * torch.rsqrt(square)).to(values.dtype)


def residual_gate(rows: Tensor, w: Tensor) -> Tensor:
    """`g = 1 + tanh(w.x / (2 |x|)) / 2`: (N, d_z) -> (N, 1)."""
    # Compiled, the sum is one kernel with the norm, and its backward is no product of inner size 1.
    projected = (rows * w).sum(-1, keepdim=True) if is_traced() else linear(rows, w.unsqueeze(0))
    direction = projected / _norm(rows, -1)
    return 1 + GATE * torch.tanh(GATE * direction)


def _norm(values: Tensor, dim: int | None = None) -> Tensor:
    """The norm over one dimension, kept, or over all (), in at least float32; never zero."""
    wide = torch.promote_types(values.dtype, torch.float32)
    return torch.linalg.vector_norm(values, dim=dim, keepdim=dim is not None, dtype=wide).clamp_min(EPSILON)


def composed(h: Tensor, cores: Tensor, C_0: Tensor | None = None) -> Tensor:
    """`C_0 + sum_k h_k C_k`: blends (N, K), cores (K, P, P) or (K, P) -> (N, P, P) or (N, P)."""
    table = cores.shape[1:]
    if C_0 is None:
        return (h @ cores.flatten(1)).unflatten(1, table)
    return torch.addmm(C_0.flatten(), h, cores.flatten(1)).unflatten(1, table)


def mixed(a: Tensor, h: Tensor, cores: Tensor, C_0: Tensor | None) -> Tensor:
    """`C a` of T inputs for each of N blends: a (N, T, P), h (N, K) -> (N, T, P). C_0 is the identity if None.

    With one input each, C is never composed; with several, it is, once for each blend.
    """
    if a.shape[1] == 1:
        d = blended(a.squeeze(1), h, cores).unsqueeze(1)
        return d + (a if C_0 is None else a * C_0 if C_0.dim() == 1 else linear(a, C_0))
    C = composed(h, cores, C_0)
    e = a * C.unsqueeze(1) if C.dim() == 2 else torch.matmul(a, C.mT)
    return e + a if C_0 is None else e


def blended(a: Tensor, h: Tensor, cores: Tensor) -> Tensor:
    """`d = sum_k h_k C_k a` of one input for each blend: a (N, P), h (N, K) -> (N, P)."""
    if cores.dim() == 2:
        return a * (h @ cores)
    # With gradients, N=4096, P=12, K=16: 4.9 ms; (h a) (N, K P) @ (K P, P) 8.1, composing C for each input 6.6.
    each = linear(a, cores.flatten(0, 1)).unflatten(-1, cores.shape[:2])
    return (h.unsqueeze(-1) * each).sum(1)


def bound(d: Tensor, square: Tensor) -> Tensor:
    """`1 / sqrt(1 + |d|²/|a|²)`: d (N, P) and the mean square of a (N, 1) -> (N, 1)."""
    return torch.rsqrt(1 + d.square().mean(-1, keepdim=True, dtype=square.dtype) / square).to(d.dtype)


def gain_bound(D: Tensor) -> Tensor:
    """The same for a table that serves many inputs, (N, P, P) or (N, P) -> (N, 1): `|d|²/|a|²` is the mean over all
    directions of a, `|D|²/P`."""
    return torch.rsqrt(1 + D.shape[1] ** (D.dim() - 2) * mean_square(D.flatten(1), 0.0)).to(D.dtype)


def unit_rows(U: Tensor) -> Tensor:
    """`U^`: each row (P, d_in) over its norm."""
    return U / _norm(U, 1).to(U.dtype)


def slot_bounds(V: Tensor, R: Tensor, d_in: int) -> tuple[float, Tensor]:
    """s, and the most that the norm of `s V^` may be: a share of the residual's, which is a constant."""
    return min(1.0, math.sqrt(SHARE * d_in / len(V))), RHO * _norm(R.detach())


def bounded_slots(V: Tensor, R: Tensor, d_in: int) -> Tensor:
    """`s V^` (P, d_out)."""
    s, most = slot_bounds(V, R, d_in)
    return V * torch.rsqrt(1 / s**2 + V.square().sum(dtype=most.dtype) / most.square()).to(V.dtype)


def singular_values(core: Tensor, U: Tensor, V: Tensor) -> Tensor:
    """Singular values of `V^T C U`, decreasing (N, P), for C (N, P, P) or (N, P); zeros beyond d_in or d_out."""
    wide = torch.promote_types(core.dtype, torch.float32)
    left, right = (torch.linalg.qr(slots.mT.to(wide), mode="r").R for slots in (V, U))
    table = core.to(wide) if core.dim() == 3 else torch.diag_embed(core.to(wide))
    product = left @ table @ right.mT
    is_finite = product.isfinite().flatten(1).all(1)  # a look into a model that diverged must not fail
    sigma = torch.linalg.svdvals(product.where(is_finite[:, None, None], 0))
    sigma = sigma.where(is_finite[:, None], torch.nan)
    return torch.nn.functional.pad(sigma, (0, core.shape[1] - sigma.shape[-1])).to(core.dtype)
