"""Plain layers to coded ones: `recode`. Everything is checked before anything changes."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Iterable, Mapping
from typing import Any

from torch import nn

from ..layer.base import CodedLayer, coded_layers
from ..layer.config import Config
from ..ops.compiled import uncompiled
from ..ops.optimisers import held, live_optimisers
from .plan import plan
from .targets import Model, Targets, overview, prefixes


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
    layers = {i.names: i.kind.from_plain(i.plain, i.config, control_dim=control_dim) for i in replacements}
    swap(inner, layers)
    for advice in dict.fromkeys(layer.advice() for layer in layers.values()):
        if advice is not None:
            warnings.warn(advice, UserWarning, stacklevel=2)
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
    inside = prefixes(replaced)
    parameters = list(model.named_parameters(remove_duplicate=False))
    kept = {id(parameter) for name, parameter in parameters if not name.startswith(inside)}
    leaving = {id(parameter): name for name, parameter in reversed(parameters) if id(parameter) not in kept}
    if not leaving or not _holders(leaving):
        return
    gc.collect()  # an unreachable optimiser may survive in a reference cycle
    holders = [f"{optimiser} holds {overview(names, 3)}" for optimiser, names in _holders(leaving)]
    if holders:
        warnings.warn(
            f"{call} replaces parameters that an optimiser holds, which would not train the new ones: "
            f"{'; '.join(holders)}. Make the optimiser after {call}",
            UserWarning,
            stacklevel=3,
        )


def _holders(parameters: dict[int, str]) -> list[tuple[str, list[str]]]:
    """The live optimisers that hold some of these parameters, by class name, and which ones they hold."""
    each = [(type(one).__name__, [parameters[key] for key in held(one, parameters)]) for one in live_optimisers()]
    return [(kind, names) for kind, names in each if names]
