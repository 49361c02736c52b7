"""What deletion costs: an exact layer forgets some training images of MNIST, or is solved again without them.

    python3 results/sweeps/exact_forget.py [--threads 1] [--forget 600]

Blurred images, 1,000 features (58 slots of rank 16); seconds, and the largest difference between the two weights.
"""

from __future__ import annotations

import argparse
import time

import torch

import neurocoder as nc
from neurocoder.lab.data import mnist
from neurocoder.lab.experiments.exact.experiment import blurred


def images(train: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Blurred images (N, 1024) and labels (N,)."""
    digits = mnist.load(train=train)
    padded = torch.nn.functional.pad(digits.images.float(), (2, 2, 2, 2))
    return blurred(padded.flatten(1)), digits.labels.long()


def learned(x: torch.Tensor, y: torch.Tensor, first: torch.Tensor, ridge: float | None) -> tuple[nc.ExactLinear, float]:
    """A layer that observed these images, and the seconds that took, its solution included."""
    layer = nc.ExactLinear(x.shape[1], 10, exact=nc.ExactConfig(slots=58, rank=16, width=1.0, residual=False))
    layer.basis(first)
    begun = time.perf_counter()
    layer.observe(x, y)
    layer.solve(ridge)
    return layer, time.perf_counter() - begun


def main() -> None:
    """Print one line each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--forget", type=int, default=600)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    (x, y), (x_test, y_test) = images(True), images(False)
    first, rest = x[:128], slice(128, None)
    x, y = x[rest], y[rest]
    gone, kept = slice(0, options.forget), slice(options.forget, None)
    layer, whole = learned(x, y, first, 1e-3)

    begun = time.perf_counter()
    layer.forget(x[gone], y[gone])
    layer.solve(1e-3)
    forgot = time.perf_counter() - begun
    never, again = learned(x[kept], y[kept], first, 1e-3)
    difference = (layer.V - never.V).abs().max()
    accuracy = (layer(x_test).argmax(1) == y_test).float().mean()
    print(f"{len(x):,} images, {layer.width:,} features, {options.threads} thread(s); test accuracy {accuracy:.1%}")
    print(f"learn {whole:.2f} s; forget {options.forget}: {forgot:.2f} s; learn the others again: {again:.2f} s")
    print(f"weights differ by at most {difference:.1e}, of at most {never.V.abs().max():.1e}")


if __name__ == "__main__":
    main()
