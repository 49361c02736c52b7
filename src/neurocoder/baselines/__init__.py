"""The paper's baselines, behind the same interface."""

from torch import nn

from ..surgery.registry import register
from .hyper import HyperConfig, HyperLinear
from .mixture import MixtureConfig, MixtureLinear
from .stored_program import StoredProgramConfig, StoredProgramLinear

for _coded in (MixtureLinear, StoredProgramLinear, HyperLinear):
    register(nn.Linear, _coded)

__all__ = [
    "HyperConfig",
    "HyperLinear",
    "MixtureConfig",
    "MixtureLinear",
    "StoredProgramConfig",
    "StoredProgramLinear",
]
