"""Checkpoints: a folder with `model.safetensors`, which counts and holds its own config, and a readable `config.json`.

The tensors and the config are one file, so a save is one atomic rename. Nothing is ever pickled.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from .coded import CodedLayer
from .config import Config
from .surgery import _modules_by_name, _registry, config_kinds, swap
from .version import __version__

FORMAT = 1
"""Version of the layout; a larger one is refused."""
TENSORS, CONFIG = "model.safetensors", "config.json"
_KEY = "neurocoder"


class CheckpointError(ValueError):
    """A checkpoint that cannot be written or read; nothing was changed."""


def save(model: nn.Module, path: str | os.PathLike[str]) -> None:
    """Save a model, coded layers or not, as a folder. An existing checkpoint is replaced in one step."""
    folder = Path(path)
    if folder.exists() and not folder.is_dir():
        raise CheckpointError(f"path must be a folder, but {folder} is a file")
    tensors, aliases = _distinct_tensors(model)
    layers = {
        name: {"config": module.config.to_dict(), "control_dim": module.control_dim}
        for name, module in _modules_by_name(model).items()
        if isinstance(module, CodedLayer)
    }
    config = {"format": FORMAT, "version": __version__, "layers": layers, "aliases": aliases}
    text = json.dumps(config, indent=2)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _write(folder / TENSORS, lambda temporary: save_file(tensors, temporary, {_KEY: text}))
        _write(folder / CONFIG, lambda temporary: temporary.write_text(text + "\n"))
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"cannot write the checkpoint {folder}: {error}") from error


def _write(target: Path, write: Callable[[Path], Any]) -> None:
    """Write under a temporary name and rename; on failure nothing is left behind."""
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        write(temporary)
        os.replace(temporary, target)
    finally:
        with contextlib.suppress(FileNotFoundError):
            temporary.unlink()


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
        if id(tensor) in first:
            aliases[name] = first[id(tensor)]
        else:
            first[id(tensor)] = name
            tensors[name] = tensor.detach().clone(memory_format=torch.contiguous_format)
    return tensors, aliases


def load(path: str | os.PathLike[str], model: nn.Module) -> nn.Module:
    """Load a checkpoint into a model, in place, and return it.

    Where the checkpoint has a coded layer and the model a plain one, that layer is recoded as it was saved. A file that
    is truncated, foreign, newer than this version or made from another architecture is an error that changes nothing.
    """
    file = Path(path) / TENSORS
    if not file.is_file():
        raise CheckpointError(f"no checkpoint at {path}: there is no {TENSORS} in it")
    config, tensors = _read(file)
    layers, undo = _recoded_as_saved(model, config["layers"])
    swap(model, layers)
    try:
        _check_fit(model, tensors, file)
    except CheckpointError:
        swap(model, undo)
        raise
    model.load_state_dict(tensors)
    return model


def _read(file: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The config and all tensors of a checkpoint."""
    try:
        with safe_open(file, framework="pt") as content:
            text = (content.metadata() or {}).get(_KEY)
            if text is None:
                raise CheckpointError(f"{file} is not a neurocoder checkpoint: it carries no neurocoder config")
            config = json.loads(text)
            if config["format"] > FORMAT:
                raise CheckpointError(
                    f"{file} was written by neurocoder {config['version']} in format {config['format']}; this is "
                    f"{__version__}, which reads up to format {FORMAT}: upgrade neurocoder"
                )
            tensors = {name: content.get_tensor(name) for name in content.keys()}  # noqa: SIM118 - not a mapping
            tensors |= {alias: tensors[name] for alias, name in config["aliases"].items()}
            return config, tensors
    except CheckpointError:
        raise
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{file} is damaged or not a safetensors file: {error}") from error
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{file} carries a damaged neurocoder config: {error!r}") from error


def _recoded_as_saved(
    model: nn.Module, saved: dict[str, Any]
) -> tuple[dict[tuple[str, ...], nn.Module], dict[tuple[str, ...], nn.Module]]:
    """Coded layers, still without values, for the plain layers that were coded when saved; and what they replace."""
    modules = _modules_by_name(model)
    kinds = config_kinds()
    built: dict[int, CodedLayer] = {}
    layers: dict[tuple[str, ...], nn.Module] = {}
    for name, entry in saved.items():
        kind = entry["config"]["kind"]
        if kind not in kinds:
            raise CheckpointError(f"layer {name!r} was saved with {kind}, which is not registered: see nc.register")
        config: Config = kinds[kind].from_dict(entry["config"])
        module = modules.get(name)
        if module is None:
            raise CheckpointError(f"the checkpoint has a coded layer {name!r}, the model has no such layer")
        if isinstance(module, CodedLayer):
            if (module.config, module.control_dim) != (config, entry["control_dim"]):
                raise CheckpointError(f"layer {name!r} is coded with {module.config}, the checkpoint with {config}")
            continue
        if (type(module), type(config)) not in _registry:
            raise CheckpointError(f"layer {name!r} is a {type(module).__name__}, which {kind} does not cover")
        if id(module) not in built:
            built[id(module)] = _empty_like(module, config, entry["control_dim"])
        layers[name,] = built[id(module)]
    extra = [name for name, module in modules.items() if isinstance(module, CodedLayer) and name not in saved]
    if extra:
        raise CheckpointError(f"layer {extra[0]!r} is coded in the model, but not in the checkpoint")
    return layers, {names: modules[names[0]] for names in layers}


def _empty_like(plain: Any, config: Config, control_dim: int | None) -> CodedLayer:
    """A coded layer for `plain` whose values are yet to be loaded."""
    layer = _registry[type(plain), type(config)].like(plain, config, control_dim=control_dim, device="meta")
    layer.to_empty(device=plain.weight.device)
    layer.adopt(plain)
    return layer


def _check_fit(model: nn.Module, tensors: dict[str, Tensor], file: Path) -> None:
    """Require the same names and shapes in the model and in the file."""
    state = model.state_dict()
    missing, unknown = sorted(set(state) - set(tensors)), sorted(set(tensors) - set(state))
    if missing or unknown:
        parts = [f"lacks {', '.join(missing[:3])}"] if missing else []
        parts += [f"has {', '.join(unknown[:3])}, which the model has not"] if unknown else []
        raise CheckpointError(f"{file} is of another architecture: it {' and '.join(parts)}")
    for name, tensor in state.items():
        if tensor.shape != tensors[name].shape:
            raise CheckpointError(
                f"{file} is of another architecture: {name} is {tuple(tensors[name].shape)} there "
                f"and {tuple(tensor.shape)} in the model"
            )
