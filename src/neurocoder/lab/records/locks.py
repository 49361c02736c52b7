"""Lock files, for processes that share a folder. The system frees the locks of a process that dies."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def locked(path: Path, *, wait: bool = False) -> Iterator[bool]:
    """Holds this lock, unless another process does: yields whether. `wait` waits for it instead. Its file is removed at
    the end."""
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            file = os.open(path, os.O_RDWR | os.O_CREAT)
        except FileNotFoundError:  # `pack` has just removed the empty folder
            continue
        try:
            fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(file)
            yield False
            return
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(file), path.stat()):
                break
        os.close(file)  # its holder removed it between our open and lock
    try:
        yield True
    finally:
        path.unlink(missing_ok=True)  # first, while it is still locked
        os.close(file)
