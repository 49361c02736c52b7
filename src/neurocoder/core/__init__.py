"""Core layers: a control blends small tables over shared slots, with signed weights."""

from torch import nn

from ..surgery.registry import register
from .config import CoreConfig
from .conv import CoreConv1d, CoreConv2d
from .layer import CoreLayer, CorePrograms
from .linear import CoreLinear
from .memory import CoreMemory
from .reader import CoreReader

for _plain, _coded in ((nn.Linear, CoreLinear), (nn.Conv1d, CoreConv1d), (nn.Conv2d, CoreConv2d)):
    register(_plain, _coded)

__all__ = [
    "CoreConfig",
    "CoreConv1d",
    "CoreConv2d",
    "CoreLayer",
    "CoreLinear",
    "CoreMemory",
    "CorePrograms",
    "CoreReader",
]
