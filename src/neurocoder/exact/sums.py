"""The sums that an exact layer learns by, in float64: what adds up, subtracts and merges."""

from __future__ import annotations

import hashlib
from collections import Counter
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import one_hot

TOLERANCE = 1e-9
"""How far below zero rounding may take an eigenvalue of G, over the largest entry of its diagonal, or another sum."""

LARGEST_RATIO = 4e8
"""Of G's diagonal before and after samples left: its rounding is then 1e-7 of what is left."""

BLOCK = 256
"""Rows of G that are added at a time, from the diagonal on: half of the products of the whole matrix."""


class Sums(NamedTuple):
    """Sums over samples with features phi (M,), targets y (C,) and weights c, in float64; K = 1, or one a class."""

    G: Tensor
    """sum c phi phi^T (K, M, M), of which only the upper triangle is to be read"""
    B: Tensor
    """sum c phi y^T (M, C)"""
    square: Tensor
    """sum c y² (C,): of labels, how many each class has"""
    samples: Tensor
    """How many samples with a weight above zero (K,)"""
    ledger: Tensor
    """A hash of each sample (n,), if they are kept"""

    @classmethod
    def zero(cls, features: int, outputs: int, per_class: bool, device: torch.device | str | None) -> Sums:
        """No samples."""
        kinds = outputs if per_class else 1
        shapes = (kinds, features, features), (features, outputs), (outputs,)
        wide = (torch.zeros(shape, device=device, dtype=torch.float64) for shape in shapes)
        return cls(*wide, *(torch.zeros(size, device=device, dtype=torch.int64) for size in (kinds, 0)))

    def add(self, phi: Tensor, y: Tensor, c: Tensor, per_class: bool) -> None:
        """Add samples with features (N, M), labels (N,) or real targets (N, C), and weights (N,)."""
        target = y if y.is_floating_point() else one_hot(y, len(self.square)).double()
        weighted = phi * c.unsqueeze(1)
        self.B.addmm_(weighted.mT, target)
        self.square.add_(c @ target.square())
        for kind in y.unique().tolist() if per_class else [0]:
            rows = y == kind if per_class else slice(None)
            for at in range(0, phi.shape[1], BLOCK):
                self.G[kind, at : at + BLOCK, at:].addmm_(weighted[rows, at : at + BLOCK].mT, phi[rows, at:])
            self.samples[kind] += c[rows].count_nonzero()

    def plus(self, other: Sums, sign: int = 1) -> Sums:
        """The sum, or with `sign=-1` the difference, as wide as the wider one; the ledger of the sum alone."""
        totals = []
        for mine, theirs in zip(self[:-1], other[:-1], strict=True):
            totals.append(mine.new_zeros([max(sizes) for sizes in zip(mine.shape, theirs.shape, strict=True)]))
            totals[-1][tuple(map(slice, mine.shape))] = mine
            totals[-1][tuple(map(slice, theirs.shape))].add_(theirs, alpha=sign)
        return Sums(*[*totals, torch.cat([self.ledger, other.ledger])])

    def minus(self, other: Sums) -> Sums:
        """The difference; an error if the samples of `other` cannot be among these."""
        left, ledger = self.plus(other, -1), Counter(self.ledger.tolist())
        ledger.subtract(other.ledger.tolist())
        negative = [bool((new < -TOLERANCE * old.sum()).any()) for new, old in zip(left[2:4], self[2:4], strict=True)]
        G, top = left.G.clone(), self.G.diagonal(dim1=1, dim2=2).amax()
        G.diagonal(dim1=1, dim2=2).add_(TOLERANCE * top.clamp(min=1e-290))
        negative += [min(ledger.values(), default=0) < 0, bool(torch.linalg.cholesky_ex(G, upper=True).info.any())]
        if left.B.shape != self.B.shape or any(negative):
            raise ValueError("these samples cannot all have been observed with this y and weight: none is forgotten")
        left = left._replace(ledger=self.ledger.new_tensor(list(ledger.elements())))
        if not left.samples.any():
            return Sums(*map(torch.zeros_like, left))  # without the rounding
        if top.amax() > LARGEST_RATIO * left.G.diagonal(dim1=1, dim2=2).amax():
            raise ValueError("these samples are so large that float64 cannot subtract them: learn again without them")
        return left


def hashes(*parts: Tensor) -> Tensor:
    """A 64-bit hash (N,) of each sample, from the rows of all parts; on the device of the first."""
    rows = torch.cat([part.detach().cpu().double().unsqueeze(-1).flatten(1) for part in parts], 1).numpy()
    digests = (hashlib.blake2b(row.tobytes(), digest_size=8).digest() for row in rows)
    found = [int.from_bytes(digest, "big", signed=True) for digest in digests]
    return torch.tensor(found, dtype=torch.int64, device=parts[0].device)
