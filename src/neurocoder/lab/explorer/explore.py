"""`neurocoder explore`: watch a program being composed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from .export import write
from .model import load


@dataclass(frozen=True)
class Options:
    """Watch a program being composed for the digit that you draw: neurocoder explore --export page.html"""

    export: Path
    """The page to write: one file with everything inside, to be opened in any browser."""


def main(options: Options) -> int:
    """Write the page; returns the exit status."""
    if options.export.is_dir():
        raise ValueError(f"--export must be a file to write, such as page.html, got the folder {options.export}")
    size = write(load(), options.export)
    print(f"Wrote {options.export}: {size / 1e6:.2f} MB. Open it in a browser; it needs no network.")
    return 0
