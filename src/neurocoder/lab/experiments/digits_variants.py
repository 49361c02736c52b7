"""The models of the digits experiment, by name."""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn

import neurocoder as nc

from ..networks.linear import PIXELS, PROJECTED, Projected, random_projection
from ..networks.mlp import mlp


def program(steps: int, *, heads: int = 1, slots: int = 6, hidden: int = 8) -> nc.ProgramConfig:
    """The paper's layer for the digits, unless said otherwise: K = 2, l_I = 2, a = 0.1, no residual."""
    return nc.ProgramConfig(
        slots=slots, key_dim=2, steps=steps, heads=heads, least_used=2, hidden=hidden, orthogonality=0.1, residual=False
    )


PROGRAMS: Mapping[str, nc.ProgramConfig] = {
    **{f"J{steps}": program(steps) for steps in range(1, 9)},
    "H3-J5": program(5, heads=3, hidden=6),
    "H3-J1": program(1, heads=3, hidden=6),
    "H1-J5-narrow": program(5, hidden=7),
    "P10-H2-J5": program(5, heads=2, slots=10, hidden=5),
    "single-30": program(1, heads=3, slots=30),
    "multi-10": program(5, slots=10),
}
"""The curve over J at H = 1 as in the paper; four that fit within the linear classifier's 7,850 parameters; the two
whose attention Figure 4 shows (three heads, for three components in one step)."""
BEST = "H3-J5"
"""The best with J = 5 and at most `LIMIT` parameters, by validation error."""
LIMIT = 7_850
"""Parameters of the linear classifier."""
VARIANTS = ("linear", "mlp", *PROGRAMS)


def build_model(variant: str) -> nn.Module:
    """On the CPU, from torch's generator. The projection is drawn first: variants of one seed share it."""
    if variant == "linear":
        return nn.Linear(PIXELS, 10)
    projection = random_projection()
    if variant == "mlp":
        return Projected(mlp((PROJECTED, 32, 10)), projection)
    return Projected(nc.Linear(PROJECTED, 10, program=PROGRAMS[variant]), projection)


def title(variant: str) -> str:
    """As in tables."""
    if variant == "linear":
        return "linear classifier, 784 x 10"
    if variant == "mlp":
        return "MLP, 200-32-10"
    c = PROGRAMS[variant]
    return f"Neurocoder P={c.slots} J={c.steps} H={c.heads}, LSTM {c.hidden}"
