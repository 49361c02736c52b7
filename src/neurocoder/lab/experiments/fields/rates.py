"""The best settings of each contender, written by `results/sweeps/fields_rates.py` from validation runs."""

from __future__ import annotations

from typing import NamedTuple


class Settings(NamedTuple):
    """What was best on validation images."""

    network: float = 1e-2
    """Adam's rate of the network."""
    latents: float = 3e-2
    """Adam's rate of the latents."""
    size: int | None = None
    """Slots, rank or members; None: the contender's usual number."""


SETTINGS: dict[str, Settings] = {
    "mnist-fourier-attention": Settings(0.03, 0.03, 12),
    "mnist-fourier-basis": Settings(0.03, 0.1, 24),
    "mnist-fourier-concatenated": Settings(0.1, 0.03),
    "mnist-fourier-core": Settings(0.03, 0.1, 12),
    "mnist-fourier-core-2100": Settings(0.03, 0.03, 12),
    "mnist-fourier-core-shift": Settings(0.03, 0.03, 12),
    "mnist-fourier-diagonal": Settings(0.03, 0.3, 48),
    "mnist-fourier-film": Settings(0.03, 0.03),
    "mnist-fourier-film-2100": Settings(0.03, 0.03),
    "mnist-fourier-hyper": Settings(0.03, 0.03),
    "mnist-fourier-hyper-2100": Settings(0.03, 0.03),
    "mnist-fourier-low-rank": Settings(0.03, 0.03, 4),
    "mnist-fourier-low-rank-2100": Settings(0.03, 0.01, 8),
    "mnist-fourier-patterns": Settings(0.1, 0.03, 6),
    "mnist-fourier-patterns-2100": Settings(0.03, 0.03, 4),
    "mnist-fourier-shift": Settings(0.1, 0.03),
    "mnist-fourier-shift-2100": Settings(0.1, 0.01),
    "mnist-fourier-softmax": Settings(0.03, 0.03, 8),
}
"""By data set, features and contender, and by the number of steps where that has its own."""


def of(variant: str) -> Settings:
    """Those of `mnist-fourier-core-700`, else of `mnist-fourier-core`; with one latent for all, of the contender."""
    name, _, steps = variant.rpartition("-")
    name = name.removesuffix("-constant")
    return SETTINGS.get(f"{name}-{steps}") or SETTINGS.get(name) or Settings()
