"""Checkpoints: a folder with `neurocoder.safetensors`, which is authoritative, and `neurocoder.json`.

The first holds both tensors and config, so a save is one atomic rename; the second is for human readers. Files that
another library may own are never written, and nothing is ever pickled.
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

from .distributed import gathered, is_first_process, is_sharded, on_first_process, sharded_like, wrapper_conflict
from .layer.base import CodedLayer
from .layer.checks import require_module
from .layer.config import Config, kind_of
from .ops.compiled import uncompiled
from .surgery.recode import swap, warn_of_optimisers
from .surgery.registry import configs_named, kind_for
from .surgery.targets import Model, modules_by_name
from .version import __version__

FORMAT = 2
"""Version of the layout; newer ones are refused."""
TENSORS, CONFIG = "neurocoder.safetensors", "neurocoder.json"
TENSORS_1 = "model.safetensors"
"""The first one's name in format 1, which other libraries use too: such a file may not be ours."""
_KEY = "neurocoder"


class SavedLayer(NamedTuple):
    """How a coded layer was built."""

    config: Config
    control_dim: int | None


class CheckpointError(ValueError):
    """A checkpoint cannot be written or read; nothing was changed.

    Example:
        >>> try:
        ...     nc.load("nowhere", nn.Linear(8, 4))
        ... except nc.CheckpointError as error:
        ...     print("nothing changed")
        nothing changed
    """


def save(model: nn.Module, path: str | os.PathLike[str]) -> None:
    """Save a model, with or without coded layers, as a folder. An existing checkpoint is replaced atomically.

    Other files in the folder are left alone, so it may be one that `save_pretrained` wrote. A checkpoint in format 1
    (`model.safetensors`, `config.json`) stays too, but is no longer read: it may be deleted.

    A model under `fully_shard` is gathered: every process calls this, the first one writes, and the others wait.

    Example:
        >>> model = nc.recode(nn.Sequential(nn.Linear(8, 4)), "0", nc.ProgramConfig())
        >>> nc.save(model, "checkpoint")
        >>> sorted(path.name for path in pathlib.Path("checkpoint").iterdir())
        ['neurocoder.json', 'neurocoder.safetensors']
    """
    require_module("model", model)
    model = uncompiled(model)
    state = model.state_dict(keep_vars=True)
    sharded = any(is_sharded(tensor) for tensor in state.values())
    tensors, aliases = _distinct_tensors(state, keep=not sharded or is_first_process())
    layers = {
        name: {"config": module.config.to_dict(), "control_dim": module.control_dim}
        for name, module in modules_by_name(model).items()
        if isinstance(module, CodedLayer)
    }
    text = json.dumps({"format": FORMAT, "version": __version__, "layers": layers, "aliases": aliases}, indent=2)
    if sharded:
        on_first_process(lambda: _write(Path(path), tensors, text), failed=CheckpointError)
    else:
        _write(Path(path), tensors, text)


def _write(folder: Path, tensors: dict[str, Tensor], text: str) -> None:
    """Write a checkpoint next to the old one, then rename it into place."""
    if folder.exists() and not folder.is_dir():
        raise CheckpointError(f"path must be a folder, but {folder} is a file")
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
    """Wait until the file is on disk, so that the rename never precedes its contents."""
    with file.open("rb+") as stream:
        os.fsync(stream.fileno())


def _put(temporary: Path, folder: Path) -> None:
    """Rename both files into place, the authoritative tensors last; if that fails, the old config is put back."""
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


def _distinct_tensors(state: dict[str, Any], keep: bool) -> tuple[dict[str, Tensor], dict[str, str]]:
    """A model's state with each tensor once, and for every alias the name its tensor is stored under.

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
        if id(tensor) in first:
            aliases[name] = first[id(tensor)]
            continue
        first[id(tensor)] = name
        value = gathered(tensor) if is_sharded(tensor) else tensor.detach()
        if keep:
            tensors[name] = value.clone(memory_format=torch.contiguous_format)
    return tensors, aliases


def load(path: str | os.PathLike[str], model: Model) -> Model:
    """Load a checkpoint into a model, in place, and return it.

    If the checkpoint has a coded layer where the model has a plain one, that layer is recoded as it was saved: create
    the optimiser after this call. A file that is truncated, foreign, newer than this version or from another
    architecture raises an error, and nothing changes.

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
    file = _find(Path(path))
    saved, tensors, version = _read(file)
    inner = uncompiled(model)
    layers, replaced = _recoded_as_saved(inner, saved)
    warn_of_optimisers(inner, layers, "nc.load")
    swap(inner, layers)
    try:
        state = inner.state_dict(keep_vars=True)
        if version == 1:
            tensors = _renamed(tensors, state)
        _check_fit(inner, state, tensors, file)
        inner.load_state_dict(
            {name: sharded_like(tensors[name], to) if is_sharded(to) else tensors[name] for name, to in state.items()}
        )
    except BaseException as error:
        swap(inner, replaced)
        if isinstance(error, RuntimeError):
            raise CheckpointError(str(error)) from error
        raise
    return model


def _find(folder: Path) -> Path:
    """The file of a checkpoint; the format 1 file if there is no other."""
    if folder.is_file():
        raise CheckpointError(f"path must be a folder that nc.save wrote, but {folder} is a file")
    for name in (TENSORS, TENSORS_1):
        if (folder / name).is_file():
            return folder / name
    raise CheckpointError(f"no checkpoint at {folder}, it has no {TENSORS}: give a folder that nc.save wrote")


def _renamed(tensors: dict[str, Tensor], state: dict[str, Any]) -> dict[str, Tensor]:
    """Format 1 tensors under current names: a coded layer's `memory.key_u.weight` is now `memory.key_u_weight`."""
    renamed = {}
    for name, tensor in tensors.items():
        today = "_".join(name.rsplit(".", 1))
        renamed[today if name not in state and today in state else name] = tensor
    return renamed


def _read(file: Path) -> tuple[dict[str, SavedLayer], dict[str, Tensor], int]:
    """The coded layers, all tensors and the format of a checkpoint."""
    try:
        with safe_open(file, framework="pt") as content:
            text = (content.metadata() or {}).get(_KEY)
            tensors = {name: content.get_tensor(name) for name in content.keys()}  # noqa: SIM118 - not a mapping
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{file} is damaged or not a safetensors file: {error}; save it again") from error
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
        raise CheckpointError(f"{file} carries a damaged neurocoder config, save it again: {error!r}") from error
    return layers, tensors, config["format"]


def _saved_layer(name: str, entry: dict[str, Any]) -> SavedLayer:
    kind = entry["config"]["kind"]
    candidates = configs_named(kind)
    if len(candidates) != 1:
        several = f"may be {' or '.join(map(kind_of, candidates))}: register only the one that is meant"
        problem = several if candidates else "is not registered: see nc.register"
        raise CheckpointError(f"layer {name!r} was saved with {kind}, which {problem}")
    return SavedLayer(candidates[0].from_dict(entry["config"]), entry["control_dim"])


Layers = dict[tuple[str, ...], nn.Module]


def _recoded_as_saved(model: nn.Module, saved: dict[str, SavedLayer]) -> tuple[Layers, Layers]:
    """Coded layers, still without values, for the plain layers that were saved as coded; and what they replace."""
    modules = modules_by_name(model)
    names_of: dict[nn.Module, list[str]] = {}
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
        elif not name:
            raise CheckpointError(
                "the checkpoint holds a single coded layer, which cannot replace the model itself: give a coded layer"
            )
        else:
            reason = wrapper_conflict(modules, name, "load")
            if reason:
                raise CheckpointError(f"layer {name!r} cannot be recoded as it was saved: {reason}")
            names_of.setdefault(module, []).append(name)
    extra = [name for name, module in modules.items() if isinstance(module, CodedLayer) and name not in saved]
    if extra:
        raise CheckpointError(
            f"layer {extra[0]!r} is coded in the model, but not in the checkpoint: give a plain model, which is "
            "recoded as it was saved"
        )
    layers = {tuple(names): _empty_like(names[0], plain, saved[names[0]]) for plain, names in names_of.items()}
    return layers, {tuple(names): plain for plain, names in names_of.items()}


def _empty_like(name: str, plain: nn.Module, entry: SavedLayer) -> nn.Module:
    """A coded layer to replace `plain`, with values still to be loaded."""
    kind = kind_for(plain, entry.config)
    if kind is None:
        asked = type(entry.config).__name__
        raise CheckpointError(f"layer {name!r} is a {type(plain).__name__} in the model, which {asked} does not cover")
    try:
        return kind.empty(plain, entry.config, control_dim=entry.control_dim)
    except ValueError as error:
        raise CheckpointError(f"layer {name!r} cannot be recoded as it was saved: {error}") from error


def _check_fit(model: nn.Module, state: dict[str, Any], tensors: dict[str, Tensor], file: Path) -> None:
    """Require the same names, shapes and ties in the model and in the file."""
    layers = ((name, module) for name, module in modules_by_name(model).items() if isinstance(module, CodedLayer))
    resizable = {f"{name}.{own}".removeprefix(".") for name, layer in layers for own in layer.resizable}
    missing, unknown = sorted(set(state) - set(tensors)), sorted(set(tensors) - set(state))
    if missing or unknown:
        parts = [f"lacks {', '.join(missing[:3])}"] if missing else []
        parts += [f"has {', '.join(unknown[:3])}, which the model does not have"] if unknown else []
        raise CheckpointError(f"{file} is of another architecture: it {' and '.join(parts)}")
    first: dict[int, str] = {}
    for name, tensor in state.items():
        stored = tensors[name]
        if tensor.is_meta:
            raise CheckpointError(f"{name} is on the meta device: call model.to_empty(device=...) before nc.load")
        if tensor.shape != stored.shape and name not in resizable:
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
