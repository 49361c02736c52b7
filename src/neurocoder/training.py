"""The losses that coded layers add to the task loss, over whole models."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from .layer.base import CodedLayer, coded_layers
from .layer.checks import require_module
from .program.layer import ProgramLayer
from .program.memory import orthogonal_losses


def _layers(modules: tuple[nn.Module, ...]) -> list[CodedLayer]:
    """The coded layers of these modules, each once."""
    for module in modules:
        require_module("each of modules", module)
    return list(coded_layers(*modules).values())


def _sum(terms: list[Tensor], modules: Sequence[nn.Module]) -> Tensor:
    """The sum of scalars, on the device of the modules' first parameter."""
    device = next((parameter.device for module in modules for parameter in module.parameters()), None)
    if not terms:
        return torch.zeros((), device=device)
    there = [term.to(device) for term in terms]
    return there[0] if len(there) == 1 else torch.stack(there).sum()


def auxiliary_loss(*modules: nn.Module) -> Tensor:
    """What the coded layers add to the task loss: `a * L_o` of each program layer, and each mixture's balance loss.

    A layer shared by several modules counts once; a model without coded layers adds zero.

    Example:
        >>> model = nc.recode(nn.Sequential(nn.Linear(8, 4)), "0", nc.ProgramConfig(orthogonality=0.1))
        >>> x, y = torch.randn(32, 8), torch.randint(4, (32,))
        >>> loss = nn.functional.cross_entropy(model(x), y) + nc.auxiliary_loss(model)
        >>> loss.backward()
    """
    layers, terms, weighted = _layers(modules), [], []
    for layer in layers:
        if isinstance(layer, ProgramLayer) and type(layer).auxiliary_loss is ProgramLayer.auxiliary_loss:
            if layer.config.orthogonality > 0:
                weighted.append((layer.memory, layer.config.orthogonality))
        else:
            terms.append(layer.auxiliary_loss())
    return _sum(terms + orthogonal_losses(weighted), layers or modules)


def orthogonal_loss(*modules: nn.Module) -> Tensor:
    """`L_o` itself, summed over the program layers, each once.

    Example:
        >>> layer = nc.Linear(8, 8, program=nc.ProgramConfig(slots=4, least_used=2))
        >>> bool(nc.orthogonal_loss(layer) < 1e-4)  # slots start orthonormal
        True
    """
    layers = [layer for layer in _layers(modules) if isinstance(layer, ProgramLayer)]
    return _sum(orthogonal_losses([(layer.memory, 1.0) for layer in layers]), layers or modules)
