"""Checkpoints of unfinished runs: one safetensors file each, with the rest as JSON in its header."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save_file
from torch import Tensor

from .files import replacing
from .results import Damaged
from .training import Course

FORMAT = 2


@dataclass
class Checkpoint:
    """A training that can be resumed."""

    identity: dict[str, Any]
    """What must match to resume, by name."""
    course: Course
    state: dict[str, Tensor]

    def write(self, target: Path) -> None:
        """Atomic write."""
        about = {
            "format": FORMAT,
            "identity": self.identity,
            "course": asdict(self.course),
            "digest": _digest(self.state),
        }
        with replacing(target) as temporary:
            try:
                save_file(self.state, temporary, {"neurocoder": json.dumps(about)})
            except SafetensorError as error:
                raise OSError(str(error)) from None

    @classmethod
    def read(cls, source: Path) -> Checkpoint:
        """Raises `Damaged` if the file is not a valid checkpoint."""
        if not source.is_file():
            raise Damaged(f"{source} is not a file")
        try:
            raw = source.read_bytes()  # once: the file may be replaced meanwhile
            header = json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")])
            about = json.loads(header["__metadata__"]["neurocoder"])
            if about["format"] != FORMAT:
                raise Damaged(f"{source} has format {about['format']!r}, this version reads {FORMAT}")
            state = load(raw)
            if about["digest"] != _digest(state):
                raise Damaged(f"{source} does not match its digest")
            return cls(about["identity"], Course(**about["course"]), state)
        except Damaged:
            raise
        except (SafetensorError, ValueError, KeyError, TypeError) as error:
            raise Damaged(f"{source} is not a checkpoint: {type(error).__name__}: {error}") from None


def _digest(state: dict[str, Tensor]) -> str:
    """Digest of all names and values: resuming from damaged ones would give a wrong record."""
    found = hashlib.blake2b(digest_size=16)
    for name in sorted(state):
        found.update(name.encode())
        found.update(state[name].view(-1).view(torch.uint8).numpy().data)
    return found.hexdigest()
