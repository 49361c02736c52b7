"""Several seeds of one configuration as one model: each operation works on all of them at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from lightning_fabric import Fabric
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap

from .context import TrainingError
from .loop import Objective
from .spec import Batch, Task


class Stacked:
    """Models that differ only in the seed, their parameters stacked to (n, ...).

    The sum of their losses is minimised. Elementwise optimisers, such as SGD and Adam, then train each as if it were
    alone.
    """

    def __init__(self, tasks: Sequence[Task], fabric: Fabric) -> None:
        self._tasks, self._fabric = tasks, fabric
        if any(_carries_tensors(task.loss) for task in tasks):
            raise TrainingError("--loop stacked uses one loss for all seeds, but this task's loss holds tensors")
        for task in tasks:
            task.model.train()
        self._objective = Objective(tasks[0])
        self._parameters, self._buffers = stack_module_state([task.model for task in tasks])
        self.parameters: dict[str, Tensor] = {
            name: entry for name, entry in self._parameters.items() if entry.requires_grad
        }
        self.tensors: dict[str, Tensor] = self._parameters | self._buffers

    def fill(self, block: int) -> None:
        for task in self._tasks:
            task.stream.fill(block)

    def losses(self, position: Tensor) -> Tensor:
        batches = zip(*(task.stream.batch(position) for task in self._tasks), strict=True)
        stacked = tuple(torch.stack(tensors) for tensors in batches)
        with self._fabric.autocast():
            return vmap(self._loss, randomness="different")(self._parameters, self._buffers, stacked)

    def _loss(self, parameters: dict[str, Tensor], buffers: dict[str, Tensor], batch: Batch) -> Tensor:
        """The loss of one seed, ()."""
        tensors = {f"model.{name}": tensor for name, tensor in (parameters | buffers).items()}
        return functional_call(self._objective, tensors, batch)

    def clip(self, limit: float) -> None:
        gradients = [entry.grad for entry in self.parameters.values() if entry.grad is not None]
        norms = torch.cat([gradient.reshape(len(gradient), -1) for gradient in gradients], dim=1).norm(dim=1)
        factors = (limit / (norms + 1e-6)).clamp(max=1.0)  # (n,), as in torch's clip_grad_norm_
        for gradient in gradients:
            gradient.mul_(factors.view(-1, *[1] * (gradient.dim() - 1)))

    @torch.no_grad()
    def models(self) -> Sequence[nn.Module]:
        models = [task.model for task in self._tasks]
        for index, model in enumerate(models):
            for name, tensor in (*model.named_parameters(), *model.named_buffers()):
                tensor.copy_(self.tensors[name][index])
        return models


def _carries_tensors(loss: Callable[..., Tensor]) -> bool:
    """Whether a loss has tensors or modules of its own, such as the anchor of a penalty: each seed's may differ."""
    cells = [cell.cell_contents for cell in getattr(loss, "__closure__", None) or ()]
    owner = getattr(loss, "__self__", loss)
    values = [*cells, *getattr(owner, "__dict__", {}).values(), *(getattr(loss, "__defaults__", None) or ())]
    return isinstance(owner, nn.Module) or any(isinstance(value, Tensor | nn.Module) for value in values)
