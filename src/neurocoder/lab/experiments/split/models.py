"""The models of continual learning: an MLP with one or several heads, as it is or recoded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

import neurocoder as nc

from .growing import SIZES, Growing, View

if TYPE_CHECKING:
    from .experiment import SplitConfig


class MultiHead(nn.Module):
    """Two hidden layers that all tasks share, and one head or several."""

    def __init__(self, inputs: int, width: int, outputs: int, heads: int | None) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(inputs, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
        self.heads = nn.ModuleList(nn.Linear(width, outputs) for _ in range(heads or 1))

    def forward(self, x: Tensor, head: int | None = None) -> Tensor:
        """(N, inputs) -> (N, outputs)"""
        return self.heads[head or 0](self.trunk(x))


def build_growing(
    name: str, inputs: int, outputs: int, heads: int | None, config: SplitConfig, view: View = "blurred"
) -> Growing:
    """A growing model of this name; what the config leaves open is the model's own."""
    size = SIZES[name, view]
    slots = (config.slots or size.slots) // (heads or 1)
    memory = nc.GrowingConfig(
        slots=slots,
        max_slots=slots,
        rank=config.rank or size.rank,
        writes=config.writes or size.writes,
        residual=False,
        max_similarity=size.max_similarity if config.max_similarity is None else config.max_similarity,
        sharpness=20.0 if view == "features" else 50.0,
    )
    key_dim = config.key_dim or size.key_dim
    return Growing(inputs, outputs, heads, memory, view, key_dim)


def build_model(
    name: str, inputs: int, outputs: int, heads: int | None, config: SplitConfig, *, width: int = 256, slots: int = 50
) -> nn.Module:
    """Any other model, on the CPU, from torch's generator."""
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
