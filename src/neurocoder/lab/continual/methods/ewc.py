"""Elastic weight consolidation (Kirkpatrick et al., 2017) and its online form (Schwarz et al., 2018)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.functional import log_softmax

from ...networks import eval_mode
from ..evaluation import device_of, outputs
from ..tasks import Task
from .base import trainable
from .quadratic import Quadratic, Term

if TYPE_CHECKING:
    from ..trainer import Trainer

ELEMENTS = {"cpu": 2**22, "cuda": 2**29}
"""Gradients in memory at once: on a CPU, what fits into a cache."""


def fisher(model: nn.Module, x: Tensor, head: int | None, classes: list[int]) -> dict[str, Tensor]:
    """`F_i = 1/N sum_x (d log p(y' | x) / d theta_i)^2` with the model's own label `y' = argmax_y p(y | x)`.

    Per sample, over all samples, in eval mode, as in Hsu et al.; Kirkpatrick et al. draw y' from p. The auxiliary loss
    of coded layers is no part of p.

    Args:
        model: The model.
        x: (N, ...)
        head: The head that answers.
        classes: The outputs that p is over.
    """
    parameters, device = trainable(model), device_of(model)
    values = {name: entry.detach() for name, entry in parameters.items()}
    fixed = {name: entry for name, entry in (*model.named_parameters(), *model.named_buffers()) if name not in values}
    chosen = torch.tensor(classes, device=device)
    extra = () if head is None else (head,)

    def surprise(logits: Tensor) -> Tensor:
        """-log p(y' | x) for outputs (1, C)."""
        return -log_softmax(logits.index_select(1, chosen), dim=1).max(1).values.sum()

    def loss(values: dict[str, Tensor], sample: Tensor) -> Tensor:
        return surprise(functional_call(model, values | fixed, (sample.unsqueeze(0), *extra)))

    def squares(sample: Tensor) -> dict[str, Tensor]:
        return {name: gradient.mul_(gradient) for name, gradient in grad(loss)(values, sample).items()}

    def squares_alone(sample: Tensor) -> dict[str, Tensor]:
        result = surprise(outputs(model, sample.unsqueeze(0), head))
        found = torch.autograd.grad(result, list(parameters.values()), allow_unused=True, materialize_grads=True)
        return {name: gradient.square() for name, gradient in zip(parameters, found, strict=True)}

    total = {name: torch.zeros_like(value) for name, value in values.items()}
    rows = max(1, ELEMENTS.get(device.type, 2**22) // sum(value.numel() for value in values.values()))
    with eval_mode(model):
        for chunk in x.split(rows):
            samples = chunk.to(device)
            try:
                found = vmap(squares)(samples)
            except RuntimeError:  # a layer that torch.func cannot batch
                alone = [squares_alone(sample) for sample in samples]
                found = {name: torch.stack([entry[name] for entry in alone]) for name in values}
            for name, square in found.items():
                total[name] += square.sum(0)
    return {name: value / len(x) for name, value in total.items()}


class OnlineEWC(Quadratic):
    """`lambda sum_i (sum_t F_ti) (theta_i - theta*_i)^2` with the latest anchor.

    As in Hsu et al. the sum does not decay (gamma = 1 in Schwarz et al.).

    Example:
        >>> trainer = cl.Trainer(nn.Linear(4, 2), cl.OnlineEWC(100.0), optimiser=torch.optim.Adam)
        >>> for task in tasks:
        ...     trainer.learn(task)
        >>> trainer.method.penalty(trainer.model).shape
        torch.Size([])
    """

    def importance(self, trainer: Trainer, task: Task) -> dict[str, Tensor]:
        return fisher(trainer.model, task.train[0], task.head, trainer.seen(task.head))


class EWC(OnlineEWC):
    """`lambda sum_t sum_i F_ti (theta_i - theta*_ti)^2`: each task keeps its own Fisher information and anchor.

    Example:
        >>> trainer = cl.Trainer(nn.Linear(4, 2), cl.EWC(100.0), optimiser=torch.optim.Adam)
        >>> for task in tasks:
        ...     trainer.learn(task)
        >>> trainer.method.penalty(trainer.model).shape
        torch.Size([])
    """

    def merge(self, term: Term) -> list[Term]:
        return [*self.terms, term]
