"""A training step as one CUDA graph: the host makes one launch per step and never waits."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import torch
from lightning_fabric import Fabric

from .capture import captured
from .tasks import Task
from .training import Learner, Stepper

WARM_UP = 3
"""Warm-up steps before the capture: kernels are compiled and the optimiser creates its state. They are ordinary steps,
so the result is the same."""


class GraphStepper(Stepper):
    """Takes the steps by replaying a graph; the learning rates of all steps are on the device.

    On a CPU the same operations run uncaptured.
    """

    def __init__(self, learner: Learner, tasks: Sequence[Task], fabric: Fabric) -> None:
        super().__init__(learner, tasks, fabric)
        factors = [self._task.schedule(step) for step in range(self._task.steps)]
        self._factors = torch.tensor(factors, dtype=torch.float32, device=fabric.device)
        # State and learning rates on the device; fused, since only fused SGD reads the rate there.
        wanted = {"capturable": True, "fused": True, "foreach": False}
        for group, rate in zip(self.optimiser.param_groups, self._rates, strict=True):
            group |= {name: value for name, value in wanted.items() if name in group}
            group["lr"] = torch.tensor(rate, dtype=torch.float32, device=fabric.device)
        self._graph: torch.cuda.CUDAGraph | None = None
        self._warm = 0
        self._side = torch.cuda.Stream(fabric.device) if self.clock.is_cuda else None

    def _prepare(self) -> None:
        factor = self._factors.index_select(0, self.clock.view(1)).view(())
        for group, rate in zip(self.optimiser.param_groups, self._rates, strict=True):
            group["lr"].copy_(factor * rate)

    def _operations(self) -> None:
        if self._side is None:
            super()._operations()
        elif self._graph is not None:
            self._graph.replay()
        elif self._warm < WARM_UP:
            self._warm += 1
            self._side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self._side), warnings.catch_warnings():
                warnings.filterwarnings("ignore", "This instance was constructed with capturable=True")
                super()._operations()
            torch.cuda.current_stream().wait_stream(self._side)
        else:
            self.optimiser.zero_grad()  # so that gradients are allocated in the graph's own memory
            with captured(self._side) as graph:
                super()._operations()
            self._graph = graph
            graph.replay()
