"""Checkpoints of running trainings: one safetensors file each, with the rest as JSON in its header."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from .files import replacing
from .results import Damaged
from .training import Course

FORMAT = 1


@dataclass
class Checkpoint:
    """A training that can go on."""

    identity: dict[str, Any]
    """Of what: whatever makes another training of it, by name."""
    course: Course
    state: dict[str, Tensor]

    def write(self, target: Path) -> None:
        """Whole or not at all."""
        about = {"format": FORMAT, "identity": self.identity, "course": asdict(self.course)}
        with replacing(target) as temporary:
            try:
                save_file(self.state, temporary, {"neurocoder": json.dumps(about)})
            except SafetensorError as error:
                raise OSError(str(error)) from None

    @classmethod
    def read(cls, source: Path) -> Checkpoint:
        """Raises `Damaged` where the file is none of ours."""
        try:
            with safe_open(source, "pt") as file:
                about = json.loads((file.metadata() or {})["neurocoder"])
                if about["format"] != FORMAT:
                    raise Damaged(f"{source} has format {about['format']!r}, this version reads {FORMAT}")
                state = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (a file, not a dict)
            return cls(about["identity"], Course(**about["course"]), state)
        except Damaged:
            raise
        except (SafetensorError, ValueError, KeyError, TypeError) as error:
            raise Damaged(f"{source} is not a checkpoint: {type(error).__name__}: {error}") from None
