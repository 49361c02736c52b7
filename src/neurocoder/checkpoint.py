"""Checkpoints: a folder with `model.safetensors`, which counts and holds its own config, and a readable `config.json`.

The tensors and the config are one file, so a save is one atomic rename. Nothing is ever pickled.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from .base import CodedLayer
from .compiled import uncompiled
from .config import Config
from .surgery import coded_type_for, config_kinds, swap
from .targets import Model, modules_by_name, require_module
from .version import __version__

FORMAT = 1
"""Version of the layout; a larger one is refused."""
TENSORS, CONFIG = "model.safetensors", "config.json"
_KEY = "neurocoder"


class SavedLayer(NamedTuple):
    """How a coded layer was built."""

    config: Config
    control_dim: int | None


class CheckpointError(ValueError):
    """A checkpoint that cannot be written or read; nothing was changed."""


def save(model: nn.Module, path: str | os.PathLike[str]) -> None:
    """Save a model, coded layers or not, as a folder. An existing checkpoint is replaced in one step."""
    require_module("model", model)
    model = uncompiled(model)
    folder = Path(path)
    if folder.exists() and not folder.is_dir():
        raise CheckpointError(f"path must be a folder, but {folder} is a file")
    tensors, aliases = _distinct_tensors(model)
    layers = {
        name: {"config": module.config.to_dict(), "control_dim": module.control_dim}
        for name, module in modules_by_name(model).items()
        if isinstance(module, CodedLayer)
    }
    text = json.dumps({"format": FORMAT, "version": __version__, "layers": layers, "aliases": aliases}, indent=2)
    is_new = not folder.exists()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix=".saving-", dir=folder) as temporary:
            save_file(tensors, Path(temporary, TENSORS), {_KEY: text})
            Path(temporary, CONFIG).write_text(text + "\n")
            # safetensors makes its files private; give them the permissions of any new file.
            shutil.copymode(Path(temporary, CONFIG), Path(temporary, TENSORS))
            for name in (TENSORS, CONFIG):
                _flush(Path(temporary, name))
            _put(Path(temporary), folder)
    except (OSError, SafetensorError) as error:
        if is_new:
            with contextlib.suppress(OSError):
                folder.rmdir()
        raise CheckpointError(f"cannot write the checkpoint {folder}: {error}") from error


def _flush(file: Path) -> None:
    """Wait until the file is on disk, so that a rename never runs ahead of what it renames."""
    with file.open("rb+") as stream:
        os.fsync(stream.fileno())


def _put(temporary: Path, folder: Path) -> None:
    """Rename both files into place, last the tensors, which count; if that fails the earlier config comes back."""
    config = folder / CONFIG
    earlier = config.read_bytes() if config.exists() else None
    os.replace(temporary / CONFIG, config)
    try:
        os.replace(temporary / TENSORS, folder / TENSORS)
    except OSError:
        if earlier is None:
            config.unlink()
        else:
            config.write_bytes(earlier)
        raise


def _distinct_tensors(model: nn.Module) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The state of a model with every tensor once, and under which name the others are found."""
    tensors: dict[str, Tensor] = {}
    aliases: dict[str, str] = {}
    first: dict[int, str] = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        if not isinstance(tensor, Tensor):
            raise CheckpointError(f"{name} is not a tensor but {type(tensor).__name__}, which safetensors cannot hold")
        if tensor.is_meta:
            raise CheckpointError(f"{name} is on the meta device and has no values to save")
        if tensor.layout is not torch.strided or tensor.is_quantized:
            raise CheckpointError(f"{name} is sparse or quantized, which safetensors cannot hold: make it dense first")
        if id(tensor) in first:
            aliases[name] = first[id(tensor)]
        else:
            first[id(tensor)] = name
            tensors[name] = tensor.detach().clone(memory_format=torch.contiguous_format)
    return tensors, aliases


def load(path: str | os.PathLike[str], model: Model) -> Model:
    """Load a checkpoint into a model, in place, and return it.

    Where the checkpoint has a coded layer and the model a plain one, that layer is recoded as it was saved. A file that
    is truncated, foreign, newer than this version or made from another architecture is an error that changes nothing.
    """
    require_module("model", model)
    folder = Path(path)
    file = folder / TENSORS
    if folder.is_file():
        raise CheckpointError(f"path must be a folder that nc.save wrote, but {folder} is a file")
    if not file.is_file():
        raise CheckpointError(f"no checkpoint at {folder}, it has no {TENSORS}: give a folder that nc.save wrote")
    saved, tensors = _read(file)
    inner = uncompiled(model)
    layers, replaced = _recoded_as_saved(inner, saved)
    swap(inner, layers)
    try:
        _check_fit(inner, tensors, file)
        inner.load_state_dict(tensors)
    except BaseException as error:
        swap(inner, replaced)
        if isinstance(error, RuntimeError):
            raise CheckpointError(str(error)) from error
        raise
    return model


def _read(file: Path) -> tuple[dict[str, SavedLayer], dict[str, Tensor]]:
    """The coded layers and all tensors of a checkpoint."""
    try:
        with safe_open(file, framework="pt") as content:
            text = (content.metadata() or {}).get(_KEY)
            tensors = {name: content.get_tensor(name) for name in content.keys()}  # noqa: SIM118 - not a mapping
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{file} is damaged or not a safetensors file: {error}; save it anew") from error
    if text is None:
        raise CheckpointError(
            f"{file} is not a neurocoder checkpoint, it carries no neurocoder config: "
            "read it with safetensors.torch.load_file"
        )
    try:
        config = json.loads(text)
        if config["format"] > FORMAT:
            raise CheckpointError(
                f"{file} was written by neurocoder {config['version']} in format {config['format']}; this is "
                f"{__version__}, which reads up to format {FORMAT}: upgrade neurocoder"
            )
        layers = {name: _saved_layer(name, entry) for name, entry in config["layers"].items()}
        tensors |= {alias: tensors[name] for alias, name in config["aliases"].items()}
    except CheckpointError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise CheckpointError(f"{file} carries a damaged neurocoder config, save it anew: {error!r}") from error
    return layers, tensors


def _saved_layer(name: str, entry: dict[str, Any]) -> SavedLayer:
    kinds = config_kinds()
    kind = entry["config"]["kind"]
    if kind not in kinds:
        raise CheckpointError(f"layer {name!r} was saved with {kind}, which is not registered: see nc.register")
    return SavedLayer(kinds[kind].from_dict(entry["config"]), entry["control_dim"])


Layers = dict[tuple[str, ...], nn.Module]


def _recoded_as_saved(model: nn.Module, saved: dict[str, SavedLayer]) -> tuple[Layers, Layers]:
    """Coded layers, still without values, for the plain layers that were coded when saved; and what they replace."""
    modules = modules_by_name(model)
    built: dict[nn.Module, CodedLayer] = {}
    layers: Layers = {}
    for name, entry in saved.items():
        module = modules.get(name)
        if module is None:
            raise CheckpointError(f"the checkpoint has a coded layer {name!r}, the model has no such layer")
        if isinstance(module, CodedLayer):
            found = SavedLayer(module.config, module.control_dim)
            if found != entry:
                raise CheckpointError(
                    f"layer {name!r} is coded with {found} in the model and with {entry} in the checkpoint: "
                    "give a plain model, which is recoded as it was saved"
                )
            continue
        if not name:
            raise CheckpointError(
                "the checkpoint holds a single coded layer, which cannot replace the model itself: give a coded layer"
            )
        if module not in built:
            built[module] = _empty_like(name, module, entry)
        layers[name,] = built[module]
    extra = [name for name, module in modules.items() if isinstance(module, CodedLayer) and name not in saved]
    if extra:
        raise CheckpointError(
            f"layer {extra[0]!r} is coded in the model, but not in the checkpoint: give a plain model, which is "
            "recoded as it was saved"
        )
    return layers, {names: modules[names[0]] for names in layers}


def _empty_like(name: str, plain: nn.Module, entry: SavedLayer) -> CodedLayer:
    """A coded layer for `plain` whose values are yet to be loaded."""
    coded_type = coded_type_for(plain, entry.config)
    if coded_type is None:
        kind = type(entry.config).__name__
        raise CheckpointError(f"layer {name!r} is a {type(plain).__name__} in the model, which {kind} does not cover")
    try:
        layer = coded_type.like(plain, entry.config, control_dim=entry.control_dim, device="meta")
    except ValueError as error:
        raise CheckpointError(f"layer {name!r} cannot be recoded as it was saved: {error}") from error
    layer.to_empty(device=next(plain.parameters()).device)
    layer.adopt(plain)
    return layer


def _check_fit(model: nn.Module, tensors: dict[str, Tensor], file: Path) -> None:
    """Require the same names, shapes and ties in the model and in the file."""
    state = model.state_dict(keep_vars=True)
    missing, unknown = sorted(set(state) - set(tensors)), sorted(set(tensors) - set(state))
    if missing or unknown:
        parts = [f"lacks {', '.join(missing[:3])}"] if missing else []
        parts += [f"has {', '.join(unknown[:3])}, which the model has not"] if unknown else []
        raise CheckpointError(f"{file} is of another architecture: it {' and '.join(parts)}")
    first: dict[int, str] = {}
    for name, tensor in state.items():
        stored = tensors[name]
        if tensor.is_meta:
            raise CheckpointError(f"{name} is on the meta device: call model.to_empty(device=...) before nc.load")
        if tensor.shape != stored.shape:
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
