"""An earlier version of the library as a contender, so that before and after are measured in one run."""

from __future__ import annotations

import dataclasses
import importlib.util
import sys
from functools import cache
from pathlib import Path
from types import ModuleType

from torch import nn

import neurocoder as nc

from .. import environment
from .contenders import Exact, Subject

NAME = "earlier"
_PACKAGE = "neurocoder_earlier"


@cache
def package(folder: str) -> ModuleType:
    """The package `neurocoder` of another source folder, under a name of its own."""
    file = Path(folder, "neurocoder", "__init__.py")
    if not file.is_file():
        raise ValueError(f"--against must be a folder with the package neurocoder, such as ../before/src, got {folder}")
    spec = importlib.util.spec_from_file_location(_PACKAGE, file, submodule_search_locations=[str(file.parent)])
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[_PACKAGE] = module
    spec.loader.exec_module(module)
    return module


def digest(folder: str) -> str:
    """A hash of the earlier library, without its lab."""
    return environment.source(Path(folder, "neurocoder"), without="lab")


def subject(folder: str, today: Subject) -> Subject:
    """The earlier version of a program layer, with the same values and so the same exact results."""
    earlier, layer = package(folder), today.module
    assert isinstance(layer, nc.Linear)
    fields = {field.name for field in dataclasses.fields(earlier.ProgramConfig)}
    config = earlier.ProgramConfig(**{k: v for k, v in dataclasses.asdict(layer.config).items() if k in fields})
    twin: nn.Module = earlier.Linear(layer.in_features, layer.out_features, layer.bias is not None, config)
    # A parameter's name may have had a dot where it has an underscore today.
    names = {name.replace(".", "_"): name for name in twin.state_dict()}
    twin.load_state_dict({names[name.replace(".", "_")]: value for name, value in layer.state_dict().items()})
    exact: Exact = today.exact
    grads = {names[name.replace(".", "_")]: grad for name, grad in exact.grads.items()}
    return Subject(NAME, twin.to(layer.memory.U.device).eval(), exact._replace(grads=grads))
