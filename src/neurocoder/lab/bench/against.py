"""An earlier version of the library beside today's, so that before and after are measured in one run."""

from __future__ import annotations

import importlib.util
import sys
from functools import cache
from pathlib import Path
from types import ModuleType

NAME = "neurocoder_earlier"


@cache
def package(folder: str) -> ModuleType:
    """The package `neurocoder` of another source folder, under a name of its own."""
    file = Path(folder, "neurocoder", "__init__.py")
    spec = importlib.util.spec_from_file_location(NAME, file, submodule_search_locations=[str(file.parent)])
    assert spec is not None
    assert spec.loader is not None
    sys.modules[NAME] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
