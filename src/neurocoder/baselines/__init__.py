"""The paper's baselines, behind the same interface."""

from .hyper import HyperLinear
from .mixture import MixtureLinear
from .stored_program import StoredProgramLinear

__all__ = ["HyperLinear", "MixtureLinear", "StoredProgramLinear"]
