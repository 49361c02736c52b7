"""Surgery on existing models: `plan`, `recode`, `restore`, `register`. Nothing changes before everything is checked."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from .base import CodedLayer, coded_layers
from .baselines import HyperLinear, MixtureLinear, StoredProgramLinear
from .compiled import run_uncompiled, uncompiled
from .config import Config
from .conv import Conv1d, Conv2d
from .linear import Linear
from .targets import Model, Targets, modules_by_name, require_module, select

_registry: dict[tuple[type[nn.Module], type[Config]], type[CodedLayer]] = {}


def register(plain_type: type[nn.Module], coded_type: type[CodedLayer]) -> None:
    """Teach `recode` a layer kind: `coded_type` stands in for `plain_type` where its `config_type` is asked for."""
    if not (isinstance(plain_type, type) and issubclass(plain_type, nn.Module)):
        raise ValueError(f"plain_type must be a subclass of nn.Module, got {plain_type!r}")
    if not (isinstance(coded_type, type) and issubclass(coded_type, CodedLayer)):
        raise ValueError(f"coded_type must be a subclass of neurocoder.CodedLayer, got {coded_type!r}")
    config_type = getattr(coded_type, "config_type", None)
    if not (isinstance(config_type, type) and issubclass(config_type, Config)):
        raise ValueError(
            f"coded_type must have a config_type that is a subclass of neurocoder.Config, got {config_type!r}"
        )
    _registry[plain_type, config_type] = coded_type


for _plain, _coded in (
    (nn.Linear, Linear),
    (nn.Conv1d, Conv1d),
    (nn.Conv2d, Conv2d),
    (nn.Linear, MixtureLinear),
    (nn.Linear, StoredProgramLinear),
    (nn.Linear, HyperLinear),
):
    register(_plain, _coded)


def coded_type_for(plain: nn.Module, config: Config) -> type[CodedLayer] | None:
    """The coded layer that stands in for `plain` when `config` asks for it, or None."""
    return _registry.get((type(plain), type(config)))


def config_kinds() -> dict[str, type[Config]]:
    """The configurations of all registered kinds by name."""
    return {config.__name__: config for _, config in _registry}


@dataclass(frozen=True)
class Replacement:
    """One layer that `recode` replaces."""

    names: tuple[str, ...]
    """All names of the layer; more than one where a module is used twice."""
    plain: nn.Module
    coded_type: type[CodedLayer]
    before: int
    after: int


@dataclass(frozen=True, repr=False)
class Plan:
    """What `recode` would do; prints as a table."""

    replacements: tuple[Replacement, ...]
    skipped: tuple[tuple[str, str], ...]
    """Layers that a glob or type matched and that stay as they are, with the reason."""
    total_before: int
    total_after: int

    def __str__(self) -> str:
        rows = [("layer", "from", "to", "parameters", "after")]
        for item in self.replacements:
            kinds = _type_name(type(item.plain)), _type_name(item.coded_type)
            rows.append((" = ".join(item.names), *kinds, f"{item.before:,}", f"{item.after:,}"))
        rows.append(("whole model", "", "", f"{self.total_before:,}", f"{self.total_after:,}"))
        widths = [max(len(row[i]) for row in rows) for i in range(5)]
        lines = [
            "  ".join(c.ljust(w) if i < 3 else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True)))
            for row in rows
        ]
        rule = "  ".join("-" * w for w in widths)
        lines = [lines[0], rule, *lines[1:-1], rule, lines[-1]]
        for reason in dict.fromkeys(reason for _, reason in self.skipped):
            names = ", ".join(name for name, other in self.skipped if other == reason)
            lines.append(f"left as it is: {names} ({reason})")
        return "\n".join(line.rstrip() for line in lines)

    __repr__ = __str__


def _type_name(kind: type[nn.Module]) -> str:
    """The name that a user would write."""
    for prefix, package in (("nn", "torch.nn."), ("nc", "neurocoder.")):
        if kind.__module__.startswith(package):
            return f"{prefix}.{kind.__name__}"
    return kind.__name__


def _has_hooks(module: nn.Module) -> bool:
    """Whether anything was hung onto this module or its parameters that a replacement would not have."""
    tables = [table for part in module.modules() for key, table in vars(part).items() if key.endswith("_hooks")]
    for parameter in module.parameters():
        tables += [parameter._backward_hooks, parameter._post_accumulate_grad_hooks]
    return any(tables) or "forward" in vars(module)


def _refusal(modules: dict[str, nn.Module], names: list[str], config: Config, control_dim: int | None) -> str | None:
    """Why the layer of these names cannot be recoded, or None."""
    module = modules[names[0]]
    if isinstance(module, CodedLayer):
        return "it is already coded: nc.restore it first"
    if any(isinstance(modules.get(name.rpartition(".")[0]), nn.MultiheadAttention) for name in names):
        return "nn.MultiheadAttention multiplies by its out_proj.weight itself and would never call a coded layer"
    if parametrize.is_parametrized(module):
        return "it is parametrized: call torch.nn.utils.parametrize.remove_parametrizations first"
    coded_type = coded_type_for(module, config)
    if coded_type is None:
        kind = type(config).__name__
        covered = ", ".join(sorted(_type_name(plain) for plain, other in _registry if other is type(config)))
        known = f"{kind} covers {covered}" if covered else f"no kind takes {kind}"
        return f"{_type_name(type(module))} is of an unknown kind: {known}; see nc.register"
    if _has_hooks(module):
        return "it has hooks, which would be lost: remove them first and register them anew"
    if "" in names:
        return (
            "it is the whole model and cannot be replaced in place: put it into a container, "
            f"or use {_type_name(coded_type)}.from_plain"
        )
    try:
        coded_type.like(module, config, control_dim=control_dim, device="meta")
    except ValueError as error:
        return str(error)
    return None


def plan(model: nn.Module, targets: Targets, config: Config, *, control_dim: int | None = None) -> Plan:
    """A dry run of `recode`: which layers would be replaced, and the parameters before and after."""
    require_module("model", model)
    if not isinstance(config, Config):
        raise ValueError(f"config must be a ProgramConfig or another neurocoder config, got {config!r}")
    model = uncompiled(model)
    modules = modules_by_name(model)
    chosen, skipped = _choose(modules, targets, config, control_dim)
    replacements = tuple(_replacement(modules[names[0]], names, config, control_dim) for names in chosen)
    replaced = [name for names in chosen for name in names]
    kept: dict[int, int] = {}
    for name, module in modules.items():
        if not any(f"{name}.".startswith(f"{one}.") for one in replaced):
            kept |= {id(parameter): parameter.numel() for parameter in _own_parameters(module)}
    total_after = sum(kept.values()) + sum(item.after for item in replacements)
    return Plan(replacements, tuple(skipped), _count(model), total_after)


def _choose(
    modules: dict[str, nn.Module], targets: Targets, config: Config, control_dim: int | None
) -> tuple[list[tuple[str, ...]], list[tuple[str, str]]]:
    """The layers to replace, each as all of its names, and those that are passed over, with the reason."""
    names_of: dict[int, list[str]] = {}
    for name, module in modules.items():
        names_of.setdefault(id(module), []).append(name)
    selected = select(modules, targets)
    reasons = {name: _refusal(modules, names_of[id(modules[name])], config, control_dim) for name in selected}
    chosen = dict.fromkeys(tuple(names_of[id(modules[name])]) for name, reason in reasons.items() if reason is None)
    replaced = [name for names in chosen for name in names]
    for name, reason in reasons.items():
        outer = [one for one in replaced if name.startswith(f"{one}.")]
        if reason is None and outer:
            reasons[name] = f"it lies inside {outer[0]!r}, which is recoded as a whole"
            chosen.pop(tuple(names_of[id(modules[name])]), None)
    skipped = []
    for name, reason in reasons.items():
        if reason is not None and selected[name]:
            raise ValueError(f"cannot recode {repr(name) if name else 'the model itself'}: {reason}")
        if reason is not None and any(True for _ in _own_parameters(modules[name])):
            skipped.append((name or "the model itself", reason))
    if not chosen:
        listed = "; ".join(f"{name}: {reason}" for name, reason in skipped or reasons.items())
        raise ValueError(f"targets matched no layer that can be recoded. {listed}")
    return list(chosen), skipped


def _replacement(plain: nn.Module, names: tuple[str, ...], config: Config, control_dim: int | None) -> Replacement:
    """What would replace this layer, counted on the meta device."""
    coded_type = coded_type_for(plain, config)
    assert coded_type is not None
    twin = coded_type.like(plain, config, control_dim=control_dim, device="meta")
    return Replacement(names, plain, coded_type, _count(plain), _count(twin))


def _own_parameters(module: nn.Module) -> Iterator[nn.Parameter]:
    """A module's parameters without those of its children; a coded layer is one whole."""
    return module.parameters(recurse=isinstance(module, CodedLayer))


def _count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def recode(model: Model, targets: Targets, config: Config, *, control_dim: int | None = None) -> Model:
    """Replace layers of a model by coded ones, in place, and return the model.

    Args:
        model: any module that contains the layers.
        targets: names, globs over full names, types, predicates `(name, module) -> bool`, or several of these. A glob
            or type passes over layers that cannot be recoded (`plan` lists them); a name or predicate is then an error.
        config: what to put there: `ProgramConfig`, `MixtureConfig`, `StoredProgramConfig`, `HyperConfig` or one's own.
        control_dim: width of the tensor that steers these layers, see `control`; None: their own input does.

    With a residual a layer starts from the old weight, which it keeps exactly (to rounding). A module used twice is
    replaced once, under all its names; a weight tied to another module's is copied, and the tie ends.
    """
    replacements = plan(model, targets, config, control_dim=control_dim).replacements
    swap(
        uncompiled(model),
        {item.names: item.coded_type.from_plain(item.plain, config, control_dim=control_dim) for item in replacements},
    )
    return model


def swap(model: nn.Module, layers: dict[tuple[str, ...], nn.Module]) -> None:
    """Put modules at their names."""
    for names, layer in layers.items():
        for name in names:
            parent, _, child = name.rpartition(".")
            setattr(model.get_submodule(parent), child, layer)
    for encoder in model.modules():
        if isinstance(encoder, nn.TransformerEncoder):
            _set_nested_tensors(encoder)


def _set_nested_tensors(encoder: Any) -> None:
    """An encoder hands nested tensors to all of its layers if the first could take them; coded ones cannot."""
    if coded_layers(encoder):
        if getattr(encoder, "use_nested_tensor", False):
            encoder.use_nested_tensor = False
            encoder.nested_tensor_before_recode = True
    elif getattr(encoder, "nested_tensor_before_recode", False):
        encoder.use_nested_tensor = True
        del encoder.nested_tensor_before_recode


def restore(model: Model, data: Any = None) -> Model:
    """Replace every coded layer by a plain one, in place, and return the model.

    A layer whose program is still the same for every input, as `recode` leaves it, gets that weight: the old one. Any
    other gets the mean of its `W_t` over `data`, the model's input (a tuple: its arguments), which passes through the
    model once, in eval mode.
    """
    require_module("model", model)
    inner = uncompiled(model)
    if isinstance(inner, CodedLayer):
        raise ValueError("cannot restore the model itself in place: it is a coded layer; put it into a container")
    names_of: dict[CodedLayer, list[str]] = {}
    for name, module in modules_by_name(inner).items():
        if isinstance(module, CodedLayer):
            names_of.setdefault(module, []).append(name)
    if not names_of:
        raise ValueError("model must have coded layers to restore, found none")
    for layer, names in names_of.items():
        if _has_hooks(layer):
            raise ValueError(f"cannot restore {names[0]!r}: it has hooks, which would be lost: remove them first")
    weights = {layer: layer.constant_weight() for layer in names_of}
    varying = {layer: names_of[layer][0] for layer, weight in weights.items() if weight is None}
    if varying and data is None:
        raise ValueError(
            f"data must be given: the program of {', '.join(map(repr, varying.values()))} differs from input to input; "
            "nc.restore(model, data=x) takes its mean over x"
        )
    if varying:
        weights |= _mean_weights(inner, varying, data)
    swap(inner, {tuple(names): _plain_with(layer, weights[layer]) for layer, names in names_of.items()})
    return model


def _plain_with(layer: CodedLayer, weight: Tensor | None) -> nn.Module:
    """A plain layer with this weight, and the coded layer's bias, mode and frozenness."""
    plain: Any = layer.to_plain()
    assert weight is not None
    with torch.no_grad():
        plain.weight.copy_(weight)
        if layer.bias is not None:
            plain.bias.copy_(layer.bias)
            plain.bias.requires_grad_(layer.bias.requires_grad)
    frozen = [not parameter.requires_grad for parameter in layer.weight_parameters()]
    plain.weight.requires_grad_(not (frozen and all(frozen)))
    plain.train(layer.training)
    return plain


def _mean_weights(model: nn.Module, layers: dict[CodedLayer, str], data: Any) -> dict[CodedLayer, Tensor | None]:
    """The mean weight of each layer over the calls that one pass of the data makes."""
    sums: dict[CodedLayer, Tensor] = {}
    counts: dict[CodedLayer, int] = dict.fromkeys(layers, 0)

    def collect(layer: CodedLayer, args: tuple[Any, ...], kwargs: dict[str, Any], _: Any) -> None:
        mean, count = layer.mean_weight(*args, **kwargs)
        if count:
            part = count * mean.to(torch.promote_types(mean.dtype, torch.float32))
            sums[layer] = sums[layer] + part if layer in sums else part
            counts[layer] += count

    handles = [layer.register_forward_hook(collect, with_kwargs=True) for layer in layers]
    modes = [(module, module.training) for module in model.modules()]
    try:
        model.eval()
        with torch.no_grad(), run_uncompiled():
            model(*data) if isinstance(data, tuple) else model(data)
    finally:
        for handle in handles:
            handle.remove()
        for module, mode in modes:
            module.training = mode
    idle = [name for layer, name in layers.items() if counts[layer] == 0]
    if idle:
        raise ValueError(
            f"data must pass through every coded layer, but reached no input of {', '.join(map(repr, idle))}"
        )
    return {layer: sums[layer] / counts[layer] for layer in layers}
