"""Files that are written whole or not at all, and damaged ones out of the way."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def replacing(target: Path) -> Iterator[Path]:
    """A temporary name to write to; it becomes the target when the block ends without an error."""
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        yield temporary
        os.replace(temporary, target)
    except OSError as error:
        raise OSError(f"{target} cannot be written: {error.strerror or error}") from None
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()


def obstacle(folder: Path) -> str | None:
    """Why nothing can be written to the folder, which is made; better known before the work than after it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"something")
    except OSError as error:
        return error.strerror or str(error)
    return None


def set_aside(path: Path) -> Path:
    """Rename a damaged file, so that it is neither read again nor lost; its new name."""
    aside = path.with_name(path.name + ".damaged")
    os.replace(path, aside)
    return aside
