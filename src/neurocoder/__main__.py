"""`python -m neurocoder`: what is there."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from importlib import metadata

import torch

from .lab.cli import COMMANDS
from .version import __version__

DEVELOPMENT = ("dev", "docs")
"""Extras that only a checkout of the repository needs."""


def extras(requirements: Sequence[str]) -> dict[str, list[str]]:
    """The distributions that each extra needs, from requirements such as `rich>=14; extra == "lab"`."""
    found: dict[str, list[str]] = {}
    for requirement in requirements:
        name, extra = re.match(r"[\w.-]+", requirement), re.search(r"""extra == ['"]([\w-]+)['"]""", requirement)
        if name and extra and extra[1] not in DEVELOPMENT:
            found.setdefault(extra[1], []).append(name[0])
    return found


def is_installed(distribution: str) -> bool:
    """Whether pip would find it."""
    return any(metadata.distributions(name=distribution))


def summary() -> str:
    """A few lines: version, where it runs, extras, commands, documentation."""
    device = "CUDA" if torch.cuda.is_available() else "CPU"
    installed = next(iter(metadata.distributions(name="neurocoder")), None)  # None: run from a source folder
    required = (installed and installed.requires) or []
    lines = [
        f"neurocoder {__version__}: stored neural programs for PyTorch",
        f"Python {sys.version.split()[0]}, torch {torch.__version__}, {device}",
        "",
    ]
    for extra, names in extras(required).items():
        absent = [name for name in names if not is_installed(name)]
        state = f"pip install 'neurocoder[{extra}]' (missing: {', '.join(absent)})" if absent else "installed"
        lines.append(f"  [{extra}]".ljust(14) + state)
    lines += [
        "",
        f"Commands, with the extra [lab]: neurocoder {', '.join(COMMANDS)}",
        "Start: import neurocoder as nc; help(nc.recode)",
        "Documentation: the folder docs of the source; `make docs` builds a site from it",
    ]
    return "\n".join(lines)


def main(words: Sequence[str]) -> None:
    """Print the summary; arguments, which the command `neurocoder` takes, are an error."""
    if words:
        sys.exit(f"python -m neurocoder takes no arguments, got {' '.join(words)!r}: use the command `neurocoder`")
    print(summary())


if __name__ == "__main__":
    main(sys.argv[1:])
