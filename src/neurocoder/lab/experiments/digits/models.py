"""The models of the digits experiment, by name: linear Main Networks on a fixed random projection of the image."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

import neurocoder as nc

from ...networks import OneProgram, mlp

PIXELS, PROJECTED = 784, 200
"""Numbers in an MNIST image, and in its projection z."""


def program(steps: int, *, heads: int = 1, slots: int = 6, hidden: int = 8) -> nc.ProgramConfig:
    """The paper's layer for the digits by default: K = 2, l_I = 2, a = 0.1, no residual."""
    return nc.ProgramConfig(
        slots=slots, key_dim=2, steps=steps, heads=heads, least_used=2, hidden=hidden, orthogonality=0.1, residual=False
    )


CANDIDATES = ((6, 1, 7), (6, 3, 6), (10, 2, 5), (10, 3, 5), (10, 4, 5), (12, 3, 5), (15, 3, 4))
"""P, H and LSTM size of layers that have at most the linear classifier's parameters at J = 5."""
PROGRAMS: Mapping[str, nc.ProgramConfig] = {
    **{f"J{steps}": program(steps) for steps in range(1, 9)},
    **{
        f"P{slots}-H{heads}-J{steps}": program(steps, heads=heads, slots=slots, hidden=hidden)
        for slots, heads, hidden in CANDIDATES
        for steps in (5, 1)
    },
    "single-30": program(1, heads=3, slots=30),
    "multi-10": program(5, slots=10),
}
"""The curve over J at H = 1 as in the paper; those within the linear classifier's 7,850 parameters, with five
steps and with one; the two whose attention Figure 4 shows (three heads, for three components in one step)."""
BEST = "P10-H4-J5"
"""The best with J = 5 and at most `LIMIT` parameters, by validation error."""
LIMIT = 7_850
"""Parameters of the linear classifier."""
CONTROLS: Mapping[str, str] = {f"{name}-constant": name for name in ("J5", BEST)}
"""Layers with one program for all images, by the variant that they are the control of."""
VARIANTS = ("linear", "mlp", *PROGRAMS, *CONTROLS)


class Projected(nn.Module):
    """A layer on a fixed projection `z = x U`; the layer sees only z."""

    projection: Tensor

    def __init__(self, layer: nn.Module, projection: Tensor) -> None:
        super().__init__()
        self.register_buffer("projection", projection)
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        """(N, 784) -> (N, 10)"""
        return self.layer(x @ self.projection)


def random_projection() -> Tensor:
    """U (784, 200), drawn from torch's generator; it preserves the variance of its input."""
    return torch.randn(PIXELS, PROJECTED) / PIXELS**0.5


def build_model(variant: str) -> nn.Module:
    """On the CPU, from torch's generator. The projection is drawn first, so variants of one seed share it."""
    if variant == "linear":
        return nn.Linear(PIXELS, 10)
    projection = random_projection()
    if variant == "mlp":
        return Projected(mlp((PROJECTED, 32, 10)), projection)
    if variant in CONTROLS:
        layer = nc.Linear(PROJECTED, 10, program=PROGRAMS[CONTROLS[variant]], control_dim=PROJECTED)
        return Projected(OneProgram(layer), projection)
    return Projected(nc.Linear(PROJECTED, 10, program=PROGRAMS[variant]), projection)


def title(variant: str) -> str:
    """The name in tables."""
    if variant == "linear":
        return "linear classifier, 784 x 10"
    if variant == "mlp":
        return "MLP, 200-32-10"
    if variant in CONTROLS:
        return f"{title(CONTROLS[variant])}, one program for all images"
    c = PROGRAMS[variant]
    return f"Neurocoder P={c.slots} J={c.steps} H={c.heads}, LSTM {c.hidden}"
