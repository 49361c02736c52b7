"""Learners of the field that are exact layers with some options, by the names under which they were published."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import neurocoder as nc


def ridge(d: int, classes: int, ridge: float | None = None, device: Any = None) -> nc.ExactLinear:
    """Ridge regression on the inputs and a constant, with one-hot targets; `ridge=None`: by cross-validation.

    Example:
        >>> learner = cl.ridge(4, classes=2)
        >>> learner.observe(x, y % 2)
        >>> learner(x).shape == (len(x), 2)
        True
    """
    return nc.ExactLinear(d, classes, exact=nc.ExactConfig(features="none", ridge=ridge), device=device)


def ranpac(d: int, classes: int, features: int = 2000, seed: int = 0, device: Any = None) -> nc.ExactLinear:
    """RanPAC (McDonnell et al., 2023): ridge regression on a random projection with ReLU.

    The authors choose the ridge on a fifth of each task's data; here generalised cross-validation does.

    Example:
        >>> learner = cl.ranpac(4, classes=2, features=50)
        >>> learner.observe(x, y % 2)
        >>> learner(x).shape == (len(x), 2)
        True
    """
    config = nc.ExactConfig(features="relu", slots=features, residual=False, seed=seed)
    return nc.ExactLinear(d, classes, bias=False, exact=config, device=device)


def acil(
    d: int, classes: int, features: int = 2000, gamma: float = 2.7, seed: int = 0, device: Any = None
) -> nc.ExactLinear:
    """ACIL (Zhuang et al., 2022): RanPAC's features with a ridge `gamma` that is given.

    The authors update the inverse of G recursively, with the same result. Features have 52 times their scale here, so
    their gamma of 1e-3 is 2.7.

    Example:
        >>> learner = cl.acil(4, classes=2, features=50)
        >>> learner.observe(x, y % 2)
        >>> learner(x).shape == (len(x), 2)
        True
    """
    config = nc.ExactConfig(features="relu", slots=features, ridge=gamma, residual=False, seed=seed)
    return nc.ExactLinear(d, classes, bias=False, exact=config, device=device)


def gkeal(
    d: int, classes: int, features: int = 2000, width: float = 0.5, seed: int = 0, device: Any = None
) -> nc.ExactLinear:
    """GKEAL (Zhuang et al., 2023): ridge regression on Gaussians around keys; call `basis` first.

    The authors take samples of the first task as keys; here they are drawn from the Gaussian of what `basis` is given.

    Example:
        >>> learner = cl.gkeal(4, classes=2, features=50)
        >>> learner.basis(x)
        >>> learner.observe(x, y % 2)
        >>> learner(x).shape == (len(x), 2)
        True
    """
    config = nc.ExactConfig(features="rbf", slots=features, width=width, residual=False, seed=seed)
    return nc.ExactLinear(d, classes, bias=False, exact=config, device=device)


class AIR:
    """AIR (Fang et al., 2024), the form for generalised streams: ACIL in which every class weighs the same.

        V = (sum_c a_c G_c + gamma I)^-1 [a_c B_c]_c       a_c = C n_c^-1 / sum n^-1, n_c samples of class c

    That needs a G for each class. On balanced classes it is ACIL.

    Example:
        >>> learner = cl.AIR(4, classes=2, features=50)
        >>> learner.observe(x, y % 2)
        >>> learner(x).shape == (len(x), 2)
        True
    """

    def __init__(
        self, d: int, classes: int, features: int = 2000, gamma: float = 2.7, seed: int = 0, device: Any = None
    ) -> None:
        config = nc.ExactConfig(features="relu", slots=features, residual=False, per_class=True, seed=seed)
        self.layer = nc.ExactLinear(d, classes, bias=False, exact=config, device=device)
        self.gamma = gamma
        self.weight: Tensor | None = None

    def observe(self, x: Tensor, y: Tensor) -> None:
        """Add to the sums of each class."""
        self.layer.observe(x, y)
        self.weight = None

    def solve(self) -> Tensor:
        """V (features, C); zero for classes that were not seen."""
        G, B, _, counts, _ = self.layer.sums
        inverse = torch.where(counts > 0, 1 / counts.double(), 0)
        share = inverse * (counts > 0).sum() / inverse.sum()
        upper = torch.einsum("c,cij->ij", share, G).triu()
        balanced = upper + upper.triu(1).mT
        balanced.diagonal().add_(self.gamma)
        return torch.linalg.solve(balanced, B * share)

    def __call__(self, x: Tensor) -> Tensor:
        """Scores (N, C)."""
        if self.weight is None:
            self.weight = self.solve()
        return self.layer.features(x.double(), x.double()) @ self.weight

    def numbers(self) -> dict[str, int]:
        """To answer, V; to learn, half of a symmetric G for each class too."""
        return self.layer.numbers()
