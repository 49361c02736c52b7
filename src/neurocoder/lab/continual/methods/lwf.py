"""Learning without forgetting (Li and Hoiem, 2017)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import log_softmax, softmax

from ...validate import NonNegative, Positive, check
from ..evaluation import all_outputs, outputs
from ..pool import Batch
from ..tasks import Task
from .base import Method

if TYPE_CHECKING:
    from ..trainer import Trainer


class Lesson(NamedTuple):
    """What a head answered to the new task's inputs before the task."""

    head: int | None
    tasks: int
    """How many earlier tasks the head serves."""
    classes: Tensor
    """The outputs (C,) of the labels seen by now, with the new task's."""
    targets: Tensor
    """Softened probabilities (N, C); 0 for new classes."""


class LwF(Method):
    """On the new task's inputs, the model shall answer for earlier tasks as it did before.

        lambda T^2 sum over earlier tasks of - sum_y p_y log q_y      p = softmax(before / T), q = softmax(now / T)

    averaged over the batch. In the domain and class scenarios all earlier tasks share one head, whose term counts once
    for each. Up to a factor common to loss and penalty, these are the weights 1/n and 1 - 1/n of van de Ven and Tolias
    (2018), whose figures Hsu et al. show. In Li and Hoiem there is no factor T^2.

    Args:
        coefficient: lambda.
        temperature: T.

    Example:
        >>> trainer = cl.Trainer(nn.Linear(4, 2), cl.LwF(1.0), optimiser=torch.optim.Adam)
        >>> for task in tasks:
        ...     trainer.learn(task)
        >>> trainer.method.penalty(trainer.model).shape
        torch.Size([])
    """

    reads_inputs = True

    def __init__(self, coefficient: float = 1.0, temperature: float = 2.0) -> None:
        self.coefficient = check("coefficient", coefficient, NonNegative)
        self.temperature = check("temperature", temperature, Positive)
        self.lessons: list[Lesson] = []
        self._batch: Batch | None = None

    def begin(self, trainer: Trainer, task: Task) -> None:
        self.lessons, self._batch = [], None
        for head in dict.fromkeys(trainer.heads):
            old = trainer.seen(head)
            classes = sorted({*old, *task.labels}) if head == task.head else old
            before = all_outputs(trainer.model, task.train[0], head)
            targets = before.new_zeros(before.shape)
            targets[:, old] = softmax(before[:, old] / self.temperature, dim=1)
            chosen = torch.tensor(classes, device=before.device)
            self.lessons.append(Lesson(head, trainer.heads.count(head), chosen, targets[:, chosen]))

    def before_step(self, batch: Batch) -> None:
        self._batch = batch

    def penalty(self, model: nn.Module) -> Tensor:
        """The term () on the latest batch."""
        if self._batch is None or not self.lessons:
            return super().penalty(model)
        terms = []
        for lesson in self.lessons:
            logits = outputs(model, self._batch.x, lesson.head).index_select(1, lesson.classes)
            targets = lesson.targets.index_select(0, self._batch.rows)
            surprise = -(targets * log_softmax(logits / self.temperature, dim=1)).sum(1).mean()
            terms.append(lesson.tasks * surprise)
        return self.coefficient * self.temperature**2 * torch.stack(terms).sum()

    def state_dict(self) -> dict[str, Any]:
        return {"lessons": [lesson._asdict() for lesson in self.lessons]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.lessons = [Lesson(**lesson) for lesson in state["lessons"]]
