"""Counting a model's parameters by part, and grouping them for an optimiser."""

from __future__ import annotations

import math
from numbers import Real
from typing import Any

from torch import nn

from .layer.base import CodedLayer, coded_layers
from .layer.checks import require_module

PARTS = ("memory", "controller", "residual", "main")


def _owners(model: nn.Module) -> dict[int, tuple[CodedLayer, str]]:
    """For each parameter (by id) of a coded layer: that layer and the parameter's name in it."""
    require_module("model", model)
    return {
        id(parameter): (layer, name)
        for layer in coded_layers(model).values()
        for name, parameter in layer.named_parameters()
    }


def count_parameters(model: nn.Module) -> dict[str, int]:
    """Parameter counts by part: memory, controller, residual, main (all else, with biases), total; shared ones once.

    The keys of growing layers count as memory. With such layers there is also `written`: how much of the memory of
    these layers is in use.

    Example:
        >>> nc.count_parameters(nc.Linear(8, 4, program=nc.ProgramConfig(slots=10, hidden=8)))
        {'memory': 210, 'controller': 1768, 'residual': 32, 'main': 4, 'total': 2014}
    """
    owners = _owners(model)
    counts = dict.fromkeys(PARTS, 0)
    for parameter in model.parameters():
        layer, name = owners.get(id(parameter), (None, ""))
        counts["main" if layer is None else layer.part_of(name)] += parameter.numel()
    layers = coded_layers(model).values()
    for layer in layers:
        for part, numbers in layer.stored().items():
            counts[part] += numbers
    written = [found for layer in layers if (found := layer.written_numbers()) is not None]
    return {**counts, "total": sum(counts.values()), **({"written": sum(written)} if written else {})}


def parameter_groups(
    model: nn.Module, *, lr: float, controller_lr: float | None = None, weight_decay: float = 0.0
) -> list[dict[str, Any]]:
    """Groups for an optimiser: controllers with their own learning rate; no decay on slots, keys, biases and other
    vectors. Frozen parameters are left out, shared ones appear once; each group has a `name`.

    Example:
        >>> model = nc.recode(nn.Sequential(nn.Linear(8, 4)), "0", nc.ProgramConfig())
        >>> groups = nc.parameter_groups(model, lr=1e-3, controller_lr=1e-4)
        >>> optimiser = torch.optim.Adam(groups)
    """
    controller_lr = lr if controller_lr is None else controller_lr
    numbers: dict[str, Any] = {"lr": lr, "controller_lr": controller_lr, "weight_decay": weight_decay}
    for name, value in numbers.items():
        if isinstance(value, bool) or not isinstance(value, Real) or not math.isfinite(value) or value < 0:
            raise ValueError(f"{name} must be a finite number >= 0, got {value!r}")
    owners = _owners(model)
    groups: dict[tuple[bool, bool], list[nn.Parameter]] = {}
    for parameter in model.parameters():
        if not parameter.requires_grad:
            continue
        layer, name = owners.get(id(parameter), (None, ""))
        controller = layer is not None and layer.part_of(name) == "controller"
        decays = parameter.dim() > 1 and (layer is None or layer.decays(name))
        groups.setdefault((controller, decays), []).append(parameter)
    return [
        {
            "name": f"{'controller' if controller else 'main'}{'' if decays else ', undecayed'}",
            "params": parameters,
            "lr": controller_lr if controller else lr,
            "weight_decay": weight_decay if decays else 0.0,
        }
        for (controller, decays), parameters in groups.items()
    ]
