"""The layer of the paper (Figure 2): programs composed from shared slots by attention.

`ProgramMemory` is the figure's Program Memory, `ProgramController` its Program Controller with composition and
integration network; `Linear`, `Conv1d` and `Conv2d` are layers of the Main Network.
"""

from torch import nn

from ..surgery.registry import register
from .conv import Conv1d, Conv2d
from .linear import Linear

for _plain, _coded in ((nn.Linear, Linear), (nn.Conv1d, Conv1d), (nn.Conv2d, Conv2d)):
    register(_plain, _coded)
