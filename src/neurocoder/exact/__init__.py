"""Exact layers: solved from sums instead of trained, so that they merge and forget exactly."""

from torch import nn

from ..surgery.registry import register
from .collect import Collector, exact
from .config import ExactConfig
from .layer import ExactLinear, ExactPrograms
from .solve import Solution

register(nn.Linear, ExactLinear)

__all__ = ["Collector", "ExactConfig", "ExactLinear", "ExactPrograms", "Solution", "exact"]
