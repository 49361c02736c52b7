"""Surgery on existing models: `recode` and `restore`. Everything is checked before anything changes."""

from __future__ import annotations

import gc
import inspect
import warnings
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from ..distributed import spread
from ..layer.base import CodedLayer, coded_layers
from ..layer.checks import require_module
from ..layer.config import Config
from ..ops.compiled import run_uncompiled, uncompiled
from .plan import has_hooks, plan
from .registry import as_template
from .targets import Model, Targets, described, modules_by_name, overview, select, type_name


def recode(
    model: Model,
    targets: Targets | Mapping[Any, Config],
    config: Config | None = None,
    *,
    control_dim: int | None = None,
) -> Model:
    """Replace layers of a model with coded ones, in place, and return the model.

    Args:
        model: any module that contains the layers.
        targets: full names; suffixes of names (`"gate_proj"` means every layer whose name ends in `.gate_proj`); globs
            over full names; types; predicates `(name, module) -> bool`; or several of these. A suffix, glob or type
            skips layers that cannot be recoded (`plan` lists them); a full name or predicate raises an error.
            Or a dictionary `{target: config}`; two targets that give one layer different configs are an error.
        config: the new layers: `ProgramConfig`, `MixtureConfig`, `StoredProgramConfig`, `HyperConfig` or your own.
            None if `targets` is a dictionary.
        control_dim: width of the tensor that steers these layers, see `control`; None: their own input does.

    With a residual, a layer starts from the old weight, exactly (to rounding). A module used twice is replaced once,
    under all its names.

    A layer whose weight or bias is tied to another module's, such as the `lm_head` of many language models, is recoded
    only if `targets` has its full name. Its weight is then copied and the tie ends. A coded layer has no single weight
    that could be tied again: with transformers, set `model.config.tie_word_embeddings = False` afterwards, and call
    `resize_token_embeddings` before, or after `restore`.

    Create the optimiser after this call: an optimiser that holds parameters of a replaced layer would not train the new
    ones; a warning names it.

    Example:
        >>> model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4))
        >>> x = torch.randn(32, 8)
        >>> before = model(x)
        >>> model = nc.recode(model, "2", nc.ProgramConfig(slots=10))
        >>> torch.allclose(model(x), before, atol=1e-4)  # it goes on from the old weight
        True
    """
    replacements = plan(model, targets, config, control_dim=control_dim).replacements
    inner = uncompiled(model)
    warn_of_optimisers(inner, [item.names for item in replacements], "nc.recode")
    swap(
        inner,
        {item.names: item.kind.from_plain(item.plain, item.config, control_dim=control_dim) for item in replacements},
    )
    return model


def swap(model: nn.Module, layers: Mapping[tuple[str, ...], nn.Module]) -> None:
    """Put each module into the model under its names."""
    for names, layer in layers.items():
        for name in names:
            parent, _, child = name.rpartition(".")
            setattr(model.get_submodule(parent), child, layer)
        if isinstance(layer, CodedLayer):
            layer.name = names[0]
    for encoder in model.modules():
        if isinstance(encoder, nn.TransformerEncoder):
            _set_nested_tensors(encoder)


def _set_nested_tensors(encoder: Any) -> None:
    """An encoder passes nested tensors to all its layers if the first could take them; coded layers cannot."""
    if coded_layers(encoder):
        if getattr(encoder, "use_nested_tensor", False):
            encoder.use_nested_tensor = False
            encoder.nested_tensor_before_recode = True
    elif getattr(encoder, "nested_tensor_before_recode", False):
        encoder.use_nested_tensor = True
        del encoder.nested_tensor_before_recode


def warn_of_optimisers(model: nn.Module, replaced: Iterable[tuple[str, ...]], call: str) -> None:
    """Warn if an optimiser holds parameters that are about to leave the model; points at the caller's caller."""
    prefixes = tuple(f"{name}." for names in replaced for name in names)
    parameters = list(model.named_parameters(remove_duplicate=False))
    kept = {id(parameter) for name, parameter in parameters if not name.startswith(prefixes)}
    leaving = {id(parameter): name for name, parameter in reversed(parameters) if id(parameter) not in kept}
    if not leaving or not _holders(leaving):
        return
    gc.collect()  # an unreachable optimiser may survive in a reference cycle
    held = [f"{optimiser} holds {overview(names, 3)}" for optimiser, names in _holders(leaving)]
    if held:
        warnings.warn(
            f"{call} replaces parameters that an optimiser holds, which would not train the new ones: "
            f"{'; '.join(held)}. Make the optimiser after {call}",
            UserWarning,
            stacklevel=3,
        )


def _holders(parameters: dict[int, str]) -> list[tuple[str, list[str]]]:
    """The live optimisers that hold some of these parameters, by class name, and which ones they hold."""
    found = []
    for thing in gc.get_objects():  # 0.1 s with transformers loaded
        if issubclass(type(thing), Optimizer):
            try:
                held = [parameters.get(id(one)) for group in thing.param_groups for one in group["params"]]
            except Exception:  # a half-built optimiser, or one with other kinds of groups
                continue
            names = [name for name in held if name is not None]
            if names:
                found.append((type(thing).__name__, names))
    return found


def restore(model: Model, targets: Targets | None = None, *, data: Any = None) -> Model:
    """Replace coded layers with plain ones, in place, and return the model.

    A layer whose program is still the same for every input, as `recode` leaves it, gets its old weight back. Any other
    gets the mean of its `W_t` over `data`, which passes through the model once, in eval mode.

    Args:
        model: any module that contains coded layers.
        targets: which of them, as in `recode`; None: all. A suffix, glob or type skips other modules.
        data: the model's input: a tensor, a tuple of arguments or a dictionary of keyword arguments; or a loader, which
            is an iterable of these (lists count as tuples). The mean is over all inputs of all batches.

    Example:
        >>> model = nc.recode(nn.Sequential(nn.Linear(8, 4)), "0", nc.ProgramConfig())
        >>> nc.restore(model, data=torch.randn(32, 8))
        Sequential(
          (0): Linear(in_features=8, out_features=4, bias=True)
        )
    """
    require_module("model", model)
    inner = uncompiled(model)
    if isinstance(inner, CodedLayer):
        raise ValueError("cannot restore the model itself in place: it is a coded layer; put it into a container")
    _require_data(data)
    modules = modules_by_name(inner)
    names_of = _coded(modules, targets)
    for layer, names in names_of.items():
        reason = spread(modules, names[0], "restore")
        if reason is None and has_hooks(layer):
            reason = "it has hooks, which would be lost: remove them first"
        if reason:
            raise ValueError(f"cannot restore {names[0]!r}: {reason}")
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


def _coded(modules: dict[str, nn.Module], targets: Targets | None) -> dict[CodedLayer, list[str]]:
    """The coded layers that the targets match, each with all of its names."""
    names_of: dict[CodedLayer, list[str]] = {}
    for name, module in modules.items():
        if isinstance(module, CodedLayer):
            names_of.setdefault(module, []).append(name)
    if not names_of:
        raise ValueError("model must have coded layers to restore, found none")
    if targets is None:
        return names_of
    known = f"the coded layers are {overview(names[0] for names in names_of.values())}"
    for one in targets if isinstance(targets, tuple | list) else [targets]:
        if isinstance(one, Tensor | Mapping | DataLoader):
            raise ValueError(
                f"targets must be names, suffixes, globs, types or predicates, got {described(one)}: "
                "for data write nc.restore(model, data=...)"
            )
    matched = select(modules, targets)
    for name, matches in matched.items():
        if any(match.explicit for match in matches) and not isinstance(modules[name], CodedLayer):
            shown, kind = (repr(name) if name else "the model itself"), type_name(type(modules[name]))
            raise ValueError(f"cannot restore {shown}: {kind} is not a coded layer; {known}")
    meant = {layer: names for layer, names in names_of.items() if not matched.keys().isdisjoint(names)}
    if not meant:
        raise ValueError(f"targets matched no coded layer: {described(targets)}; {known}")
    return meant


def _plain_with(layer: CodedLayer, weight: Tensor | None) -> nn.Module:
    """A plain layer with this weight and the coded layer's bias, mode and `requires_grad`."""
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
    return as_template(layer, plain)


def _mean_weights(model: nn.Module, layers: dict[CodedLayer, str], data: Any) -> dict[CodedLayer, Tensor | None]:
    """The mean weight of each layer over all its calls in one pass through the data."""
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
            for args, kwargs in _calls(data):
                _require_fit(model, args, kwargs)
                model(*args, **kwargs)
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


_DATA = "a tensor, a tuple of arguments, a dictionary of keyword arguments, or an iterable of these"


def _require_data(data: Any) -> None:
    """Require what `_calls` takes."""
    if data is not None and (isinstance(data, str | bytes | nn.Module) or not isinstance(data, Iterable)):
        where = "; targets go before it: nc.restore(model, targets, data=x)" if isinstance(data, str) else ""
        raise ValueError(f"data must be {_DATA}, got {data!r}{where}")


def _calls(data: Any) -> Iterator[tuple[tuple[Any, ...], dict[str, Any]]]:
    """The arguments and keyword arguments for each call of the model."""
    for batch in [data] if isinstance(data, Tensor | tuple | Mapping) else data:
        if isinstance(batch, Tensor):
            yield (batch,), {}
        elif isinstance(batch, tuple | list):
            yield tuple(batch), {}
        elif isinstance(batch, Mapping):
            yield (), dict(batch)
        else:
            raise ValueError(f"data must be {_DATA}, got a batch that is {type(batch).__name__}: wrap it as (batch,)")


def _require_fit(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Require arguments that the model's forward accepts."""
    try:
        signature = inspect.signature(model.forward)
    except (TypeError, ValueError):
        return
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        raise ValueError(
            f"data must be what the model's forward takes: {error}. A tuple gives its arguments (several batches make "
            "a list), a dictionary its keyword arguments; of (input, label) pairs take the inputs: "
            "data=(x for x, _ in loader)"
        ) from error
