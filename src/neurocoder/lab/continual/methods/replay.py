"""Methods that train on data of earlier tasks again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor

from ...validate import Count, check
from ..pool import Part, permutation
from ..tasks import Task
from .base import Method

if TYPE_CHECKING:
    from ..trainer import Trainer


class Replay(Method):
    """Holds samples of earlier tasks."""

    def __init__(self) -> None:
        self.memory: list[Part] = []

    def state_dict(self) -> dict[str, Any]:
        return {"memory": [part._asdict() for part in self.memory]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.memory = [Part(**part) for part in state["memory"]]


class Rehearsal(Replay):
    """Naive rehearsal (Hsu et al., 2018): a memory of fixed size, replayed one to one with the new task's data.

    After task t, the memory holds `size // t` samples of each task so far, chosen at random. An epoch is the new data
    and as many whole copies of the memory as fit beside it (at least one), shuffled together, so it has about twice
    the steps.

    Args:
        size: Samples in the memory, 1,100 or 4,400 in Hsu et al.

    Example:
        >>> trainer = cl.Trainer(nn.Linear(4, 2), cl.Rehearsal(20), optimiser=torch.optim.Adam)
        >>> for task in tasks:
        ...     trainer.learn(task)
        >>> trainer.task
        2
    """

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = check("size", size, Count)

    def data(self, trainer: Trainer, task: Task) -> list[Part]:
        copies = max(len(task.train[1]) // self.size, 1)
        return [*self.memory * copies, *super().data(trainer, task)]

    def end(self, trainer: Trainer, task: Task) -> None:
        share = self.size // (trainer.task + 1)
        rows = permutation(len(task.train[1]), trainer.seed, trainer.task, trainer.epochs)[:share]
        x, y = (values[rows.to(values.device)] for values in task.train)
        kept = [part._replace(x=part.x[:share], y=part.y[:share]) for part in self.memory]
        self.memory = [*kept, Part(x, y, task.head, task.width)]


class Offline(Replay):
    """For each task, the model starts anew and trains on the data of all tasks so far: the bound for the others.

    The last row of the matrix is that of Hsu et al., who train once on all tasks. The memory holds all earlier data,
    unless the trainer was given its tasks.

    Example:
        >>> trainer = cl.Trainer(nn.Linear(4, 2), cl.Offline(), optimiser=torch.optim.Adam)
        >>> for task in tasks:
        ...     trainer.learn(task)
        >>> trainer.task
        2
    """

    def __init__(self) -> None:
        super().__init__()
        self.start: dict[str, Tensor] = {}
        """The untrained model."""

    def begin(self, trainer: Trainer, task: Task) -> None:
        if not self.start:
            self.start = {name: value.clone() for name, value in trainer.model.state_dict().items()}
        trainer.model.load_state_dict(self.start)
        trainer.reset_optimiser()

    def data(self, trainer: Trainer, task: Task) -> list[Part]:
        earlier = [Part(*past.train, past.head, past.width) for past in trainer.tasks[: trainer.task]]
        return [*(earlier or self.memory), *super().data(trainer, task)]

    def end(self, trainer: Trainer, task: Task) -> None:
        if not trainer.tasks:
            self.memory.append(Part(*task.train, task.head, task.width))

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "start": self.start}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.start = state["start"]
