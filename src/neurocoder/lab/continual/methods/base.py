"""What a method can do, and where in the training it does it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from ..evaluation import device_of
from ..pool import Batch, Part
from ..tasks import Task

if TYPE_CHECKING:
    from ..trainer import Trainer


class Method:
    """The base class: plain training, with hooks. One object serves one trainer.

    Example:
        >>> class Halve(cl.Method):
        ...     def end(self, trainer, task):
        ...         with torch.no_grad():
        ...             trainer.model.weight.mul_(0.5)
        >>> trainer = cl.Trainer(nn.Linear(4, 2), Halve(), optimiser=torch.optim.Adam)
        >>> trainer.learn(tasks[0])
    """

    reads_inputs: ClassVar[bool] = False
    """Whether `penalty` runs the model on the batch. The layers that it runs are then in use."""

    def begin(self, trainer: Trainer, task: Task) -> None:
        """Before a task; called once, also if the task is resumed."""

    def data(self, trainer: Trainer, task: Task) -> list[Part]:
        """What the task trains on; called again when the task is resumed."""
        return [Part(*task.train, task.head, task.width)]

    def before_step(self, batch: Batch) -> None:
        """Before each step's forward pass. This and the next hooks may be captured in a CUDA graph."""

    def penalty(self, model: nn.Module) -> Tensor:
        """The term () that the method adds to the loss now."""
        return torch.zeros((), device=device_of(model))

    def after_backward(self, model: nn.Module) -> None:
        """With the gradients of the loss alone, without auxiliary losses and penalties of parameters."""

    def after_step(self, model: nn.Module) -> None:
        """After the optimiser's step."""

    def end(self, trainer: Trainer, task: Task) -> None:
        """After a task's last step."""

    def state_dict(self) -> dict[str, Any]:
        """All that the method has learned: nested dicts and lists of tensors, numbers, strings and None, empty at
        first."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over a state whose tensors are copies on the model's device."""


class Plain(Method):
    """Training on one task after the other; nothing keeps the model from forgetting.

    Example:
        >>> trainer = cl.Trainer(nn.Linear(4, 2), cl.Plain(), optimiser=torch.optim.Adam)
        >>> for task in tasks:
        ...     trainer.learn(task)
        >>> trainer.task
        2
    """


def trainable(model: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters that importance is about, by name: no buffers, and none that are frozen."""
    return {name: entry for name, entry in model.named_parameters() if entry.requires_grad}


def copies(model: nn.Module) -> dict[str, Tensor]:
    """The trainable parameters' current values."""
    return {name: entry.detach().clone() for name, entry in trainable(model).items()}


def joined(values: Mapping[str, Tensor]) -> Tensor:
    """All values in one vector (n,): a model of many small parameters then costs few operations."""
    return torch.cat([value.flatten() for value in values.values()])


def views(vector: Tensor, like: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The parts of a joined vector, by name."""
    parts = vector.split([value.numel() for value in like.values()])
    return {name: part.view_as(like[name]) for name, part in zip(like, parts, strict=True)}
