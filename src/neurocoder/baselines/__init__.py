"""The paper's baselines, behind the same interface."""

from torch import nn

from ..surgery.registry import register
from .hyper import HyperLinear
from .mixture import MixtureLinear
from .stored_program import StoredProgramLinear

for _coded in (MixtureLinear, StoredProgramLinear, HyperLinear):
    register(nn.Linear, _coded)
