"""The models of continual learning: an MLP with one or several heads, as it is or recoded."""

from __future__ import annotations

from typing import Any, Protocol

from torch import Tensor, nn

import neurocoder as nc


class Settings(Protocol):
    """What the models need of the experiment's config."""

    @property
    def recode(self) -> str: ...
    @property
    def residual(self) -> bool: ...
    @property
    def orthogonality(self) -> float: ...
    @property
    def hidden(self) -> int: ...


class MultiHead(nn.Module):
    """Two hidden layers that all tasks share, and one head or several."""

    def __init__(self, inputs: int, width: int, outputs: int, heads: int | None) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(inputs, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
        self.heads = nn.ModuleList(nn.Linear(width, outputs) for _ in range(heads or 1))

    def forward(self, x: Tensor, head: int | None = None) -> Tensor:
        """(N, inputs) -> (N, outputs)"""
        return self.heads[head or 0](self.trunk(x))


def build_model(
    name: str, inputs: int, outputs: int, heads: int | None, config: Settings, *, width: int = 256, slots: int = 50
) -> MultiHead:
    """On the CPU, from torch's generator."""
    model = MultiHead(inputs, 400 if name == "mlp-400" else width, outputs, heads)
    if name.startswith("mlp"):
        return model
    if name == "stored-program":
        return nc.recode(model, ["trunk.0", "trunk.2", "heads.*"], nc.StoredProgramConfig())
    residual: Any = "plain" if name == "neurocoder-plain" else config.residual
    program = nc.ProgramConfig(
        slots=slots,
        key_dim=5,
        steps=1,
        heads=10,
        least_used=5,
        hidden=config.hidden,
        orthogonality=config.orthogonality,
        residual=residual,
    )
    targets = ["trunk.0", "trunk.2"] + ["heads.*"] * (config.recode == "all")
    return nc.recode(model, targets, program)
