"""The latents of new images: the network stays as it is, and each image's latent follows its own gradient."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .data import psnr
from .models import FieldNetwork

RATES = (0.03, 0.1, 0.3, 1.0)
"""Of the latent, from which the best is taken, on some trained images."""
BETAS, EPSILON = (0.9, 0.999), 1e-8
AT_ONCE = 32
"""Images that are fitted together on a CPU, so that what is kept for the gradient fits into its cache."""


def fit(
    network: FieldNetwork, places: Tensor, colours: Tensor, start: Tensor, steps: int, rate: float, adam: bool = True
) -> Tensor:
    """Latents (N, L) after so many steps from one start (L,): Adam with cosine decay, or gradient descent.

    Args:
        network: unchanged, and so are its gradients.
        places: (T, 2).
        colours: (N, T, C), the images.
        start: (L,).
        steps: at least 1.
        rate: of the first step.
        adam: else the gradient itself, at a constant rate.
    """
    at_once = AT_ONCE if colours.device.type == "cpu" else 16 * AT_ONCE
    return torch.cat([_fit(network, places, part, start, steps, rate, adam) for part in colours.split(at_once)])


def _fit(
    network: FieldNetwork, places: Tensor, colours: Tensor, start: Tensor, steps: int, rate: float, adam: bool
) -> Tensor:
    z = start.detach().expand(len(colours), -1)
    mean, square = torch.zeros_like(z), torch.zeros_like(z)
    for step in range(steps):
        g = gradient(network, places, colours, z)
        if not adam:
            z = z - rate * g
            continue
        mean, square = mean.lerp(g, 1 - BETAS[0]), square.lerp(g * g, 1 - BETAS[1])
        size = (square / (1 - BETAS[1] ** (step + 1))).sqrt() + EPSILON
        decay = (1 + math.cos(math.pi * step / steps)) / 2
        z = z - rate * decay / (1 - BETAS[0] ** (step + 1)) * mean / size
    return z


def gradient(network: FieldNetwork, places: Tensor, colours: Tensor, z: Tensor, keep: bool = False) -> Tensor:
    """Of each image's mean square error by its own latent (N, L); `keep`: it can be differentiated again."""
    with torch.enable_grad():
        z = z if keep else z.detach().requires_grad_()
        each = (network(places, z) - colours).square().mean((1, 2))
        return torch.autograd.grad(each.sum(), z, create_graph=keep)[0]


def best_rate(network: FieldNetwork, places: Tensor, colours: Tensor, start: Tensor, steps: int) -> float:
    """The rate at which these images come out best; the smallest of equals."""
    found = {}
    with torch.no_grad():
        for rate in RATES:
            z = fit(network, places, colours, start, steps, rate)
            found[rate] = float(psnr(network(places, z), colours).nan_to_num(-math.inf).mean())
    return max(found, key=lambda rate: found[rate])
