"""Training whole models: the losses that coded layers add, counts of parameters, and groups for an optimiser."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from .layer.base import CodedLayer, each_coded_layer
from .layer.checks import require_module, require_number
from .surgery.clients import warn_of_peft

PARTS = ("memory", "controller", "residual", "main")


def layers_of(modules: tuple[nn.Module, ...]) -> list[CodedLayer]:
    """The coded layers of these modules, each once."""
    for module in modules:
        require_module("each of modules", module)
    return list(each_coded_layer(*modules))


def total(terms: list[Tensor], modules: Sequence[nn.Module]) -> Tensor:
    """The sum of scalars, on the device of the modules' first parameter."""
    device = next((parameter.device for module in modules for parameter in module.parameters()), None)
    if not terms:
        return torch.zeros((), device=device)
    terms = [term.to(device) for term in terms]
    return terms[0] if len(terms) == 1 else torch.stack(terms).sum()


def auxiliary_loss(*modules: nn.Module) -> Tensor:
    """What the coded layers add to the task loss: `a * L_o` of each program layer, and each mixture's balance loss.

    A layer shared by several modules counts once; a model without coded layers adds zero.

    Each call walks the modules anew, so it is right after any change of the model. In a large model with few coded
    layers that takes longer than the losses: there, pass the layers themselves, `nc.auxiliary_loss(*layers)`.

    `a * L_o` does not depend on the batch. If a step accumulates the gradients of k micro-batches, divide this as the
    task loss, `((task_loss + nc.auxiliary_loss(model)) / k).backward()`: undivided, it would count k times.

    Example:
        >>> model = nc.recode(nn.Sequential(nn.Linear(8, 4)), "0", nc.ProgramConfig(orthogonality=0.1))
        >>> x, y = torch.randn(32, 8), torch.randint(4, (32,))
        >>> loss = nn.functional.cross_entropy(model(x), y) + nc.auxiliary_loss(model)
        >>> loss.backward()
        >>> layers = nc.coded_layers(model).values()  # collected once
        >>> torch.equal(nc.auxiliary_loss(*layers), nc.auxiliary_loss(model))
        True
    """
    layers = layers_of(modules)
    kinds: dict[Any, list[CodedLayer]] = {}
    for layer in layers:
        kinds.setdefault(layer.auxiliary_losses, []).append(layer)
    return total([term for losses, group in kinds.items() for term in losses(group)], layers or modules)


def _owners(model: nn.Module) -> dict[int, tuple[CodedLayer, str]]:
    """For each parameter (by id) of a coded layer: that layer and the parameter's name in it."""
    require_module("model", model)
    return {
        id(parameter): (layer, name)
        for layer in each_coded_layer(model)
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
    layers = list(each_coded_layer(model))
    for layer in layers:
        for part, numbers in layer.stored().items():
            counts[part] += numbers
    written = [count for layer in layers if (count := layer.written_numbers()) is not None]
    return {**counts, "total": sum(counts.values()), **({"written": sum(written)} if written else {})}


def parameter_groups(
    model: nn.Module, *, lr: float, controller_lr: float | None = None, weight_decay: float = 0.0
) -> list[dict[str, Any]]:
    """Groups for an optimiser: controllers with their own learning rate; no decay on slots, keys, biases and other
    vectors. Frozen parameters are left out, shared ones appear once; each group has a `name`. A warning names what
    PEFT would train against the configuration, or not save.

    Example:
        >>> model = nc.recode(nn.Sequential(nn.Linear(8, 4)), "0", nc.ProgramConfig())
        >>> groups = nc.parameter_groups(model, lr=1e-3, controller_lr=1e-4)
        >>> optimiser = torch.optim.Adam(groups)
    """
    controller_lr = lr if controller_lr is None else controller_lr
    for name, value in (("lr", lr), ("controller_lr", controller_lr), ("weight_decay", weight_decay)):
        require_number(name, value)
    owners = _owners(model)
    warn_of_peft(model)
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
