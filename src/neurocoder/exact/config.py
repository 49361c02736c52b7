"""The configuration of exact layers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..layer.checks import require_whole
from ..layer.config import Config

FEATURES = ("local", "rbf", "relu", "fourier", "none")


@dataclass(frozen=True)
class ExactConfig(Config):
    """A layer that is solved instead of trained: ridge regression on fixed features of the input.

    Example:
        >>> model = nc.recode(nn.Sequential(nn.Linear(64, 10)), "0", nc.ExactConfig(slots=60, rank=32))
        >>> model[0].width  # 60 slots with 32 directions and a constant each, the input and a constant
        2045
    """

    features: str = "local"
    """phi: `local` affine programs (a local model network), `rbf` (Gaussians; GKEAL), `relu` of a random projection
    (ACIL, RanPAC), random `fourier` features (RanDumb), or `none`: only the input."""
    slots: int = 60
    """P: keys of `local` and `rbf`, or random features of `relu` and `fourier`."""
    rank: int = 32
    """r: directions that a `local` program reads; at most the input's width. Each slot has r + 1 features."""
    width: float = 0.7
    """Width s of the Gaussians of `local`, `rbf` and `fourier`, over the median distance between inputs."""
    ridge: float | None = None
    """Added to the diagonal of G; None: chosen by generalised cross-validation at each `solve`."""
    residual: bool = True
    """Whether the input itself stands beside the features: R."""
    per_class: bool = False
    """Keep a G for each class, so that `forget_class` works: as many times the numbers to learn."""
    ledger: bool = False
    """Keep a hash of each sample, so that `forget` refuses samples that were never observed."""
    seed: int = 0
    """Of the keys and of the random projections."""

    owner: ClassVar[str] = "exact"

    def __post_init__(self) -> None:
        if self.features not in FEATURES:
            raise ValueError(f"exact.features must be one of {', '.join(FEATURES)}, got {self.features!r}")
        self._keep_whole("slots", "rank")
        self._keep_number("width", positive=True)
        if self.ridge is not None:
            self._keep_number("ridge", positive=True)
        self._keep_choice("residual", "per_class", "ledger")
        require_whole("exact.seed", self.seed, 0)
        if self.features == "none" and not self.residual:
            raise ValueError("exact.residual must be True where features is 'none', which leaves only the input")
