"""The training loop with its evaluations, for any learner and stepper.

A *learner* is what is trained: one model here, several seeds as one in `stacked.py`. A *stepper* takes the steps:
eagerly here, as one CUDA graph in `graphs.py`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from numbers import Real
from typing import Any, Protocol, cast

import torch
from lightning_fabric import Fabric
from torch import Tensor, nn

from .experiments import Task
from .results import OWN

AGREE_EVERY = 16
"""Processes agree on whether to save or stop once per this many steps: every step would be slow."""

REPORT_EVERY = 0.5
"""Seconds between progress reports."""

Report = Callable[[int, int, float], None]
"""Receives progress: step, total steps, mean loss since the last evaluation."""


class TrainingError(RuntimeError):
    """A run that cannot continue; raised in all processes that share it."""


class Objective(nn.Module):
    """A task's loss as one module, so that DDP and `functional_call` see all of it."""

    def __init__(self, task: Task) -> None:
        super().__init__()
        self.model = task.model
        self.loss = task.loss

    def forward(self, *batch: Tensor) -> Tensor:
        """The batch's tensors -> ()"""
        return self.loss(self.model, batch)


class Learner(Protocol):
    """What is trained."""

    parameters: list[Tensor]
    """For the optimiser."""
    tensors: dict[str, Tensor]
    """Everything that training changes, for checkpoints."""

    def fill(self, block: int) -> None:
        """Load a block of the streams."""

    def losses(self, position: Tensor) -> Tensor:
        """(n,), one per seed, on the batch at this position () in the block."""

    def clip(self, limit: float) -> None:
        """Clip each seed's gradient to a norm of at most `limit`."""

    def models(self) -> Sequence[nn.Module]:
        """Each seed's model in its current state."""


class Single:
    """One model; each of n processes takes every n-th row of a batch."""

    def __init__(self, task: Task, fabric: Fabric) -> None:
        self._task, self._fabric = task, fabric
        task.model.train()
        self._objective = fabric.setup_module(Objective(task))
        self.parameters: list[Tensor] = [entry for entry in task.model.parameters() if entry.requires_grad]
        self.tensors = task.model.state_dict(keep_vars=True)

    def fill(self, block: int) -> None:
        self._task.stream.fill(block)

    def losses(self, position: Tensor) -> Tensor:
        batch, rank, world = self._task.stream.batch(position), self._fabric.global_rank, self._fabric.world_size
        if world > 1:
            if len(batch[0]) % world:
                raise TrainingError(f"a batch of {len(batch[0])} cannot be split over {world} processes")
            batch = tuple(tensor[rank::world] for tensor in batch)
        return self._objective(*batch).unsqueeze(0)

    def clip(self, limit: float) -> None:
        nn.utils.clip_grad_norm_(self.parameters, limit)

    def models(self) -> Sequence[nn.Module]:
        return [self._task.model]


class Stepper:
    """Takes the steps eagerly."""

    name = "plain"

    def __init__(self, learner: Learner, tasks: Sequence[Task], fabric: Fabric) -> None:
        self._learner, self._task, self._fabric = learner, tasks[0], fabric
        self._block = self._task.stream.steps
        self.taken = 0
        self.clock = torch.zeros((), dtype=torch.int64, device=fabric.device)
        """`taken`, on the device."""
        self.total = torch.zeros(len(tasks), dtype=torch.float64, device=fabric.device)
        """Sum of the losses (n,) since it was last set to zero."""
        self.optimiser = self._optimiser()

    def _optimiser(self) -> torch.optim.Optimizer:
        return self._task.optimiser(self._learner.parameters, self._task.learning_rate)

    def _prepare(self) -> None:
        """Set the learning rate of the next step."""
        rate = self._task.learning_rate * self._task.schedule(self.taken)
        for group in self.optimiser.param_groups:
            group["lr"] = rate

    def _operations(self) -> None:
        """One step; apart from the learning rate, nothing in it depends on values on the host."""
        self._prepare()
        self.optimiser.zero_grad()
        losses = self._learner.losses(self.clock % self._block)
        self._fabric.backward(losses.sum())
        if self._task.clip is not None:
            self._learner.clip(self._task.clip)
        self.optimiser.step()
        self.total += losses.detach()
        self.clock += 1

    def step(self) -> None:
        """Take a step."""
        if self.taken % self._block == 0:
            self._learner.fill(self.taken // self._block)
        self._operations()
        self.taken += 1

    def state(self) -> dict[str, Tensor]:
        """Copies of all tensors that the next steps depend on, on the CPU."""
        found = {f"model.{name}": tensor for name, tensor in self._learner.tensors.items()}
        for index, entries in self.optimiser.state_dict()["state"].items():
            found |= {f"optimiser.{index}.{key}": value for key, value in entries.items() if value is not None}
        found |= {"total": self.total, "generator": torch.get_rng_state()}
        if self.clock.is_cuda:
            found["generator.cuda"] = torch.cuda.get_rng_state(self.clock.device)
        return {name: tensor.detach().cpu().clone().contiguous() for name, tensor in found.items()}

    def load(self, state: dict[str, Tensor], taken: int) -> None:
        """Resume from a state after this many steps."""
        with torch.no_grad():
            for name, tensor in self._learner.tensors.items():
                tensor.copy_(state[f"model.{name}"])
        entries: dict[int, dict[str, Tensor]] = {}
        for name, tensor in state.items():
            if name.startswith("optimiser."):
                _, index, key = name.split(".", 2)
                entries.setdefault(int(index), {})[key] = tensor
        rates = [group["lr"] for group in self.optimiser.param_groups]
        self.optimiser.load_state_dict({"state": entries, "param_groups": self.optimiser.state_dict()["param_groups"]})
        for group, rate in zip(self.optimiser.param_groups, rates, strict=True):
            group["lr"] = rate  # the same tensor object, since a graph reads it
        self.total.copy_(state["total"])
        torch.set_rng_state(state["generator"])
        if self.clock.is_cuda:
            torch.cuda.set_rng_state(state["generator.cuda"], self.clock.device)
        self.taken = taken
        self.clock.fill_(taken)
        self._learner.fill(taken // self._block)


@dataclass
class Course:
    """The progress of a training, apart from its tensors. One history per seed."""

    step: int
    histories: list[list[dict[str, float]]]
    seconds: float = 0.0


@dataclass
class Guard:
    """What may stop or save a running training."""

    stopped: Callable[[], int] = lambda: 0
    """The stop signal, or 0."""
    save: Callable[[dict[str, Tensor], Course], None] | None = None
    interval: float = math.inf
    """Seconds between saves."""
    report: Report | None = None


class Interrupted(Exception):
    """A training that was stopped by a signal, and saved if possible."""

    def __init__(self, signal: int) -> None:
        super().__init__(signal)
        self.signal = signal


@contextmanager
def evaluating(model: nn.Module, fabric: Fabric) -> Iterator[None]:
    """The model in eval mode, without gradients, in the run's precision."""
    model.eval()
    try:
        with torch.no_grad(), fabric.autocast():
            yield
    finally:
        model.train()


def _numbers(metrics: Mapping[str, Any]) -> dict[str, float]:
    """The metrics of an evaluation as a record stores them."""
    for name, value in metrics.items():
        if name in OWN:
            raise ValueError(f"evaluate must not name a metric {' or '.join(OWN)}, got {name!r}")
        if not isinstance(value, Real):
            raise ValueError(f"evaluate must return numbers (.item() of a tensor), got {value!r} as {name!r}")
    return {name: value if isinstance(value, int | float) else float(value) for name, value in metrics.items()}


@dataclass
class Training:
    """Trains the models of tasks that differ only in the seed."""

    tasks: Sequence[Task]
    learner: Learner
    stepper: Stepper
    fabric: Fabric
    course: Course = field(init=False)

    def __post_init__(self) -> None:
        self.course = Course(0, [[] for _ in self.tasks])

    def run(self, guard: Guard) -> None:
        """Train from the current step to the end."""
        task, course, begun = self.tasks[0], self.course, time.monotonic()
        before, saved, reported = course.seconds, begun, begun
        while course.step < task.steps:
            self.stepper.step()
            course.step = self.stepper.taken
            last = course.step == task.steps
            if last or course.step % task.evaluate_every == 0:
                self._evaluate()
            now = time.monotonic()
            course.seconds = before + now - begun
            if guard.report is not None and now - reported > REPORT_EVERY:
                reported = now
                guard.report(course.step, task.steps, self._recent_loss())
            signal, due = self._agree(guard.stopped(), now - saved > guard.interval)
            if (signal or due) and not last:
                if guard.save is not None:
                    guard.save(self._shared_state(), course)
                    saved = time.monotonic()
                if signal:
                    raise Interrupted(signal)

    def resume(self, state: dict[str, Tensor], course: Course) -> None:
        """Continue from a saved state."""
        self.stepper.load(state, course.step)
        self.course = course

    def diverged(self, index: int) -> int | None:
        """The step at which this seed's loss was first not finite, or None."""
        history = self.course.histories[index]
        return int(history[-1]["step"]) if history and not math.isfinite(history[-1]["loss"]) else None

    def observe(self, index: int) -> dict[str, Any]:
        """What a task keeps from its trained model."""
        model = self.learner.models()[index]
        with evaluating(model, self.fabric):
            return self.tasks[index].observe(model)

    def _mean(self) -> Tensor:
        """The mean loss (n,) since the last evaluation, in this process."""
        evaluated = max((history[-1]["step"] for history in self.course.histories if history), default=0)
        return self.stepper.total / (self.course.step - evaluated)

    def _recent_loss(self) -> float:
        """The mean over seeds, for progress reports; waits for the device."""
        loss = float(self._mean().nanmean())
        return self.course.histories[0][-1]["loss"] if math.isnan(loss) and self.course.histories[0] else loss

    def _evaluate(self) -> None:
        """Extend the histories; only the first process evaluates, but all see the losses. A seed whose loss is not
        finite is dropped; its history ends there."""
        losses = self._over_processes(self._mean(), "mean").tolist()
        self.stepper.total.zero_()
        models = self.learner.models()
        for index, (task, model, loss) in enumerate(zip(self.tasks, models, losses, strict=True)):
            if self.diverged(index) is not None:
                continue
            entry = {"step": self.course.step, "loss": loss}
            if self.fabric.is_global_zero and math.isfinite(loss):
                with evaluating(model, self.fabric):
                    entry |= _numbers(task.evaluate(model))
            self.course.histories[index].append(entry)
        if all(self.diverged(index) is not None for index in range(len(self.tasks))):
            raise TrainingError(f"the training loss is {losses[0]} at step {self.diverged(0)}")

    def _agree(self, signal: int, due: bool) -> tuple[int, bool]:
        """Several processes save and stop together: a signal to any stops all; the first decides when to save."""
        if self.fabric.world_size == 1:
            return signal, due
        if self.course.step % AGREE_EVERY:
            return 0, False
        wish = torch.tensor([signal, int(due and self.fabric.is_global_zero)], device=self.fabric.device)
        stop, save = self._over_processes(wish, "max").tolist()
        return stop, bool(save)

    def _shared_state(self) -> dict[str, Tensor]:
        """The state with the mean loss of all processes; their models are identical."""
        self.stepper.total.copy_(self._over_processes(self.stepper.total.clone(), "mean"))
        return self.stepper.state()

    def _over_processes(self, tensor: Tensor, kind: str) -> Tensor:
        """Its mean or maximum over processes; may overwrite the tensor."""
        return cast(Tensor, self.fabric.all_reduce(tensor, reduce_op=kind))
