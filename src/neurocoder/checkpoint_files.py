"""The files of a checkpoint: written atomically, and read only if they are as they were written.

`neurocoder.safetensors` is authoritative: it holds the tensors and, in its header, the config, so a save is one atomic
rename. `neurocoder.json` is the config once more, for human readers. The config is signed: its last entry is the
SHA-256 of all before it, which includes a SHA-256 of the tensors. So each file is known to be sound by itself, and a
process that is killed between their renames leaves a checkpoint that loads.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import shutil
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from .version import __version__

FORMAT = 3
"""Version of the layout; newer ones are refused. 1 and 2 have no digests; 1 names its files and tensors otherwise."""
TENSORS, CONFIG = "neurocoder.safetensors", "neurocoder.json"
TENSORS_1 = "model.safetensors"
"""The first one's name in format 1, which other libraries use too: such a file may not be ours."""
_KEY = "neurocoder"


class CheckpointError(ValueError):
    """A checkpoint cannot be written or read; nothing was changed.

    Example:
        >>> try:
        ...     nc.load("nowhere", nn.Linear(8, 4))
        ... except nc.CheckpointError as error:
        ...     print("nothing changed")
        nothing changed
    """


class Checkpoint(NamedTuple):
    """What a file holds."""

    file: Path
    config: dict[str, Any]
    tensors: dict[str, Tensor]
    """Under all of their names."""

    @property
    def has_digests(self) -> bool:
        """Whether the file is known to be undamaged."""
        return bool(self.config["format"] > 2)


def write(folder: Path, tensors: dict[str, Tensor], config: dict[str, Any]) -> None:
    """Write a checkpoint next to the old one, then rename it into place."""
    if folder.exists() and not folder.is_dir():
        raise CheckpointError(f"path must be a folder, but {folder} is a file")
    stamp = {"format": FORMAT, "version": __version__}
    text = _signed(json.dumps({**stamp, **config, "tensors": _digest(tensors)}, indent=2))
    is_new = not folder.exists()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _temporary(folder) as temporary:
            save_file(tensors, temporary / TENSORS, {_KEY: text})
            (temporary / CONFIG).write_text(text + "\n")
            # safetensors makes its files private; give them the permissions of any new file.
            shutil.copymode(temporary / CONFIG, temporary / TENSORS)
            for name in (TENSORS, CONFIG):
                with (temporary / name).open("rb+") as stream:  # the rename must never precede the contents
                    os.fsync(stream.fileno())
            _put(temporary, folder)
    except (OSError, SafetensorError) as error:
        if is_new:
            with contextlib.suppress(OSError):
                folder.rmdir()
        raise CheckpointError(f"cannot write the checkpoint {folder}: {error}") from error


@contextlib.contextmanager
def _temporary(folder: Path) -> Iterator[Path]:
    """A temporary folder to save into, after those that dead processes of this host have left are removed.

    Every save shares a lock on the folder, which the system takes back if its process dies. Who can have that lock
    alone knows that nobody else on this host is saving. Other hosts may not see the lock: their folders stay.
    """
    prefix = f".saving-{platform.node()}-"
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(ImportError, OSError):  # others are saving, or there are no locks here
            import fcntl

            lock = os.open(folder, os.O_RDONLY)
            stack.callback(os.close, lock)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                for stale in folder.iterdir():
                    if stale.name.startswith(prefix):
                        shutil.rmtree(stale)
            finally:
                fcntl.flock(lock, fcntl.LOCK_SH)
        yield Path(stack.enter_context(TemporaryDirectory(prefix=prefix, dir=folder)))


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


def _digest(tensors: dict[str, Tensor]) -> str:
    """SHA-256 over the names, dtypes, shapes and values of all tensors."""
    # 0.5 GB/s on two cores of 2026, blake2b 0.4: a sixth of the time of a save, nearly all of a load from memory.
    rows = []
    for name, tensor in sorted(tensors.items()):
        values = tensor.reshape(-1).view(torch.uint8).numpy().data
        rows.append([name, str(tensor.dtype), list(tensor.shape), hashlib.sha256(values).hexdigest()])
    return hashlib.sha256(json.dumps(rows).encode()).hexdigest()


def _signed(text: str) -> str:
    """A JSON table with the SHA-256 of its text as one more entry, the last."""
    return f'{text[:-2]},\n  "digest": "{hashlib.sha256(text.encode()).hexdigest()}"\n}}'


def find(folder: Path) -> Path:
    """The file of a checkpoint; the format 1 file if there is no other."""
    if folder.is_file():
        raise CheckpointError(f"path must be a folder that nc.save wrote, but {folder} is a file")
    for name in (TENSORS, TENSORS_1):
        if (folder / name).is_file():
            return folder / name
    raise CheckpointError(f"no checkpoint at {folder}, it has no {TENSORS}: give a folder that nc.save wrote")


def read(file: Path) -> Checkpoint:
    """A checkpoint, if its file and the config beside it are undamaged."""
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
    with damage_of(file):
        found = Checkpoint(file, _config(text, file), tensors)
        if found.has_digests and found.config["tensors"] != _digest(tensors):
            raise CheckpointError(f"{file} is damaged, its tensors do not match their digest: save it again")
        tensors |= {alias: tensors[name] for alias, name in found.config["aliases"].items()}
    beside = file.with_name(CONFIG)
    if found.has_digests and beside.exists():
        with damage_of(beside):
            _config(beside.read_text(), beside)  # of another save, if one was killed: what counts is in the file
    return found


@contextlib.contextmanager
def damage_of(file: Path) -> Iterator[None]:
    """Names the file in whatever goes wrong with its config."""
    try:
        yield
    except CheckpointError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError, OSError) as error:
        raise CheckpointError(f"{file} carries a damaged neurocoder config, save it again: {error!r}") from error


def _config(text: str, file: Path) -> dict[str, Any]:
    """The config in a file's text, if that matches its digest; formats 1 and 2 have none."""
    config: dict[str, Any] = json.loads(text)
    if config["format"] > FORMAT:
        raise CheckpointError(
            f"{file} was written by neurocoder {config['version']} in format {config['format']}; this is "
            f"{__version__}, which reads up to format {FORMAT}: upgrade neurocoder"
        )
    is_signed = "digest" in config or config["format"] not in (1, 2)
    if is_signed and text.removesuffix("\n") != _signed(text.rpartition(",\n")[0] + "\n}"):
        raise CheckpointError(f"{file} is damaged, its config does not match its digest: save it again")
    return config
