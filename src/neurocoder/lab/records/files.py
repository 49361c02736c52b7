"""Atomic writes, and setting damaged files aside."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def atomic_write(target: Path) -> Iterator[Path]:
    """A temporary file to write to; it replaces the target, or the file that it links to, if the block succeeds."""
    place = Path(os.path.realpath(target))
    if place.exists() and not (place.is_file() or place.is_dir()):  # replacing a device or a pipe would destroy it
        raise OSError(f"{target} cannot be written: it is not a regular file")
    temporary = place.with_name(f".{place.name}.{os.getpid()}.tmp")
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        yield temporary
        os.replace(temporary, place)
    except OSError as error:
        raise OSError(f"{target} cannot be written: {error.strerror or error}") from None
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()


def require_writable(option: str, folder: Path) -> None:
    """Create the folder; raises `ValueError` if it cannot be written to. Call before the work, not after."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"something")
    except OSError as error:
        why = error.strerror or error
        raise ValueError(f"{option} must be a folder that can be written to, got {folder}: {why}") from None


def quarantine(path: Path) -> Path:
    """Rename a damaged file, so that it is neither read again nor lost; returns its new name."""
    aside = path.with_name(path.name + ".damaged")
    os.replace(path, aside)
    return aside
