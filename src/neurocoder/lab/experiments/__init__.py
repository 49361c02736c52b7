"""The experiments by name; each is imported when it is asked for."""

from __future__ import annotations

import importlib
from typing import cast

from .experiment import Batch, Experiment, Stream, Task

__all__ = ["EXPERIMENTS", "Batch", "Experiment", "Stream", "Task", "load"]

EXPERIMENTS: dict[str, str] = {
    "digits": "neurocoder.lab.experiments.digits:Digits",
    "polynomials": "neurocoder.lab.experiments.polynomials:Polynomials",
}


def load(name: str) -> Experiment:
    """The experiment of this name; `package.module:Class` loads one of your own."""
    reference = EXPERIMENTS.get(name, name)
    module, _, kind = reference.partition(":")
    if not kind or not module:
        raise ValueError(f"experiment must be among {', '.join(EXPERIMENTS)}, or package.module:Class, got {name!r}")
    try:
        return cast(Experiment, getattr(importlib.import_module(module), kind)())
    except (ModuleNotFoundError, AttributeError, TypeError) as error:
        if name in EXPERIMENTS:
            raise
        raise ValueError(f"experiment {name!r} cannot be imported: {error}") from None
