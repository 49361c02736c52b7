"""The sums that an exact layer learns by, in float64: what adds up, subtracts and merges."""

from __future__ import annotations

import hashlib
from typing import NamedTuple

import torch
from torch import Tensor

TOLERANCE = 1e-9
"""How far below zero rounding may take an eigenvalue of G, over the largest entry of its diagonal."""


class Sums(NamedTuple):
    """Sums over samples with features phi (M,), targets y (C,) and weights c; all but the last two in float64."""

    G: Tensor
    """sum c phi phi^T (K, M, M): K = 1, or one for each class"""
    B: Tensor
    """sum c phi y^T (M, C)"""
    square: Tensor
    """sum c y² (C,)"""
    weight: Tensor
    """sum c (K,)"""
    labels: Tensor
    """Samples with each label (C,), of those that came with one"""
    samples: Tensor
    """Samples (1,)"""

    @classmethod
    def zero(cls, features: int, outputs: int, kinds: int, device: torch.device | str | None) -> Sums:
        """No samples."""
        shapes = (kinds, features, features), (features, outputs), (outputs,), (kinds,)
        wide = (torch.zeros(shape, device=device, dtype=torch.float64) for shape in shapes)
        return cls(*wide, *(torch.zeros(size, device=device, dtype=torch.int64) for size in (outputs, 1)))

    def widened(self, outputs: int, per_class: bool) -> Sums:
        """The same with more outputs, of which nothing was seen."""
        more = outputs - len(self.square)
        if not more:
            return self
        pad = torch.nn.functional.pad
        return self._replace(
            G=pad(self.G, (0, 0, 0, 0, 0, more)) if per_class else self.G,
            B=pad(self.B, (0, more)),
            square=pad(self.square, (0, more)),
            weight=pad(self.weight, (0, more)) if per_class else self.weight,
            labels=pad(self.labels, (0, more)),
        )

    def plus(self, other: Sums, sign: int = 1) -> Sums:
        """The sum, or with `sign=-1` the difference."""
        return Sums(*(mine + sign * theirs for mine, theirs in zip(self, other, strict=True)))

    def covers(self, other: Sums) -> bool:
        """Whether the samples of `other` may be among these: no count or eigenvalue of G would become negative."""
        left = self.plus(other, -1)
        if min(int(left.samples), int(left.labels.min())) < 0:
            return False
        G = left.G.clone()
        G.diagonal(dim1=1, dim2=2).add_(TOLERANCE * self.G.diagonal(dim1=1, dim2=2).amax().clamp(min=1e-290))
        positive = torch.linalg.cholesky_ex(G).info == 0
        return bool(positive.all() and (left.weight > -TOLERANCE * self.weight.sum()).all())


def hashes(*parts: Tensor) -> Tensor:
    """A 64-bit hash (N,) of each sample, from the rows of all parts."""
    rows = [part.detach().to("cpu", torch.float64).reshape(len(part), -1).contiguous().numpy() for part in parts]
    digests = (b"".join(row.tobytes() for row in sample) for sample in zip(*rows, strict=True))
    found = [int.from_bytes(hashlib.blake2b(digest, digest_size=8).digest(), "big", signed=True) for digest in digests]
    return torch.tensor(found, dtype=torch.int64)


def without(ledger: Tensor, gone: Tensor) -> Tensor | None:
    """The ledger (n,) without these hashes, each once; None if one of them is not in it."""
    ledger, _ = ledger.sort()
    gone, count = gone.unique(return_counts=True)
    first = torch.searchsorted(ledger, gone)
    if bool((torch.searchsorted(ledger, gone, right=True) - first < count).any()):
        return None
    keep = torch.ones(len(ledger), dtype=torch.bool)
    offset = torch.arange(int(count.sum())) - (count.cumsum(0) - count).repeat_interleave(count)
    keep[first.repeat_interleave(count) + offset] = False
    return ledger[keep]
