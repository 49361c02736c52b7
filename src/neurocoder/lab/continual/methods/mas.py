"""Memory aware synapses (Aljundi et al., 2018)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ...networks import eval_mode
from ..evaluation import device_of, outputs
from ..pool import permutation
from ..tasks import Task
from .base import trainable
from .quadratic import Quadratic

if TYPE_CHECKING:
    from ..trainer import Trainer


class MAS(Quadratic):
    """Importance is how much a parameter moves the squared outputs.

        Omega_i += 1/B sum over mini-batches of |d mean(f(x)^2) / d theta_i|

    The mean is over the mini-batch and the outputs, as in Hsu et al.; Aljundi et al. take the squared norm of each
    sample's outputs.

    Example:
        >>> trainer = cl.Trainer(nn.Linear(4, 2), cl.MAS(1.0), optimiser=torch.optim.Adam)
        >>> for task in tasks:
        ...     trainer.learn(task)
        >>> trainer.method.penalty(trainer.model).shape
        torch.Size([])
    """

    def importance(self, trainer: Trainer, task: Task) -> dict[str, Tensor]:
        model, (x, y) = trainer.model, task.train
        parameters, device = trainable(model), device_of(model)
        total = {name: torch.zeros_like(entry) for name, entry in parameters.items()}
        chosen = torch.tensor(trainer.seen(task.head), device=device)
        batches = permutation(len(y), trainer.seed, trainer.task, trainer.epochs).split(trainer.batch)
        with eval_mode(model):
            for rows in batches:
                found = outputs(model, x[rows.to(x.device)].to(device), task.head).index_select(1, chosen)
                gradients = torch.autograd.grad(found.square().mean(), list(parameters.values()), allow_unused=True)
                for name, gradient in zip(parameters, gradients, strict=True):
                    if gradient is not None:
                        total[name] += gradient.abs()
        return {name: value.detach() / len(batches) for name, value in total.items()}
