"""The `neurocoder` command."""

from __future__ import annotations

import importlib.util
import os
import signal
import sys
from collections.abc import Sequence
from itertools import pairwise
from typing import cast

from neurocoder import __version__

NEEDED = ("tyro", "rich", "matplotlib", "scipy")


COMMANDS: dict[str, tuple[str, str]] = {
    "run": ("", "train an experiment: all its variants and seeds, or some"),
    "report": ("report.build", "build tables and figures from the records, next to the paper's"),
    "export": ("records.export", "write all records as one CSV file, a row per run"),
    "pack": ("records.pack", "gather records into one file per experiment and preset"),
    "list": ("", "list the experiments and presets"),
    "play": ("rl.play", "draw an episode of an agent as a GIF, with the programs it attends to"),
    "explore": ("explorer.command", "watch a program being composed, or look into a model of your own"),
    "bench": ("bench.command", "benchmark program layers against plain ones"),
    "demo": ("demo", "a two-minute demo on MNIST"),
}
"""Modules with `Options` and `main`, imported only when they are called, and what they do; two are functions."""


def _call(name: str, arguments: Sequence[str]) -> int:
    from .runner import command

    if module := COMMANDS[name][0]:
        return command.forward(name, module, arguments)
    return (command.run if name == "run" else command.table)(arguments)


def usage() -> str:
    """What `--help` prints."""
    lines = [f"  {name:8}{about}" for name, (_, about) in COMMANDS.items()]
    return "\n".join(["usage: neurocoder COMMAND [options]", "", *lines, "", "See also: neurocoder COMMAND --help"])


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    name, *arguments = (sys.argv[1:] if argv is None else argv) or ["--help"]
    if name in ("-h", "--help"):
        print(usage())
        return 0
    if name == "--version":
        print(f"neurocoder {__version__}")
        return 0
    try:
        for option, value in pairwise([*arguments, None]):
            if option is not None and (value == "" or (option.startswith("--") and option.endswith("="))):
                raise ValueError(f"{option.rstrip('=')} must have a value, got ''")
        if name not in COMMANDS:
            raise ValueError(f"command must be among {', '.join(COMMANDS)}, got {name!r}")
        if importlib.util.find_spec("fcntl") is None:
            raise ValueError("the lab needs a POSIX system, such as Linux, macOS or WSL: it locks files with fcntl")
        missing = [module for module in NEEDED if importlib.util.find_spec(module) is None]
        if missing:
            raise ValueError(f"the lab needs {', '.join(missing)}: pip install 'neurocoder[lab]'")
        if not {"", os.getcwd()} & set(sys.path):
            sys.path.append(os.getcwd())  # for the user's own experiments; `python -m` does the same
        return _call(name, arguments)
    except BrokenPipeError:  # as with `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes its buffer there
        return 128 + signal.SIGPIPE
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except SystemExit as end:  # after --help, or options that tyro has explained
        return cast(int, end.code)
    except KeyboardInterrupt:
        return 130
