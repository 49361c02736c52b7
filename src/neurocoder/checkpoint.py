"""Saving models and loading them; `checkpoint_files` has what is in the files."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from .checkpoint_files import Checkpoint, CheckpointError, damage_of, find, read, write
from .distributed import (
    gathered,
    is_first_process,
    is_sharded,
    on_first_process,
    sharded_like,
    unwrapped,
    wrapper_conflict,
)
from .layer.base import CodedLayer
from .layer.checks import require_module
from .layer.config import Config, kind_of
from .ops.compiled import uncompiled
from .surgery.recode import swap, warn_of_optimisers
from .surgery.registry import LayerSpec, configs_named, kind_for
from .surgery.targets import Model, modules_by_name


class SavedLayer(NamedTuple):
    """How a coded layer was built."""

    config: Config
    control_dim: int | None


def save(model: nn.Module, path: str | os.PathLike[str]) -> None:
    """Save a model, with or without coded layers, as a folder. An existing checkpoint is replaced atomically.

    Other files in the folder are left alone, so it may be one that `save_pretrained` wrote. A checkpoint in format 1
    (`model.safetensors`, `config.json`) stays too, but is no longer read: it may be deleted.

    Names are those of the inner model, also if the model is wrapped by `torch.compile`, DDP, DataParallel or PEFT. A
    model under `fully_shard` is gathered: every process calls this, the first one writes, and the others wait.

    A process that is killed here leaves the earlier checkpoint and a folder `.saving-HOST-*`, which the next save from
    this host removes (if no other process is saving there, and the file system has locks).

    Example:
        >>> model = nc.recode(nn.Sequential(nn.Linear(8, 4)), "0", nc.ProgramConfig())
        >>> nc.save(model, "checkpoint")
        >>> sorted(path.name for path in pathlib.Path("checkpoint").iterdir())
        ['neurocoder.json', 'neurocoder.safetensors']
    """
    require_module("model", model)
    model = unwrapped(model)
    state = model.state_dict(keep_vars=True)
    sharded = any(is_sharded(tensor) for tensor in state.values())
    tensors, aliases = _distinct_tensors(state, keep=not sharded or is_first_process())
    config = {
        "layers": {
            name: {"config": module.config.to_dict(), "control_dim": module.control_dim}
            for name, module in modules_by_name(model).items()
            if isinstance(module, CodedLayer)
        },
        "frozen": [name for name, one in state.items() if isinstance(one, nn.Parameter) and not one.requires_grad],
        "aliases": aliases,
    }
    if sharded:
        on_first_process(lambda: write(Path(path), tensors, config), failed=CheckpointError)
    else:
        write(Path(path), tensors, config)


def _distinct_tensors(state: dict[str, Any], keep: bool) -> tuple[dict[str, Tensor], dict[str, str]]:
    """A copy of each tensor of a model's state, on the CPU, and for every alias the name its tensor is stored under.

    Sharded tensors are gathered, and dropped again unless `keep` is set.
    """
    tensors: dict[str, Tensor] = {}
    aliases: dict[str, str] = {}
    first: dict[int, str] = {}
    for name, tensor in state.items():
        if not isinstance(tensor, Tensor):
            raise CheckpointError(f"{name} is not a tensor but {type(tensor).__name__}, which safetensors cannot hold")
        if tensor.is_meta:
            raise CheckpointError(f"{name} is on the meta device and has no values to save")
        if tensor.layout is not torch.strided or tensor.is_quantized:
            raise CheckpointError(f"{name} is sparse or quantized, which safetensors cannot hold: make it dense first")
        if tensor.dtype in (torch.complex32, torch.complex128) or name == "__metadata__":
            raise CheckpointError(f"safetensors cannot hold {name} of {tensor.dtype}: leave it out of the model")
        if id(tensor) in first:
            aliases[name] = first[id(tensor)]
            continue
        first[id(tensor)] = name
        value = gathered(tensor) if is_sharded(tensor) else tensor.detach()
        if keep:
            tensors[name] = value.to("cpu", copy=True, memory_format=torch.contiguous_format)
    return tensors, aliases


def load(path: str | os.PathLike[str], model: Model) -> Model:
    """Load a checkpoint into a model, in place, and return it.

    If the checkpoint has a coded layer where the model has a plain one, that layer is recoded as it was saved, and all
    parameters that were frozen then are frozen again: create the optimiser after this call. A file that is damaged, by
    a single bit even, foreign, newer than this version or from another architecture raises an error, and nothing
    changes. A checkpoint of an earlier version has no digests, so that damage may go unnoticed; a warning says so.

    Under `fully_shard` each process reads the file and keeps its shard; layers to recode must not be sharded yet.

    Example:
        >>> model = nc.recode(nn.Sequential(nn.Linear(8, 4)), "0", nc.ProgramConfig())
        >>> nc.save(model, "checkpoint")
        >>> again = nc.load("checkpoint", nn.Sequential(nn.Linear(8, 4)))  # recoded as it was saved
        >>> x = torch.randn(32, 8)
        >>> torch.equal(again(x), model(x))
        True
    """
    require_module("model", model)
    saved = read(find(Path(path)))
    version = saved.config["format"]
    if not saved.has_digests:
        warnings.warn(
            f"{saved.file} has no digests, so damage may go unnoticed: an earlier version wrote it (format {version}); "
            "save it again",
            UserWarning,
            stacklevel=2,
        )
    with damage_of(saved.file):
        frozen = set(saved.config.get("frozen", ()))
    inner = unwrapped(model) if saved.has_digests else uncompiled(model)
    layers, replaced, resized = _recoded_as_saved(inner, saved, uncompiled(model))
    warn_of_optimisers(inner, layers, "nc.load")
    swap(inner, layers)
    try:
        state = inner.state_dict(keep_vars=True)
        tensors = _renamed(saved.tensors, state) if version == 1 else saved.tensors
        _check_fit(inner, state, tensors, saved.file)
        inner.load_state_dict(
            {name: sharded_like(tensors[name], to) if is_sharded(to) else tensors[name] for name, to in state.items()}
        )
    except BaseException as error:
        swap(inner, replaced)
        if isinstance(error, RuntimeError):
            raise CheckpointError(str(error)) from error
        raise
    for layer, config in resized.items():
        layer.resume(config)
    for name, parameter in state.items() if layers else ():
        if name in frozen:
            parameter.requires_grad_(False)
    return model


def _renamed(tensors: dict[str, Tensor], state: dict[str, Any]) -> dict[str, Tensor]:
    """Format 1 tensors under current names: a coded layer's `memory.key_u.weight` is now `memory.key_u_weight`."""
    renamed = {}
    for name, tensor in tensors.items():
        today = "_".join(name.rsplit(".", 1))
        renamed[today if name not in state and today in state else name] = tensor
    return renamed


def _saved_layer(name: str, entry: dict[str, Any]) -> SavedLayer:
    kind = entry["config"]["kind"]
    candidates = configs_named(kind)
    if len(candidates) != 1:
        several = f"may be {' or '.join(map(kind_of, candidates))}: register only the one that is meant"
        problem = several if candidates else "is not registered: see nc.register"
        raise CheckpointError(f"layer {name!r} was saved with {kind}, which {problem}")
    return SavedLayer(candidates[0].from_dict(entry["config"]), entry["control_dim"])


Layers = dict[tuple[str, ...], nn.Module]


def _recoded_as_saved(
    model: nn.Module, saved: Checkpoint, wrapper: nn.Module
) -> tuple[Layers, Layers, dict[CodedLayer, Config]]:
    """Coded layers, still without values, for the plain layers that were saved as coded; what they replace; and the new
    configurations of coded layers that have another size."""
    resized: dict[CodedLayer, Config] = {}
    with damage_of(saved.file):
        entries = {name: _saved_layer(name, entry) for name, entry in saved.config["layers"].items()}
    modules = modules_by_name(model)
    if lost := [name for name in entries if name not in modules]:
        hint = _wrapper_hint(lost)
        raise CheckpointError(f"the checkpoint has a coded layer {lost[0]!r}, the model has no such layer{hint}")
    names_of: dict[nn.Module, list[str]] = {}
    for name, module in modules.items():
        entry = entries.get(name)
        if isinstance(module, CodedLayer):
            found = SavedLayer(module.config, module.control_dim)
            if entry is None or module.control_dim != entry.control_dim or not module.takes(entry.config):
                there = f"with {found} in the model and with {entry} in" if entry else "in the model, but not in"
                raise CheckpointError(
                    f"layer {name!r} is coded {there} the checkpoint: give a plain model, which is recoded as it was "
                    "saved, or a layer that was built so"
                )
            if entry.config != module.config:
                resized[module] = entry.config
        elif entry is not None:
            if not name:
                raise CheckpointError(
                    "the checkpoint is one coded layer, which cannot replace the model itself: give a coded layer"
                )
            if reason := wrapper_conflict(modules, name, "load") or wrapper_conflict({"": wrapper}, "", "load"):
                raise CheckpointError(f"layer {name!r} cannot be recoded as it was saved: {reason}")
            names_of.setdefault(module, []).append(name)
    replaced = {tuple(names): plain for plain, names in names_of.items()}
    twins = {names: _built(LayerSpec.like, plain, names[0], entries[names[0]]) for names, plain in replaced.items()}
    needed = sum(tensor.numel() for twin in twins.values() for tensor in twin.state_dict().values())
    if needed > sum(tensor.numel() for tensor in saved.tensors.values()):
        raise CheckpointError(
            f"{saved.file} is of another architecture, or damaged: its coded layers would have more numbers in this "
            "model than the file has"
        )
    layers = {names: _built(LayerSpec.empty, plain, names[0], entries[names[0]]) for names, plain in replaced.items()}
    return layers, replaced, resized


def _built(build: Callable[..., nn.Module], plain: nn.Module, name: str, entry: SavedLayer) -> nn.Module:
    """A coded layer to replace `plain`, by a method of its kind."""
    kind = kind_for(plain, entry.config)
    if kind is None:
        asked = type(entry.config).__name__
        raise CheckpointError(f"layer {name!r} is a {type(plain).__name__} in the model, which {asked} does not cover")
    try:
        return build(kind, plain, entry.config, control_dim=entry.control_dim)
    except (ValueError, TypeError, RuntimeError) as error:
        raise CheckpointError(f"layer {name!r} cannot be recoded as it was saved: {error}") from error


def _wrapper_hint(names: Iterable[str]) -> str:
    """What to do if these names, which one side lacks, come from a wrapper."""
    parts = {part for name in names for part in name.split(".")}
    if "module" in parts:
        return ": if it was saved inside a wrapper, such as AveragedModel, load it into one, or save wrapper.module"
    if parts & {"base_layer", "lora_A"}:
        return ": wrap the model with PEFT as the saved one was, or save it after merge_and_unload()"
    return ""


def _check_fit(model: nn.Module, state: dict[str, Any], tensors: dict[str, Tensor], file: Path) -> None:
    """Require the same names, shapes and ties in the model and in the file."""
    layers = ((name, module) for name, module in modules_by_name(model).items() if isinstance(module, CodedLayer))
    resizable = {f"{name}.{own}".removeprefix(".") for name, layer in layers for own in layer.resizable}
    missing, unknown = sorted(set(state) - set(tensors)), sorted(set(tensors) - set(state))
    if missing or unknown:
        parts = [f"lacks {', '.join(missing[:3])}"] if missing else []
        parts += [f"has {', '.join(unknown[:3])}, which the model does not have"] if unknown else []
        hint = _wrapper_hint(missing + unknown)
        raise CheckpointError(f"{file} is of another architecture: it {' and '.join(parts)}{hint}")
    first: dict[int, str] = {}
    for name, tensor in state.items():
        stored = tensors[name]
        if tensor.is_meta:
            raise CheckpointError(f"{name} is on the meta device: call model.to_empty(device=...) before nc.load")
        # What grows has rows; what an exact layer learned is checked by the layer.
        fits = name in resizable and (".memory." not in f".{name}" or tensor.shape[1:] == stored.shape[1:])
        if tensor.shape != stored.shape and not fits:
            raise CheckpointError(
                f"{file} is of another architecture: {name} is {tuple(stored.shape)} there "
                f"and {tuple(tensor.shape)} in the model"
            )
        twin = first.setdefault(id(tensor), name)
        if stored is not tensors[twin] and not torch.equal(stored, tensors[twin]):
            raise CheckpointError(
                f"{file} is of another architecture: {twin} and {name} are one tensor in the model "
                "and have different values there"
            )
