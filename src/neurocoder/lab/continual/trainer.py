"""The trainer: one model, one method, one task after the other."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import torch
from torch import Tensor, nn

from ..validate import Count, Range, check
from .evaluation import accuracy_on, device_of, width
from .methods import Method
from .methods.base import trainable
from .pool import Part, Pool, permutation
from .step import Step
from .tasks import Task

MakeOptimiser = Callable[[list[nn.Parameter]], torch.optim.Optimizer]
AfterStep = Callable[["Trainer"], Any]


class Trainer:
    """Trains a model on a sequence of tasks.

    The loss is the cross-entropy over the labels that the tasks so far brought to the head, plus the auxiliary loss of
    the coded layers that ran, plus the method's penalty. Parameters that the loss does not reach, such as idle heads,
    have no gradient and do not move. On a GPU the steps of a task are one CUDA graph.

    Args:
        model: Called as `model(x)`, or `model(x, head)` for tasks with a head; returns logits (N, outputs).
        method: A new method; it holds what it learns.
        optimiser: Makes the optimiser from the list of trainable parameters. To give groups their own rates, close
            over the model: `lambda _: torch.optim.Adam(nc.parameter_groups(model, lr=1e-3, controller_lr=1e-4))`.
        batch: Samples in a step; an epoch's last step takes what is left.
        epochs: Passes over each task's data.
        seed: The order of samples depends on seed, task and epoch only.
        tasks: All tasks, if they are known. Then `matrix` is full (later tasks too), and states hold no test data.
        reset: Whether each task starts with a new optimiser. Hsu et al. keep one for all tasks.
        capture: Whether to capture graphs on a GPU; False for a model that cannot be captured.

    Example:
        >>> trainer = cl.Trainer(nn.Linear(4, 2), cl.EWC(100.0), optimiser=torch.optim.Adam, batch=16)
        >>> for task in tasks:
        ...     trainer.learn(task)
        >>> trainer.matrix.shape
        torch.Size([2, 2])
    """

    def __init__(
        self,
        model: nn.Module,
        method: Method,
        *,
        optimiser: MakeOptimiser,
        batch: int = 128,
        epochs: int = 4,
        seed: int = 0,
        tasks: Sequence[Task] = (),
        reset: bool = False,
        capture: bool = True,
    ) -> None:
        if not isinstance(model, nn.Module) or not trainable(model):
            raise ValueError(f"model must be an nn.Module with trainable parameters, got {type(model).__name__}")
        if not isinstance(method, Method):
            raise ValueError(f"method must be a method such as EWC(100.0), got {method!r}")
        if any(method.state_dict().values()):
            raise ValueError("method must be new, got one that has learned tasks: its anchors are another model's")
        self.model, self.method = model, method
        self.batch, self.epochs = check("batch", batch, Count), check("epochs", epochs, Count)
        self.seed = check("seed", seed, Annotated[int, Range(0)])
        self.tasks = list(tasks)
        self.task = 0
        """How many tasks are learned: the index of the current one."""
        self.step = 0
        """How many steps of the current task are taken."""
        self._make, self._reset, self._capture = optimiser, reset, capture
        self._brought: list[tuple[int | None, list[int]]] = []  # each begun task's head and labels
        self._tests: list[Part] = []
        self._rows: list[list[float]] = []
        self.reset_optimiser()

    def reset_optimiser(self) -> None:
        """Start with a new optimiser."""
        self.optimiser = self._make(list(trainable(self.model).values()))
        if not isinstance(self.optimiser, torch.optim.Optimizer):
            raise ValueError(f"optimiser must return a torch optimiser, got {type(self.optimiser).__name__}")

    @property
    def matrix(self) -> Tensor:
        """Accuracy in percent after task i (row) on task j (column): (n, n) for the tasks learned so far, or for all if
        the trainer knows them.

        Unknown entries are NaN. Without `tasks`, the next task's column is filled when it begins, and later ones stay
        unknown.
        """
        n = len(self.tasks) or self.task
        found = torch.full((n, n), math.nan, dtype=torch.float64)
        for index, row in enumerate(self._rows):
            found[index, : len(row)] = torch.tensor(row[:n], dtype=torch.float64)
        return found

    @property
    def heads(self) -> list[int | None]:
        """The head of each task that has begun."""
        return [head for head, _ in self._brought]

    def seen(self, head: int | None) -> list[int]:
        """The labels that the tasks so far, with the current one, brought to this head."""
        return sorted({label for owner, labels in self._brought if owner == head for label in labels})

    def learn(self, task: Task, after_step: AfterStep | None = None) -> None:
        """Train on the next task, then evaluate on all tasks.

        Args:
            task: The next one, or, after a stop in its middle, the current one: it continues there.
            after_step: Called with the trainer after each step. It may save `state_dict()`, or raise to stop.
        """
        if not isinstance(task, Task):
            raise ValueError(f"task must be a Task, got {type(task).__name__}")
        if self.tasks and not (self.task < len(self.tasks) and task is self.tasks[self.task]):
            raise ValueError(f"task must be tasks[{self.task}], the next of {len(self.tasks)}, got another one")
        if len(self._brought) == self.task:
            self._begin(task)
        self._train(task, after_step)
        self.method.end(self, task)
        self._tests.append(Part(*task.test, task.head))
        tests = [Part(*known.test, known.head) for known in self.tasks] or self._tests
        self._rows.append([accuracy_on(self.model, (x, y), head) for x, y, head, _ in tests])
        self.task, self.step = self.task + 1, 0

    def _begin(self, task: Task) -> None:
        width(self.model, task.train[0], task.head, task.width, max(task.labels) + 1)
        if self._rows and not self.tasks:
            self._rows[-1].append(accuracy_on(self.model, task.test, task.head))
        if self._reset and self.task:
            self.reset_optimiser()
        self.method.begin(self, task)
        self._brought.append((task.head, list(task.labels)))

    def _train(self, task: Task, after_step: AfterStep | None) -> None:
        pool = Pool(self.model, self.method.data(self, task), self.seen)
        self.model.train()
        step = Step(self.model, self.method, self.optimiser, pool, self.batch, self._capture)
        per_epoch = math.ceil(len(pool) / self.batch)
        first = self.step
        for taken in range(first, self.epochs * per_epoch):
            epoch, position = taken // per_epoch, taken % per_epoch * self.batch
            if taken == first or position == 0:
                step.start(permutation(len(pool), self.seed, self.task, epoch), position)
            step.take(min(self.batch, len(pool) - position))
            self.step = taken + 1
            if after_step is not None:
                after_step(self)
        for parameter in self.model.parameters():
            parameter.grad = None  # so that a graph's memory is free

    def _settings(self) -> dict[str, Any]:
        """What must be the same to resume."""
        method = type(self.method).__name__
        return {"method": method, "batch": self.batch, "epochs": self.epochs, "seed": self.seed, "n": len(self.tasks)}

    def state_dict(self) -> dict[str, Any]:
        """All that the next steps depend on, copied to the CPU: nested dicts and lists of tensors, numbers, strings
        and None.

        The generators of torch are part of it. Only the current task's data, and `tasks`, are yours to bring again.
        """
        device = device_of(self.model)
        state = {
            "settings": self._settings(),
            "task": self.task,
            "step": self.step,
            "rows": self._rows,
            "brought": [{"head": head, "labels": labels} for head, labels in self._brought],
            "tests": [] if self.tasks else [test._asdict() for test in self._tests],
            "model": dict(self.model.state_dict()),
            "optimiser": {str(index): entries for index, entries in self.optimiser.state_dict()["state"].items()},
            "method": self.method.state_dict(),
            "generator": torch.get_rng_state(),
            "device_generator": torch.cuda.get_rng_state(device) if device.type == "cuda" else None,
        }
        return copied(state, "cpu")

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a state: call `learn` with its current task."""
        for name, value in self._settings().items():
            if state["settings"][name] != value:
                what = "the number of tasks" if name == "n" else name
                raise ValueError(f"{what} must be the state's {state['settings'][name]!r} to continue, got {value!r}")
        device = device_of(self.model)
        self.task, self.step = state["task"], state["step"]
        self._rows = copied(state["rows"], "cpu")
        self._brought = [(entry["head"], list(entry["labels"])) for entry in state["brought"]]
        self._tests = [Part(**test) for test in copied(state["tests"], "cpu")]
        self.model.load_state_dict(state["model"])
        entries = {int(index): value for index, value in copied(state["optimiser"], "cpu").items()}
        groups = self.optimiser.state_dict()["param_groups"]
        self.optimiser.load_state_dict({"state": entries, "param_groups": groups})
        self.method.load_state_dict(copied(state["method"], device))
        torch.set_rng_state(state["generator"])
        if device.type == "cuda" and state["device_generator"] is not None:
            torch.cuda.set_rng_state(state["device_generator"], device)


def copied(state: Any, device: torch.device | str) -> Any:
    """A copy of nested dicts and lists on this device, which shares no tensor with the original."""
    if isinstance(state, Tensor):
        return state.detach().to(device, copy=True).contiguous()
    if isinstance(state, dict):
        return {key: copied(value, device) for key, value in state.items()}
    if isinstance(state, list | tuple):
        return [copied(value, device) for value in state]
    return state
