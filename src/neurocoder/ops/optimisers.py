"""The optimisers of this process, and the parameters that they hold."""

from __future__ import annotations

import gc
from collections.abc import Container
from contextlib import suppress
from typing import TypeVar

from torch.optim import Optimizer

Kind = TypeVar("Kind")


def live_objects(base: type[Kind]) -> list[Kind]:
    """All instances of a class. Python looks for them among all objects of the process: 0.05 s with transformers
    loaded."""
    kinds: list[type] = [base]
    for kind in kinds:
        kinds += kind.__subclasses__()
    return [thing for thing in gc.get_referrers(*kinds) if issubclass(type(thing), base)]


def live_optimisers() -> list[Optimizer]:
    """All optimisers. Accelerate wraps one in a subclass that is never initialised as one and takes no hooks: only the
    optimiser inside it counts."""
    return [optimiser for optimiser in live_objects(Optimizer) if "defaults" in vars(optimiser)]


def held(optimiser: Optimizer, parameters: Container[int]) -> list[int]:
    """Which of these parameters, by id, an optimiser holds."""
    with suppress(Exception):  # of a half-built optimiser, or one with other kinds of groups
        every = [id(parameter) for group in optimiser.param_groups for parameter in group["params"]]
        return [one for one in every if one in parameters]
    return []
