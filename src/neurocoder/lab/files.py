"""Files that are written whole or not at all, and damaged ones out of the way."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(target: Path) -> Iterator[Path]:
    """A temporary name to write to; it becomes the target when the block ends without an error."""
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)


def set_aside(path: Path) -> Path:
    """Rename a damaged file, so that it is neither read again nor lost; its new name."""
    aside = path.with_name(path.name + ".damaged")
    os.replace(path, aside)
    return aside
