"""Training of tasks in the context of a run, for any learner and stepper.

A *learner* is what is trained: one model here, several seeds as one in `stacked.py`. A *stepper* takes the steps:
eagerly here, as one CUDA graph in `graphs.py`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, cast

import torch
from lightning_fabric import Fabric
from torch import Tensor, nn

from ..records.record import OWN
from .context import Context, TrainingError
from .spec import Task


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

    parameters: dict[str, Tensor]
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
        self.parameters: dict[str, Tensor] = {
            name: entry for name, entry in task.model.named_parameters() if entry.requires_grad
        }
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
        nn.utils.clip_grad_norm_(self.parameters.values(), limit)

    def models(self) -> Sequence[nn.Module]:
        return [self._task.model]


class Stepper:
    """Takes the steps eagerly."""

    def __init__(self, learner: Learner, tasks: Sequence[Task], fabric: Fabric) -> None:
        self._learner, self._task, self._fabric = learner, tasks[0], fabric
        self._block = self._task.stream.steps
        self.taken = 0
        self.clock = torch.zeros((), dtype=torch.int64, device=fabric.device)
        """`taken`, on the device."""
        self.total = torch.zeros(len(tasks), dtype=torch.float64, device=fabric.device)
        """Sum of the losses (n,) since it was last set to zero."""
        self.optimiser = self._task.optimiser(list(learner.parameters.items()), self._task.learning_rate)
        self._rates = [float(group["lr"]) for group in self.optimiser.param_groups]

    def _prepare(self) -> None:
        """Set the learning rates of the next step."""
        factor = self._task.schedule(self.taken)
        for group, rate in zip(self.optimiser.param_groups, self._rates, strict=True):
            group["lr"] = rate * factor

    def _operations(self) -> None:
        """One step; apart from the learning rates, nothing in it depends on values on the host."""
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

    def state(self) -> dict[str, Any]:
        """All that the next steps depend on."""
        optimiser = self.optimiser.state_dict()["state"]
        return {"taken": self.taken, "model": self._learner.tensors, "optimiser": optimiser, "total": self.total}

    def load(self, state: Mapping[str, Any]) -> None:
        """Resume from a state."""
        with torch.no_grad():
            for name, tensor in self._learner.tensors.items():
                tensor.copy_(state["model"][name])
        rates = [group["lr"] for group in self.optimiser.param_groups]
        groups = self.optimiser.state_dict()["param_groups"]
        self.optimiser.load_state_dict({"state": state["optimiser"], "param_groups": groups})
        for group, rate in zip(self.optimiser.param_groups, rates, strict=True):
            group["lr"] = rate  # the same tensor object, since a graph reads it
        self.total.copy_(state["total"])
        self.taken = state["taken"]
        self.clock.fill_(self.taken)
        self._learner.fill(self.taken // self._block)


@contextmanager
def evaluating(model: nn.Module, fabric: Fabric) -> Iterator[None]:
    """The model in eval mode, without gradients, in the run's precision."""
    model.eval()
    try:
        with torch.no_grad(), fabric.autocast():
            yield
    finally:
        model.train()


class Training:
    """Trains the models of tasks that differ only in the seed: one for each seed of the context."""

    def __init__(self, context: Context, tasks: Sequence[Task], learner: Learner, stepper: Stepper) -> None:
        self.context, self.tasks, self.learner, self.stepper = context, tasks, learner, stepper
        self.runs = list(context.runs.values())

    def run(self) -> None:
        """Train from the current step to the end."""
        context, task = self.context, self.tasks[0]
        for seed, one in zip(context.seeds, self.tasks, strict=True):
            context.describe(one.model, seed=seed)
        if (saved := context.restored) is not None:
            self.stepper.load(saved)
            for seed, run in context.runs.items():
                if run.history and not math.isfinite(run.history[-1]["loss"]):
                    self._give_up(seed, run.history[-1]["step"])
        while self.stepper.taken < task.steps:
            self.stepper.step()
            taken = self.stepper.taken
            last = taken == task.steps
            if last or taken % task.evaluate_every == 0:
                self._evaluate()
            context.progress(taken, task.steps, loss=self._recent_loss)
            if not last and context.should_save:
                self.stepper.total.copy_(self._over_processes(self.stepper.total.clone()))
                context.save(**self.stepper.state())
        for seed, run, one, model in zip(context.seeds, self.runs, self.tasks, self.learner.models(), strict=True):
            if context.fabric.is_global_zero and run.failure is None:
                with evaluating(model, context.fabric):
                    context.observe(one.observe(model), seed=seed)

    def _mean(self) -> Tensor:
        """The mean loss (n,) since the last evaluation, in this process."""
        evaluated = max((run.history[-1]["step"] for run in self.runs if run.history), default=0)
        return self.stepper.total / (self.stepper.taken - evaluated)

    def _recent_loss(self) -> float:
        """The mean over seeds, for progress reports; waits for the device."""
        loss = float(self._mean().nanmean())
        return self.runs[0].history[-1]["loss"] if math.isnan(loss) and self.runs[0].history else loss

    def _evaluate(self) -> None:
        """Extend the histories; only the first process evaluates, but all see the losses. A seed whose loss is not
        finite is dropped; its history ends there."""
        context, step = self.context, self.stepper.taken
        losses = self._over_processes(self._mean()).tolist()
        self.stepper.total.zero_()
        models = self.learner.models()
        for seed, run, task, model, loss in zip(context.seeds, self.runs, self.tasks, models, losses, strict=True):
            if run.failure is not None:
                continue
            metrics: dict[str, float] = {}
            if not math.isfinite(loss):
                self._give_up(seed, step)
            elif context.fabric.is_global_zero:
                with evaluating(model, context.fabric):
                    metrics = task.evaluate(model)
                if taken := set(OWN) & set(metrics):
                    raise ValueError(f"evaluate must not name a metric {' or '.join(OWN)}, got {taken.pop()!r}")
            context.log(step, seed=seed, **{"loss": loss, **metrics})
        if all(run.failure is not None for run in self.runs):
            raise TrainingError(f"the training loss is {losses[0]} at step {int(self.runs[0].history[-1]['step'])}")

    def _give_up(self, seed: int, step: float) -> None:
        self.context.fail(f"the training loss is not finite at step {step:.0f}", seed=seed)

    def _over_processes(self, tensor: Tensor) -> Tensor:
        """Its mean over processes; may overwrite the tensor."""
        return cast(Tensor, self.context.fabric.all_reduce(tensor, reduce_op="mean"))


def train(context: Context, tasks: Sequence[Task]) -> None:
    """Train one task for each seed of the context, as its loop says: eagerly, as a CUDA graph, or stacked."""
    from .graphs import GraphStepper
    from .stacked import Stacked

    if tasks[0].steps < 1:
        raise TrainingError(f"a run must have at least one step, got {tasks[0].steps}")
    stacked = context.loop == "stacked"
    learner: Learner = Stacked(tasks, context.fabric) if stacked else Single(tasks[0], context.fabric)
    captured = context.loop == "graph" or (stacked and context.device.type == "cuda")
    stepper = (GraphStepper if captured else Stepper)(learner, tasks, context.fabric)
    torch.manual_seed(context.seeds[0])
    Training(context, tasks, learner, stepper).run()
