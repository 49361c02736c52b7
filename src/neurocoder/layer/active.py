"""The active program of some inputs, factored: what a kind composes and a geometry executes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor


def _same(value: Tensor) -> Tensor:
    return value


class ActiveProgram(NamedTuple):
    """`W_t = g R + U^T M V` of N inputs, without building it.

    Example:
        >>> U, V, m = torch.randn(5, 8), torch.randn(5, 4), torch.rand(32, 1, 5)  # a diagonal M for each input
        >>> active = nc.ActiveProgram(U, V, mix=lambda a: a * m)
        >>> active.weight().shape
        torch.Size([32, 8, 4])
    """

    U: Tensor
    """(P, d_in), or (N, P, d_in) if each input has its own"""
    V: Tensor
    """(P, d_out), or (N, P, d_out)"""
    mix: Callable[[Tensor], Tensor] = _same
    """a -> a M: what T inputs read of U becomes the coefficients of V, (N, T, P) -> (N, T, P); it
    must broadcast over N"""
    scale: Tensor | None = None
    """g (N, 1); None: 1"""
    finish: Callable[[Tensor], Tensor] = _same
    """What a geometry calls on the output y, as where a backward must be noticed"""
    shift: Tensor | None = None
    """Added to the coefficients of V (N, P): an offset `V^T shift` of the output, which is no part of `W_t`"""

    def coefficients(self, a: Tensor) -> Tensor:
        """`a M + shift`, what V is multiplied by: (N, T, P) -> (N, T, P)."""
        mixed = self.mix(a)
        return mixed if self.shift is None else mixed + self.shift.unsqueeze(1).to(mixed.dtype)

    def matrix(self) -> Tensor:
        """M (N, P, P), or (1, P, P) if it is the same for all inputs."""
        return self.mix(torch.eye(self.U.shape[-2], dtype=self.U.dtype, device=self.U.device).unsqueeze(0))

    def weight(self, R: Tensor | None = None) -> Tensor:
        """`W_t` (N, d_in, d_out), with the residual R (d_out, ...) if there is one. For inspection."""
        weight = self.U.mT @ self.matrix() @ self.V
        if R is None:
            return weight
        residual = R.flatten(1).mT
        return weight + (residual if self.scale is None else self.scale.unsqueeze(-1) * residual)

    def mean_weight(self, R: Tensor | None = None) -> Tensor:
        """The mean of `W_t` over the inputs (d_in, d_out); with shared U and V no weight of an input is built."""
        if self.U.dim() == 3:
            weight = torch.einsum("npi,npo->io", self.U, self.matrix() @ self.V) / len(self.U)
        else:
            weight = self.U.mT @ self.matrix().mean(0) @ self.V
        if R is None:
            return weight
        return weight + (1.0 if self.scale is None else self.scale.mean()) * R.flatten(1).mT


@runtime_checkable
class Composition(Protocol):
    """What `layer.programs(x)` returns and `nc.record` keeps: how the programs of some inputs were composed.

    Each kind may have a result type of its own. Views, plots and the explorer ask only this, and whether it `grows`, if
    its memory may have more slots later.
    """

    def reads(self) -> dict[str, Tensor]:
        """How strongly each component reads each slot, by memory: "u" first (..., r, P), not negative."""

    def title(self, memory: str) -> str:
        """What the P columns of `reads` are, in the singular."""

    def detach(self) -> Any:
        """The same values, detached from the graph."""


class Mixes(NamedTuple):
    """How the programs of some inputs combine the rows of U and V, for kinds without a result type of their own."""

    matrix: Tensor
    """M (..., P, P)"""
    gate: Tensor | None
    """g (..., 1); None: 1"""

    def reads(self) -> dict[str, Tensor]:
        """How much each row of V takes from each row of U, and the reverse (..., P, P)."""
        return {"u": self.matrix.mT.abs(), "v": self.matrix.abs()}

    def vectors(self) -> Tensor:
        """What decides the program of each input (..., P * P): M with its signs."""
        return self.matrix.flatten(-2)

    def title(self, memory: str) -> str:
        """What the columns of `reads` are."""
        return f"row of {memory.upper()}"

    def detach(self) -> Mixes:
        """The same values, detached from the graph."""
        return Mixes(self.matrix.detach(), None if self.gate is None else self.gate.detach())
