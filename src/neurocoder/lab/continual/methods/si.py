"""Synaptic intelligence (Zenke et al., 2017)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ...validate import Positive, check
from ..tasks import Task
from .base import copies, joined, trainable, views
from .quadratic import Quadratic

if TYPE_CHECKING:
    from ..trainer import Trainer


class SI(Quadratic):
    """Importance is how much a parameter's way through a task lowered the loss.

        w_i     = - sum over steps of g_i * (step of theta_i)       the path integral
        Omega_i += w_i / (Delta_i^2 + xi)                           Delta_i: the way from begin to end of the task

    `g` is the gradient of the loss alone, without penalty and auxiliary loss. As in Hsu et al., w is not clamped at 0.

    Args:
        coefficient: lambda (c in the paper).
        damping: xi.

    Example:
        >>> trainer = cl.Trainer(nn.Linear(4, 2), cl.SI(1.0), optimiser=torch.optim.Adam)
        >>> for task in tasks:
        ...     trainer.learn(task)
        >>> trainer.method.penalty(trainer.model).shape
        torch.Size([])
    """

    def __init__(self, coefficient: float, damping: float = 0.1) -> None:
        super().__init__(coefficient)
        self.damping = check("damping", damping, Positive)
        self.path: dict[str, Tensor] = {}
        """w."""
        self.start: dict[str, Tensor] = {}
        """theta at the task's begin."""
        self._vectors: tuple[Tensor, Tensor, Tensor] | None = None

    def begin(self, trainer: Trainer, task: Task) -> None:
        self.start = copies(trainer.model)
        self.path = {name: torch.zeros_like(value) for name, value in self.start.items()}
        self._vectors = None

    @torch.no_grad()
    def after_backward(self, model: nn.Module) -> None:
        parameters = trainable(model)
        if self._vectors is None:  # w, g and theta (n,), kept since a graph writes into them
            path = joined(self.path)
            self.path, self._vectors = views(path, self.path), (path, torch.empty_like(path), torch.empty_like(path))
        _, gradient, before = self._vectors
        before.copy_(joined(parameters))
        gradients = {
            name: torch.zeros_like(entry) if entry.grad is None else entry.grad for name, entry in parameters.items()
        }
        gradient.copy_(joined(gradients))

    @torch.no_grad()
    def after_step(self, model: nn.Module) -> None:
        assert self._vectors is not None
        path, gradient, before = self._vectors
        path -= gradient * (joined(trainable(model)) - before)

    def importance(self, trainer: Trainer, task: Task) -> dict[str, Tensor]:
        return {
            name: self.path[name] / ((value - self.start[name]).square() + self.damping)
            for name, value in copies(trainer.model).items()
        }

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "path": self.path, "start": self.start}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.path, self.start, self._vectors = state["path"], state["start"], None
