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


SETTINGS: dict[str, Settings] = {}
"""By data set, features and contender, and by the number of steps where that has its own."""


def of(variant: str) -> Settings:
    """Those of `mnist-fourier-core-700`, else of `mnist-fourier-core`; with one latent for all, of the contender."""
    name, _, steps = variant.rpartition("-")
    name = name.removesuffix("-constant")
    return SETTINGS.get(f"{name}-{steps}") or SETTINGS.get(name) or Settings()
