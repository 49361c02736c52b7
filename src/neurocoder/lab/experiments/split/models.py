"""The models of continual learning: an MLP with one or several heads, as it is or recoded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

import neurocoder as nc

from .growing import SIZES, Growing, Size, View

if TYPE_CHECKING:
    from .experiment import SplitConfig


WIDTHS = {1024: 256, 512: 512}
"""Of the hidden layers, by the number of inputs: pixels of Split MNIST, as in the paper, and features."""
WIDE = {1024: 468, 512: 800}
"""Of `mlp-wide`: as many parameters as the Neurocoder of preset `best` has in the task scenario, to within 3%."""


class MultiHead(nn.Module):
    """Two hidden layers that all tasks share, and one head or several; `shared`: one layer has the outputs of all."""

    def __init__(self, inputs: int, width: int, outputs: int, heads: int | None, shared: bool = False) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(inputs, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
        self.outputs, count = outputs, heads or 1
        sizes = [outputs * count] if shared else [outputs] * count
        self.heads = nn.ModuleList(nn.Linear(width, size) for size in sizes)

    def forward(self, x: Tensor, head: int | None = None) -> Tensor:
        """(N, inputs) -> (N, outputs)"""
        place = head or 0
        if len(self.heads) > 1:
            return self.heads[place](self.trunk(x))
        return self.heads[0](self.trunk(x))[:, place * self.outputs : (place + 1) * self.outputs]


def size_of(name: str, config: SplitConfig, view: View) -> Size:
    """The sizes of a growing model of this name; what the config leaves open is the model's own."""
    given = {field: getattr(config, field) for field in Size._fields}
    return SIZES[name, view]._replace(**{field: value for field, value in given.items() if value is not None})


def build_growing(
    name: str, inputs: int, outputs: int, heads: int | None, config: SplitConfig, view: View = "blurred"
) -> Growing:
    """A growing model of this name, with the sizes of `size_of`."""
    size = size_of(name, config, view)
    slots = size.slots // (heads or 1)
    memory = nc.GrowingConfig(
        slots=slots,
        max_slots=slots,
        rank=size.rank,
        writes=size.writes,
        residual=False,
        max_similarity=size.max_similarity,
        sharpness=20.0 if view == "features" else 50.0,
        count="inputs",
        consolidation=30.0,
    )
    return Growing(inputs, outputs, heads, memory, view, size.key_dim)


def build_model(
    name: str, inputs: int, outputs: int, heads: int | None, config: SplitConfig, slots: int = 50
) -> nn.Module:
    """Any other model, on the CPU, from torch's generator."""
    width = {"mlp-400": 400, "mlp-wide": WIDE.get(inputs)}.get(name) or config.width or WIDTHS.get(inputs, 256)
    shared = name.startswith("neurocoder") and config.recode == "shared"
    model = MultiHead(inputs, width, outputs, heads, shared)
    if name.startswith("mlp"):
        return model
    if name == "stored-program":
        return nc.recode(model, ["trunk.0", "trunk.2", "heads.*"], nc.StoredProgramConfig())
    residual: Any = "plain" if name == "neurocoder-plain" else config.residual
    assert config.hidden is not None
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
    targets = ["trunk.0", "trunk.2"] + ["heads.*"] * (config.recode != "trunk")
    return nc.recode(model, targets, program)
