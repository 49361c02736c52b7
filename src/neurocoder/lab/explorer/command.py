"""`neurocoder explore`: watch a program being composed, or look into a model of one's own."""

from __future__ import annotations

import contextlib
import importlib.util
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from ..validate import Count, Range, validate
from .page.build import write
from .page.demo_model import load

NEEDED = ("starlette", "uvicorn")
LOCAL = ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True)
class Options:
    """Watch a program being composed (--export page.html), or look into a model of your own (--model and --data)."""

    export: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """The page to write: one file with everything inside, to be opened in any browser."""
    model: Annotated[str | None, tyro.conf.arg(metavar="PACKAGE:NAME")] = None
    """Your model: package.module:name of a torch.nn.Module, or of a function that returns one."""
    data: Annotated[str | None, tyro.conf.arg(metavar="PACKAGE:NAME")] = None
    """Its inputs: package.module:name of a tensor, (x, y), a dictionary of arguments, a data set or an iterable of
    batches, or of a function that returns one."""
    inputs: Count = 512
    """Inputs to use, at most."""
    runs: Annotated[Path | None, tyro.conf.arg(metavar="FOLDER")] = None
    """Checkpoints of nc.save and records of `neurocoder run` in which to follow the usage of slots over training."""
    no_images: bool = False
    """Show the numbers of inputs also where they look like images."""
    host: str = "127.0.0.1"
    """Address to listen on; any other one lets other machines in."""
    port: Annotated[int, Range(0, 65535)] = 0
    """Port to listen on; 0: any free one."""

    def __post_init__(self) -> None:
        if (self.export is None) == (self.model is None):
            raise ValueError("give either --export FILE, or --model PACKAGE:NAME and --data PACKAGE:NAME")
        if (self.model is None) != (self.data is None):
            raise ValueError("--model and --data must be given together")
        validate(self, options=True)


def main(options: Options) -> int:
    """Write the page, or serve one; returns the exit status."""
    if options.export is None:
        return serve(options)
    if options.export.is_dir():
        raise ValueError(f"--export must be a file to write, such as page.html, got the folder {options.export}")
    if not options.export.parent.is_dir():
        raise ValueError(f"--export must be a file in a folder that exists, got {options.export}")
    size = write(load(), options.export)
    print(f"Wrote {options.export}: {size / 1e6:.2f} MB. Open it in a browser; it needs no network.")
    return 0


def serve(options: Options) -> int:
    """Look into a model until interrupted."""
    missing = [module for module in NEEDED if importlib.util.find_spec(module) is None]
    if missing:
        raise ValueError(f"explore --model needs {', '.join(missing)}: pip install 'neurocoder[explorer]'")
    from .server.app import Server
    from .server.inputs import load_inputs, load_model
    from .server.layer import many
    from .server.runs import Runs
    from .server.study import Study

    assert options.model is not None
    assert options.data is not None
    model, inputs = load_model(options.model), load_inputs(options.data, options.inputs)
    study = Study(model, inputs, options.model, not options.no_images)
    runs = None if options.runs is None else Runs(options.runs, study)
    for warning in () if runs is None else runs.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    server = Server(study, runs, options.host, options.port)
    if options.host not in LOCAL:
        print(
            f"warning: --host {options.host} lets other machines reach this page, without encryption: whoever sees the "
            "address can read what your model does with your data",
            file=sys.stderr,
        )
    seen = f"{many(len(study.layers), 'coded layer')}, {many(inputs.total, 'input')}"
    print(f"{seen}. Open this address; Ctrl-C ends it.")
    print(server.address, flush=True)
    with contextlib.suppress(KeyboardInterrupt):
        server.run()
    return 0
