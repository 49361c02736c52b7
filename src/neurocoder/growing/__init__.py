"""Growing program memory: slots that are allocated for new inputs and consolidate, instead of being overwritten."""

from torch import nn

from ..surgery.registry import register
from .config import GrowingConfig
from .conv import GrowingConv1d, GrowingConv2d
from .growth import Growth, grow, shrink
from .layer import GrowingLayer, GrowingPrograms
from .linear import GrowingLinear
from .mask import mask
from .memory import GrowingMemory

for _plain, _coded in ((nn.Linear, GrowingLinear), (nn.Conv1d, GrowingConv1d), (nn.Conv2d, GrowingConv2d)):
    register(_plain, _coded)

__all__ = [
    "GrowingConfig",
    "GrowingConv1d",
    "GrowingConv2d",
    "GrowingLayer",
    "GrowingLinear",
    "GrowingMemory",
    "GrowingPrograms",
    "Growth",
    "grow",
    "mask",
    "shrink",
]
