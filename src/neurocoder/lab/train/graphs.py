"""A training step as one CUDA graph."""

from __future__ import annotations

import torch

from .capture import Captured
from .context import Context
from .loop import Stepper
from .spec import TrainSpec


class GraphStepper(Stepper):
    """Takes the steps by replaying a graph; the learning rates of all steps are on the device.

    On a CPU the same operations run uncaptured.
    """

    def __init__(self, spec: TrainSpec, context: Context) -> None:
        super().__init__(spec, context)
        factors = [spec.schedule(step) for step in range(spec.steps)]
        self._factors = torch.tensor(factors, dtype=torch.float32, device=context.device)
        # State and learning rates on the device; fused, since only fused SGD reads the rate there.
        wanted = {"capturable": True, "fused": True, "foreach": False}
        for group, rate in zip(self.optimiser.param_groups, self._rates, strict=True):
            group |= {name: value for name, value in wanted.items() if name in group}
            group["lr"] = torch.tensor(rate, dtype=torch.float32, device=context.device)
        self._captured = Captured(context.device)

    def _prepare(self) -> None:
        factor = self._factors.index_select(0, self.clock.view(1)).view(())
        for group, rate in zip(self.optimiser.param_groups, self._rates, strict=True):
            group["lr"].copy_(factor * rate)

    def _operations(self) -> None:
        self._captured(super()._operations, before=self.optimiser.zero_grad)
