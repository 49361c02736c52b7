"""Checkpoints of unfinished runs: one safetensors file each, with the rest as JSON in its header."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from .files import atomic_write
from .record import CorruptFileError

FORMAT = 5


@dataclass
class Checkpoint:
    """A run that can be resumed."""

    identity: dict[str, Any]
    """What must match to resume, by name."""
    run: dict[str, Any]
    """What the run has reported: its history, observations, and so on."""
    seconds: float
    """Wall time so far."""
    sources: list[str]
    """Hashes of the source that the run's parts were made with, in order."""
    state: dict[str, Any]
    """What the run saved: tensors, numbers, strings, None, and nested dicts, lists and tuples of them."""

    def to_bytes(self) -> bytes:
        """The content of the file."""
        tensors: dict[str, Tensor] = {}
        about = {
            "format": FORMAT,
            "identity": self.identity,
            "run": self.run,
            "seconds": self.seconds,
            "sources": self.sources,
            "state": _encode(self.state, "state", tensors),
        }
        return save(tensors, {"neurocoder": json.dumps(about | {"digest": _digest(about, tensors)})})

    def write(self, target: Path) -> None:
        """Atomic write."""
        write(self.to_bytes(), target)

    @classmethod
    def read(cls, source: Path) -> Checkpoint:
        """Raises `CorruptFileError` if the file is not a valid checkpoint."""
        if not source.is_file():
            raise CorruptFileError(f"{source} is not a file")
        return cls.from_bytes(source.read_bytes(), str(source))

    @classmethod
    def from_bytes(cls, raw: bytes, name: str = "the checkpoint") -> Checkpoint:
        """Raises `CorruptFileError` if these are not the bytes of a valid checkpoint."""
        try:
            header = json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")])
            about = json.loads(header["__metadata__"]["neurocoder"])
            if about["format"] not in (4, FORMAT):
                raise CorruptFileError(f"{name} has format {about['format']!r}, this version reads 4 and {FORMAT}")
            tensors = load(raw)
            if about.pop("digest") != _digest(about, tensors):
                raise CorruptFileError(f"{name} does not match its digest")
            if about["format"] == 4:
                _upgrade(about)
            state = _decode(about["state"], tensors)
            return cls(about["identity"], about["run"], about["seconds"], about["sources"], state)
        except CorruptFileError:
            raise
        except (SafetensorError, ValueError, KeyError, TypeError) as error:
            raise CorruptFileError(f"{name} is not a checkpoint: {type(error).__name__}: {error}") from None


def write(content: bytes, target: Path) -> None:
    """Atomic write of a checkpoint's bytes."""
    with atomic_write(target) as temporary:
        temporary.write_bytes(content)


def _upgrade(about: dict[str, Any]) -> None:
    """From format 4, in which a run could have several seeds; those are in files of other names. An agent that was kept
    for `neurocoder play` has reported nothing."""
    identity = about["identity"]
    identity["seed"] = identity.pop("seeds")[0]
    if identity.get("processes") == 1:  # a run over several devices is not continued on one
        del identity["processes"]
    about["run"] = next(iter(about["runs"]), {})


def _encode(value: Any, name: str, tensors: dict[str, Tensor]) -> Any:
    """A value as JSON; its tensors are copied to the CPU, into `tensors`. What has a `state_dict` is saved as that."""
    if isinstance(value, Tensor):
        name = f"{len(tensors)} {name}"  # two paths may read the same
        tensors[name] = value.detach().cpu().clone(memory_format=torch.contiguous_format)
        return {"tensor": name}
    if hasattr(value, "state_dict"):
        value = value.state_dict()
    if isinstance(value, Mapping):
        if bad := [key for key in value if not isinstance(key, str | int)]:
            raise ValueError(f"the keys of {name} must be strings or integers, got {bad[0]!r}")
        return {"items": [[key, _encode(entry, f"{name}.{key}", tensors)] for key, entry in value.items()]}
    if isinstance(value, list | tuple):
        kind = "tuple" if isinstance(value, tuple) else "list"
        return {kind: [_encode(entry, f"{name}.{place}", tensors) for place, entry in enumerate(value)]}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise ValueError(
        f"{name} must be made of tensors, numbers, strings, None, dicts, lists and what has a state_dict, "
        f"got {type(value).__name__}"
    )


def _decode(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    """The value that `_encode` was given."""
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    if kind == "tensor":
        return tensors[content]
    if kind == "items":
        return {key: _decode(entry, tensors) for key, entry in content}
    entries = [_decode(entry, tensors) for entry in content]
    return tuple(entries) if kind == "tuple" else entries


def _digest(about: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> str:
    """Digest of all that is stored: resuming from damaged numbers would give a wrong record."""
    found = hashlib.blake2b(json.dumps(about).encode(), digest_size=16)
    for name in sorted(tensors):
        found.update(name.encode())
        found.update(tensors[name].view(-1).view(torch.uint8).numpy().data)
    return found.hexdigest()
