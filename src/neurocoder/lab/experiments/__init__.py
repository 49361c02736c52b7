"""The experiments by name; each is imported when it is asked for."""

from __future__ import annotations

import importlib

from ..train.context import Context
from ..train.spec import Batch, Stream, Task, TrainSpec
from .experiment import Experiment, TaskExperiment

__all__ = ["EXPERIMENTS", "Batch", "Context", "Experiment", "Stream", "Task", "TaskExperiment", "TrainSpec", "load"]

EXPERIMENTS: dict[str, str] = {
    "digits": "neurocoder.lab.experiments.digits:Digits",
    "polynomials": "neurocoder.lab.experiments.polynomials:Polynomials",
    "split": "neurocoder.lab.experiments.split:Split",
    "exact": "neurocoder.lab.experiments.exact:Exact",
    "fields": "neurocoder.lab.experiments.fields:Fields",
    "tasks": "neurocoder.lab.experiments.tasks:Tasks",
    "everyday": "neurocoder.lab.experiments.everyday:Everyday",
    "images": "neurocoder.lab.experiments.images:Images",
    "atari": "neurocoder.lab.experiments.atari:Atari",
}


def load(name: str) -> Experiment:
    """The experiment of this name; `package.module:Class` loads one of your own."""
    reference = EXPERIMENTS.get(name, name)
    module, _, kind = reference.partition(":")
    if not kind or not module:
        raise ValueError(f"experiment must be among {', '.join(EXPERIMENTS)}, or package.module:Class, got {name!r}")
    try:
        found = getattr(importlib.import_module(module), kind)()
    except (ModuleNotFoundError, AttributeError, TypeError) as error:
        if name in EXPERIMENTS:
            raise
        raise ValueError(f"experiment {name!r} cannot be imported: {error}") from None
    if not isinstance(found, Experiment):
        raise ValueError(f"experiment {name!r} must be a neurocoder.lab.experiments.Experiment, got {kind}")
    return found
