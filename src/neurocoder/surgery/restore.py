"""Coded layers back to plain ones: `restore`. Everything is checked before anything changes."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from ..distributed import wrapper_conflict
from ..inspect.data import pass_through, require_data
from ..layer.base import CodedLayer, each_coded_layer
from ..layer.checks import require_module
from ..layer.control import steering
from ..ops.compiled import uncompiled
from .clients import hooks
from .recode import swap
from .registry import as_template
from .targets import Model, Targets, described, modules_by_name, names_of, overview, select, shown, type_name


def restore(model: Model, targets: Targets | None = None, *, data: Any = None, control: Tensor | None = None) -> Model:
    """Replace coded layers with plain ones, in place, and return the model.

    A layer whose program is still the same for every input, as `recode` leaves it, gets its old weight back. A layer
    that is steered gets its `W_t` of `control`. Any other gets the mean of its `W_t` over `data`, which passes through
    the model once, in eval mode.

    Args:
        model: any module that contains coded layers.
        targets: which of them, as in `recode`; None: all. A suffix, glob or type skips other modules.
        data: the model's input: a tensor, a tuple of arguments or a dictionary of keyword arguments; or a loader, which
            is an iterable of these (lists count as tuples). The mean is over all inputs of all batches.
        control: z (control_dim,) of the layers that were built with `control_dim`: the plain network of one task or
            user. None: these layers take their mean over `data` too, inside `with nc.control(model, z):`.

    Example:
        >>> model = nc.recode(nn.Sequential(nn.Linear(8, 4)), "0", nc.ProgramConfig())
        >>> nc.restore(model, data=torch.randn(32, 8))
        Sequential(
          (0): Linear(in_features=8, out_features=4, bias=True)
        )
        >>> model = nn.Sequential(nc.CoreLinear(8, 4, control_dim=3))
        >>> x, z = torch.randn(32, 8), torch.randn(3)
        >>> with nc.control(model, z):
        ...     steered = model(x)
        >>> torch.allclose(nc.restore(model, control=z)(x), steered, atol=1e-5)
        True
    """
    require_module("model", model)
    inner = uncompiled(model)
    if isinstance(inner, CodedLayer):
        raise ValueError("cannot restore the model itself in place: it is a coded layer; put it into a container")
    if data is not None:
        require_data(data, "; targets go before it: nc.restore(model, targets, data=x)")
    modules = modules_by_name(inner)
    chosen = _coded(modules, targets)
    called = set(each_coded_layer(inner))
    for layer, names in chosen.items():
        copied = None if layer in called else "PEFT calls a copy of it: merge_and_unload() comes first"
        if reason := wrapper_conflict(modules, names[0], "restore") or hooks(layer) or copied:
            raise ValueError(f"cannot restore {names[0]!r}: {reason}")
    if control is not None and (not isinstance(control, Tensor) or control.dim() != 1):
        shape = tuple(control.shape) if isinstance(control, Tensor) else repr(control)
        raise ValueError(f"control must be one control, a tensor of shape (control_dim,), got {shape}")
    if control is not None and not bool(control.isfinite().all()):
        raise ValueError("control must be finite, got NaN or infinity")
    steered = [layer for layer in chosen if layer.control_dim is not None]
    if control is not None:
        if not steered:
            raise ValueError("control was given, but no layer to restore was built with control_dim")
        for layer in steered:
            if control.shape != (layer.control_dim,):
                got = f"got {tuple(control.shape)}: restore layers of other widths one after the other, by targets"
                raise ValueError(f"control must have shape ({layer.control_dim},) for {chosen[layer][0]!r}, {got}")
    weights = {layer: [weight] for layer in chosen if (weight := layer.constant_weight()) is not None}
    with nullcontext() if control is None else steering(steered, control):
        if control is not None:
            weights |= {
                layer: _mean_program(layer, layer.prototype.new_zeros(layer.input_shape))[0]
                for layer in steered
                if layer not in weights
            }
        varying = {layer: names[0] for layer, names in chosen.items() if layer not in weights}
        if varying and data is None:
            raise ValueError(
                f"data must be given: the program of {', '.join(map(repr, varying.values()))} differs from input to "
                "input; nc.restore(model, data=x) takes its mean over x"
            )
        if varying:
            weights |= _mean_programs(inner, varying, data)
    swap(inner, {names: _plain_with(layer, *weights[layer]) for layer, names in chosen.items()})
    return model


def _coded(modules: dict[str, nn.Module], targets: Targets | None) -> dict[CodedLayer, tuple[str, ...]]:
    """The coded layers that the targets match, each with all of its names."""
    coded = {layer: names for layer, names in names_of(modules).items() if isinstance(layer, CodedLayer)}
    if not coded:
        raise ValueError("model must have coded layers to restore, found none")
    if targets is None:
        return coded
    known = f"the coded layers are {overview(names[0] for names in coded.values())}"
    for one in targets if isinstance(targets, tuple | list) else [targets]:
        if isinstance(one, Tensor | Mapping | DataLoader):
            raise ValueError(
                f"targets must be names, suffixes, globs, types or predicates, got {described(one)}: "
                "for data write nc.restore(model, data=...)"
            )
    matches = select(modules, targets)
    for match in matches:
        if match.explicit and not isinstance(modules[match.name], CodedLayer):
            kind = type_name(type(modules[match.name]))
            raise ValueError(f"cannot restore {shown(match.name)}: {kind} is not a coded layer; {known}")
    matched = {match.name for match in matches}
    meant = {layer: names for layer, names in coded.items() if not matched.isdisjoint(names)}
    if not meant:
        raise ValueError(f"targets matched no coded layer: {described(targets)}; {known}")
    return meant


def _plain_with(layer: CodedLayer, weight: Tensor, offset: Tensor | None = None) -> nn.Module:
    """A plain layer with this weight and the coded layer's bias, plus an offset, its mode and `requires_grad`."""
    plain: Any = layer.to_plain()
    with torch.no_grad():
        plain.weight.copy_(weight)
        if layer.bias is not None:
            plain.bias.copy_(layer.bias)
            was_frozen = getattr(layer.config, "residual", None) == "frozen"  # by `recode`, with the old weight
            plain.bias.requires_grad_(layer.bias.requires_grad or was_frozen)
        if offset is not None:
            plain.bias = nn.Parameter(offset.to(plain.weight)) if plain.bias is None else plain.bias.add_(offset)
    trains = [parameter.requires_grad for parameter in layer.weight_parameters()]
    plain.weight.requires_grad_(any(trains) or not trains)
    plain.train(layer.training)
    return as_template(layer, plain)


def _mean_program(layer: CodedLayer, *args: Any, **kwargs: Any) -> tuple[list[Tensor], int]:
    """The mean weight of the programs of one call, and their mean offset if they have one; and how many they are."""
    weight, count = layer.mean_weight(*args, **kwargs)
    offset = layer.mean_offset(*args, **kwargs) if count else None
    return [weight] if offset is None else [weight, offset], count


def _mean_programs(model: nn.Module, layers: dict[CodedLayer, str], data: Any) -> dict[CodedLayer, list[Tensor]]:
    """The mean program of each layer over all its calls in one pass through the data."""
    sums: dict[CodedLayer, list[Tensor]] = {}
    counts: dict[CodedLayer, int] = dict.fromkeys(layers, 0)

    def collect(layer: CodedLayer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        means, count = _mean_program(layer, *args, **kwargs)
        if count:
            parts = [count * mean.to(torch.promote_types(mean.dtype, torch.float32)) for mean in means]
            sums[layer] = [a + b for a, b in zip(sums[layer], parts, strict=True)] if layer in sums else parts
            counts[layer] += count

    pass_through(model, data, layers, collect)
    idle = [name for layer, name in layers.items() if counts[layer] == 0]
    if idle:
        raise ValueError(
            f"data must pass through every coded layer, but reached no input of {', '.join(map(repr, idle))}"
        )
    return {layer: [total / counts[layer] for total in sums[layer]] for layer in layers}
