"""The rates of each contender, of network and latents: its best ones on validation images."""

from __future__ import annotations

USUAL = 1e-2, 3e-2
RATES: dict[str, tuple[float, float]] = {}
"""By data set, features and contender."""


def of(name: str) -> tuple[float, float]:
    """Of `mnist-fourier-core` and the like; with one latent for all, those of the contender itself."""
    return RATES.get(name.removesuffix("-constant"), USUAL)
