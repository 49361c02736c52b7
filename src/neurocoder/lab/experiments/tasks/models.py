"""The contenders: networks that a latent of the task steers, at equal numbers of parameters."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, gelu, linear, mse_loss

from ..fields import layers
from ..fields.models import at, attention, core, everywhere
from .families import Family
from .samples import Tasks

DEPTH = 2
"""Hidden layers. All layers are steered, the output layer too, since tasks may differ by their labels."""
EXPERTS = 4
DIAGONAL_SLOTS = 24
ONCE = ("diagonal", "softmax", "attention", "basis", "patterns", "concatenated")
"""Contenders that run with the usual numbers of tasks and examples alone."""
ALONE = ("own", "kernel")
"""Contenders that learn each task by itself: there is nothing that the number of tasks could change."""


class Mixture(nn.Module):
    """`y = sum_e softmax(A z + a)_e (W_e x + b_e)`: weights that the task mixes (CondConv). A nearly uniform gate takes
    the mean of E weights: they start sqrt(E) times as large as one alone."""

    def __init__(self, d_in: int, d_out: int, latent: int, scale: float = 1.0) -> None:
        super().__init__()
        self.W = nn.Parameter(torch.randn(EXPERTS, d_out, d_in) * scale * (EXPERTS / d_in) ** 0.5)
        self.b = nn.Parameter(torch.zeros(EXPERTS, d_out))
        self.A = nn.Parameter(torch.randn(EXPERTS, latent) / latent**0.5)
        self.a = nn.Parameter(torch.zeros(EXPERTS))

    def forward(self, x: Tensor, z: Tensor) -> Tensor:
        share = linear(z, self.A, self.a).softmax(-1)
        W = (share @ self.W.flatten(1)).unflatten(1, self.W.shape[1:])
        return torch.bmm(x, W.mT) + (share @ self.b).unsqueeze(1)


Build = Callable[[int, int, int, float, int], nn.Module]
"""Called with d_in, d_out, the latent's width, the scale of the outputs and the layer's place."""
CONTENDERS: Mapping[str, tuple[str, Build]] = {
    "core": ("core", everywhere(core)),
    "core-shift": ("core with shift", everywhere(core, shift=True)),
    "film": ("FiLM", everywhere(layers.FiLM)),
    "shift": ("shift", everywhere(layers.Shift)),
    "hyper": ("full hypernetwork", everywhere(layers.FullHyper)),
    "low-rank": ("low-rank hypernetwork", everywhere(layers.LowRankHyper)),
    "mixture": ("mixed weights (CondConv)", everywhere(Mixture)),
    "heads": ("a head for each task", at(DEPTH, layers.FullHyper)),
    "diagonal": ("diagonal core", everywhere(core, slots=DIAGONAL_SLOTS, diagonal=True)),
    "softmax": ("softmax core", everywhere(core, softmax=True)),
    "basis": ("basis mixing (mNIF)", everywhere(layers.Basis, members=6)),
    "patterns": ("Instance Pattern Composers", at(1, layers.Pattern)),
    "concatenated": ("concatenated latent", at(0, layers.Shift)),
    "unsteered": ("unsteered", everywhere(layers.Unsteered)),
    "own": ("a network a task", everywhere(layers.Unsteered)),
    "kernel": ("a Gaussian process a task", everywhere(layers.Unsteered)),
    "attention": ("attention programs", everywhere(attention, slots=6, heads=2, hidden=4)),
}
"""Title and layer by the name in variants; the slowest is last. `own` has as many parameters for each task as others in
all; `kernel` has no network."""


class TaskNetwork(nn.Module):
    """`y = layer(gelu(... layer(x, z)), z)` with a latent z for each task."""

    def __init__(self, contender: str, family: Family, hidden: int, tasks: int) -> None:
        super().__init__()
        widths = [family.inputs, *[hidden] * DEPTH, family.outputs]
        build = CONTENDERS[contender][1]
        self.layers = nn.ModuleList(build(i, o, family.latent, 1.0, at) for at, (i, o) in enumerate(pairwise(widths)))
        self.latents = nn.Parameter(0.1 * torch.randn(tasks, family.latent))
        """(tasks, latent)"""

    def forward(self, x: Tensor, tasks: Tensor) -> Tensor:
        """Samples (n, samples, inputs) of these tasks (n,) -> (n, samples, outputs)"""
        return self.outputs(x, self.latents[tasks])

    def outputs(self, x: Tensor, z: Tensor) -> Tensor:
        """The same, with latents (n, latent) of any task."""
        for place, layer in enumerate(self.layers):
            x = layer(gelu(x, approximate="tanh") if place else x, z)
        return x


class TaskLoss(nn.Module):
    """The mean loss of a network on samples of some tasks."""

    def __init__(self, model: TaskNetwork) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor, y: Tensor, tasks: Tensor) -> Tensor:
        return loss(self.model(x, tasks), y)


def loss(outputs: Tensor, y: Tensor) -> Tensor:
    """The mean over all samples."""
    return mse_loss(outputs, y) if y.is_floating_point() else cross_entropy(outputs.flatten(0, -2), y.flatten())


def errors(outputs: Tensor, data: Tasks) -> Tensor:
    """Of each task (...,): wrong classes, or the squared error over the variance of all targets; both in percent."""
    if data.y.is_floating_point():
        variance = (data.y - data.y.flatten(0, -2).mean(0)).square().mean()
        return 100 * (outputs - data.y).square().mean((-2, -1)) / variance
    return 100 * (outputs.argmax(-1) != data.y).float().mean(-1)


def parameters(network: nn.Module) -> int:
    """All but the latents."""
    return sum(entry.numel() for name, entry in network.named_parameters() if name != "latents")


def hidden_width(contender: str, family: Family) -> int:
    """The width at which a network comes closest to the family's parameters."""

    def distance(width: int) -> int:
        with torch.device("meta"):
            return abs(parameters(TaskNetwork(contender, family, width, 1)) - family.parameters)

    low, high = 2, 400
    while high - low > 2:  # the distance falls, then grows
        middle = (low + high) // 2
        low, high = (middle, high) if distance(middle) > distance(middle + 1) else (low, middle + 1)
    return min(range(low, high + 1), key=distance)
