"""The models of continual learning: an MLP with one or several heads, as it is or recoded."""

from __future__ import annotations

from typing import Any, Protocol

from torch import Tensor, nn
from torch.nn.functional import avg_pool2d

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


class Growing(nn.Module):
    """One growing layer from the inputs to the classes, for each head; keys are of the same input, seen more coarsely.

    Images of 32 x 32 pixels are blurred and centred; features are taken as they are.
    """

    def __init__(self, inputs: int, outputs: int, heads: int | None, config: nc.GrowingConfig) -> None:
        super().__init__()
        layers = (nc.GrowingLinear(inputs, outputs, False, config, control_dim=inputs) for _ in range(heads or 1))
        self.heads = nn.ModuleList(layers)

    def forward(self, x: Tensor, head: int | None = None) -> Tensor:
        """(N, inputs) -> (N, outputs)"""
        z = x
        if x.shape[1] == 1024:
            blurred = x.view(-1, 1, 32, 32)
            for _ in range(2):
                blurred = avg_pool2d(blurred, 3, 1, 1)
            z = blurred.flatten(1)
            z = z - z.mean(1, keepdim=True)
        return self.heads[head or 0](x, control=z)


def build_model(
    name: str, inputs: int, outputs: int, heads: int | None, config: Settings, *, width: int = 256, slots: int = 50
) -> nn.Module:
    """On the CPU, from torch's generator."""
    if name == "growing":
        images = inputs == 1024
        memory = nc.GrowingConfig(
            slots=2_000,
            max_slots=2_000,
            residual=False,
            max_similarity=0.85 if images else 0.6,
            sharpness=50.0 if images else 20.0,
        )
        return Growing(inputs, outputs, heads, memory)
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
