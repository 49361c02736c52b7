"""The rates of each contender, of network and latents: its best ones on validation images."""

from __future__ import annotations

USUAL = 1e-2, 3e-2
RATES: dict[str, tuple[float, float]] = {
    "cifar10-siren-attention": (0.001, 0.03),
    "cifar10-siren-basis": (0.001, 0.01),
    "cifar10-siren-concatenated": (0.003, 0.03),
    "cifar10-siren-core": (0.001, 0.03),
    "cifar10-siren-core-shift": (0.003, 0.03),
    "cifar10-siren-diagonal": (0.001, 0.03),
    "cifar10-siren-film": (0.003, 0.01),
    "cifar10-siren-hyper": (0.003, 0.01),
    "cifar10-siren-low-rank": (0.003, 0.03),
    "cifar10-siren-patterns": (0.003, 0.03),
    "cifar10-siren-shift": (0.003, 0.01),
    "cifar10-siren-softmax": (0.001, 0.03),
    "mnist-siren-attention": (0.003, 0.03),
    "mnist-siren-basis": (0.001, 0.01),
    "mnist-siren-concatenated": (0.003, 0.01),
    "mnist-siren-core": (0.003, 0.03),
    "mnist-siren-core-shift": (0.003, 0.03),
    "mnist-siren-diagonal": (0.003, 0.03),
    "mnist-siren-film": (0.003, 0.01),
    "mnist-siren-hyper": (0.003, 0.01),
    "mnist-siren-low-rank": (0.003, 0.03),
    "mnist-siren-patterns": (0.003, 0.03),
    "mnist-siren-shift": (0.003, 0.01),
    "mnist-siren-softmax": (0.003, 0.03),
    "cifar10-fourier-attention": (0.03, 0.01),
    "cifar10-fourier-basis": (0.03, 0.1),
    "cifar10-fourier-concatenated": (0.03, 0.1),
    "cifar10-fourier-core": (0.03, 0.3),
    "cifar10-fourier-core-shift": (0.03, 0.3),
    "cifar10-fourier-diagonal": (0.03, 0.3),
    "cifar10-fourier-film": (0.03, 0.1),
    "cifar10-fourier-hyper": (0.01, 0.1),
    "cifar10-fourier-low-rank": (0.03, 0.03),
    "cifar10-fourier-patterns": (0.03, 0.1),
    "cifar10-fourier-shift": (0.03, 0.1),
    "cifar10-fourier-softmax": (0.03, 0.1),
    "mnist-fourier-concatenated": (0.1, 0.03),
    "mnist-fourier-film": (0.1, 0.01),
    "mnist-fourier-patterns": (0.1, 0.03),
    "mnist-fourier-attention": (0.03, 0.03),
    "mnist-fourier-basis": (0.03, 0.1),
    "mnist-fourier-core": (0.03, 0.3),
    "mnist-fourier-core-shift": (0.03, 0.03),
    "mnist-fourier-diagonal": (0.03, 0.3),
    "mnist-fourier-hyper": (0.01, 0.1),
    "mnist-fourier-low-rank": (0.03, 0.03),
    "mnist-fourier-shift": (0.1, 0.03),
    "mnist-fourier-softmax": (0.03, 0.03),
}
"""By data set, features and contender."""


def of(name: str) -> tuple[float, float]:
    """Of `mnist-fourier-core` and the like; with one latent for all, those of the contender itself."""
    return RATES.get(name.removesuffix("-constant"), USUAL)
