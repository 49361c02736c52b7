"""Surgery on existing models: `plan`, `recode`, `restore`, `register`. Nothing changes before everything is checked."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor, nn

from .baselines import HyperLinear, MixtureLinear, StoredProgramLinear
from .coded import CodedLayer, coded_layers
from .config import Config
from .conv import Conv1d, Conv2d
from .linear import Linear

Predicate = Callable[[str, nn.Module], bool]
Targets = str | type[nn.Module] | Predicate | Iterable["str | type[nn.Module] | Predicate"]

_registry: dict[tuple[type[nn.Module], type[Config]], type[CodedLayer]] = {}


def register(plain_type: type[nn.Module], coded_type: type[CodedLayer]) -> None:
    """Teach `recode` a layer kind: `coded_type` stands in for `plain_type` where its `config_type` is asked for."""
    if not (isinstance(plain_type, type) and issubclass(plain_type, nn.Module)):
        raise ValueError(f"plain_type must be a subclass of nn.Module, got {plain_type!r}")
    if not (isinstance(coded_type, type) and issubclass(coded_type, CodedLayer)):
        raise ValueError(f"coded_type must be a subclass of neurocoder.CodedLayer, got {coded_type!r}")
    _registry[plain_type, coded_type.config_type] = coded_type


for _plain, _coded in (
    (nn.Linear, Linear),
    (nn.Conv1d, Conv1d),
    (nn.Conv2d, Conv2d),
    (nn.Linear, MixtureLinear),
    (nn.Linear, StoredProgramLinear),
    (nn.Linear, HyperLinear),
):
    register(_plain, _coded)


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


@dataclass(frozen=True)
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
            names = " = ".join(item.names)
            kinds = type(item.plain).__name__, f"nc.{item.coded_type.__name__}"
            rows.append((names, *kinds, f"{item.before:,}", f"{item.after:,}"))
        rows.append(("whole model", "", "", f"{self.total_before:,}", f"{self.total_after:,}"))
        widths = [max(len(row[i]) for row in rows) for i in range(5)]
        lines = [
            "  ".join(c.ljust(w) if i < 3 else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True)))
            for row in rows
        ]
        lines.insert(1, "  ".join("-" * w for w in widths))
        lines += [f"left as it is: {name} ({reason})" for name, reason in self.skipped]
        return "\n".join(line.rstrip() for line in lines)


def _modules_by_name(model: nn.Module) -> dict[str, nn.Module]:
    """All modules by every name they have, without looking inside coded layers."""
    found: dict[str, nn.Module] = {}
    inside: list[str] = []
    for name, module in model.named_modules(remove_duplicate=False):
        if any(name.startswith(prefix) for prefix in inside):
            continue
        found[name] = module
        if isinstance(module, CodedLayer):
            inside.append(f"{name}." if name else "")
    return found


def _select(modules: dict[str, nn.Module], targets: Targets) -> dict[str, bool]:
    """The names that the targets mean; True where one was meant explicitly, by name or predicate."""
    if isinstance(targets, str | type) or callable(targets):
        targets = [targets]
    if not isinstance(targets, Iterable):
        raise ValueError(f"targets must be names, globs, types or predicates, got {targets!r}")
    chosen: dict[str, bool] = {}
    for target in targets:
        if isinstance(target, str):
            is_glob = any(mark in target for mark in "*?[")
            matched = [name for name in modules if (fnmatchcase(name, target) if is_glob and name else name == target)]
            explicit = not is_glob
        elif isinstance(target, type):
            matched, explicit = [name for name, module in modules.items() if isinstance(module, target)], False
        elif callable(target):
            matched, explicit = [name for name, module in modules.items() if target(name, module)], True
        else:
            raise ValueError(f"targets must be names, globs, types or predicates, got {target!r}")
        if not matched:
            shown = target.__name__ if isinstance(target, type) else repr(target)
            known = ", ".join(name for name in list(modules)[:12] if name)
            raise ValueError(f"targets matched no layer: {shown}; the model has {known or 'no named layers'}")
        for name in matched:
            chosen[name] = explicit or chosen.get(name, False)
    return chosen


def _refusal(modules: dict[str, nn.Module], name: str, config: Config) -> str | None:
    """Why this layer cannot be recoded, or None."""
    module = modules[name]
    parent = modules.get(name.rpartition(".")[0])
    if isinstance(parent, nn.MultiheadAttention):
        return "nn.MultiheadAttention multiplies by its out_proj.weight itself and would never call a coded layer"
    if (type(module), type(config)) not in _registry:
        kinds = sorted(plain.__name__ for plain, kind in _registry if kind is type(config))
        known = (
            f"{type(config).__name__} covers {', '.join(kinds)}" if kinds else f"no kind takes {type(config).__name__}"
        )
        return f"{type(module).__name__} is of an unknown kind: {known}; see nc.register"
    if module._forward_hooks or module._forward_pre_hooks or module._backward_hooks:
        return "it has hooks, which would be lost: remove them first and register them anew"
    return None


def plan(model: nn.Module, targets: Targets, config: Config, *, control_dim: int | None = None) -> Plan:
    """A dry run of `recode`: which layers would be replaced, and the parameters before and after."""
    if not isinstance(config, Config):
        raise ValueError(f"config must be a ProgramConfig or another neurocoder config, got {config!r}")
    modules = _modules_by_name(model)
    chosen = _select(modules, targets)
    skipped: list[tuple[str, str]] = []
    names_of: dict[int, list[str]] = {}
    for name, explicit in chosen.items():
        if isinstance(modules[name], CodedLayer):
            raise ValueError(f"{name or 'the model'!r} is already coded: nc.restore it first")
        reason = _refusal(modules, name, config)
        if reason is not None and explicit:
            raise ValueError(f"cannot recode {name or 'the model itself'!r}: {reason}")
        if reason is not None:
            if any(True for _ in modules[name].parameters(recurse=False)):
                skipped.append((name, reason))
            continue
        if name == "":
            raise ValueError(
                f"cannot recode the model itself, a {type(model).__name__}, in place: "
                f"put it into a container, or use nc.{_registry[type(model), type(config)].__name__}.from_plain"
            )
        names_of.setdefault(id(modules[name]), [])
    if not names_of:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in skipped)
        raise ValueError(f"targets matched no layer that can be recoded. {reasons}".rstrip())
    for name, module in modules.items():
        if id(module) in names_of:
            names_of[id(module)].append(name)

    replacements = []
    for names in names_of.values():
        plain = modules[names[0]]
        coded_type = _registry[type(plain), type(config)]
        try:
            twin = coded_type.like(plain, config, control_dim=control_dim, device="meta")
        except ValueError as error:
            raise ValueError(f"cannot recode {names[0]!r}: {error}") from None
        before, after = (sum(p.numel() for p in m.parameters()) for m in (plain, twin))
        replacements.append(Replacement(tuple(names), plain, coded_type, before, after))
    total = sum(p.numel() for p in model.parameters())
    replaced = {id(item.plain) for item in replacements}
    kept = {
        id(p): p.numel()
        for m in modules.values()
        if id(m) not in replaced
        for p in m._parameters.values()
        if p is not None
    }
    for module in modules.values():
        if isinstance(module, CodedLayer):
            kept |= {id(p): p.numel() for p in module.parameters()}
    total_after = sum(kept.values()) + sum(item.after for item in replacements)
    return Plan(tuple(replacements), tuple(skipped), total, total_after)


def recode(model: nn.Module, targets: Targets, config: Config, *, control_dim: int | None = None) -> nn.Module:
    """Replace layers of a model by coded ones, in place, and return the model.

    Args:
        model: any module that contains the layers.
        targets: names, globs over full names, types, predicates `(name, module) -> bool`, or several of these. A glob or
            type passes over layers that cannot be recoded (`plan` lists them); a name or predicate makes them an error.
        config: what to put there: `ProgramConfig`, `MixtureConfig`, `StoredProgramConfig`, `HyperConfig` or one's own.
        control_dim: width of the tensor that steers these layers, see `control`; None: their own input does.

    With a residual a layer starts from the old weight, which it keeps exactly (to rounding). A module used twice is
    replaced once, under all its names; a weight tied to another module's is copied, and the tie ends.
    """
    replacements = plan(model, targets, config, control_dim=control_dim).replacements
    swap(
        model,
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


def _set_nested_tensors(encoder: nn.TransformerEncoder) -> None:
    """An encoder hands nested tensors to all of its layers if the first could take them; coded ones cannot."""
    if coded_layers(encoder):
        if getattr(encoder, "use_nested_tensor", False):
            encoder.use_nested_tensor = False
            encoder.nested_tensor_before_recode = True
    elif getattr(encoder, "nested_tensor_before_recode", False):
        encoder.use_nested_tensor = True
        del encoder.nested_tensor_before_recode


def restore(model: nn.Module, data: Any = None) -> nn.Module:
    """Replace every coded layer by a plain one, in place, and return the model.

    A layer whose program is still the same for every input, as `recode` leaves it, gets that weight: the old one. Any
    other gets the mean of its `W_t` over `data`, the model's input (a tuple: its arguments).
    """
    if isinstance(model, CodedLayer):
        raise ValueError("cannot restore the model itself in place: it is a coded layer; put it into a container")
    modules = _modules_by_name(model)
    layers: dict[int, list[str]] = {}
    for name, module in modules.items():
        if isinstance(module, CodedLayer):
            layers.setdefault(id(module), []).append(name)
    if not layers:
        raise ValueError("restore needs a model with coded layers, found none")
    coded = {tuple(names): modules[names[0]] for names in layers.values()}
    weights = {names: layer.constant_weight() for names, layer in coded.items() if isinstance(layer, CodedLayer)}
    varying = {names: layer for names, layer in coded.items() if weights[names] is None}
    if varying and data is None:
        raise ValueError(
            f"{', '.join(names[0] for names in varying)}: the program differs from input to input; "
            "give inputs to average over: nc.restore(model, data=x)"
        )
    if varying:
        weights |= _mean_weights(model, varying, data)
    restored: dict[tuple[str, ...], nn.Module] = {}
    for names, layer in coded.items():
        assert isinstance(layer, CodedLayer)
        restored[names] = _plain_with(layer, weights[names])
    swap(model, restored)
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


def _mean_weights(
    model: nn.Module, layers: dict[tuple[str, ...], nn.Module], data: Any
) -> dict[tuple[str, ...], Tensor | None]:
    """The mean weight of each layer over the calls that one pass of the data makes."""
    sums: dict[tuple[str, ...], Tensor] = {}
    counts: dict[tuple[str, ...], int] = dict.fromkeys(layers, 0)

    def collector(names: tuple[str, ...]) -> Callable[..., None]:
        def collect(layer: CodedLayer, args: tuple[Any, ...], kwargs: dict[str, Any], _: Any) -> None:
            mean, count = layer.mean_weight(*args, **kwargs)
            if count:
                sums[names] = sums.get(names, torch.zeros_like(mean)) + mean * count
                counts[names] += count

        return collect

    handles = [layer.register_forward_hook(collector(names), with_kwargs=True) for names, layer in layers.items()]
    modes = [(module, module.training) for module in model.modules()]
    try:
        model.eval()
        with torch.no_grad():
            model(*data) if isinstance(data, tuple) else model(data)
    finally:
        for handle in handles:
            handle.remove()
        for module, mode in modes:
            module.training = mode
    idle = [names[0] for names, count in counts.items() if count == 0]
    if idle:
        raise ValueError(f"data reached no input of {', '.join(idle)}: give data that passes through every coded layer")
    return {names: sums[names] / counts[names] for names in layers}
