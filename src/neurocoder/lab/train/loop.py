"""Training of a spec in the context of a run.

A *stepper* takes the steps: eagerly here, as one CUDA graph in `graphs.py`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from ..networks import eval_mode
from ..records.record import OWN
from .context import Context, TrainingError
from .spec import TrainSpec


class Stepper:
    """Takes the steps eagerly."""

    def __init__(self, spec: TrainSpec, context: Context) -> None:
        self._spec, self._context = spec, context
        spec.model.train()
        self._parameters = {name: entry for name, entry in spec.model.named_parameters() if entry.requires_grad}
        self._tensors = spec.model.state_dict(keep_vars=True)
        self._block = spec.stream.steps
        self.taken = 0
        self.clock = torch.zeros((), dtype=torch.int64, device=context.device)
        """`taken`, on the device."""
        self.total = torch.zeros((), dtype=torch.float64, device=context.device)
        """Sum of the losses since it was last set to zero."""
        self.optimiser = spec.optimiser(list(self._parameters.items()), spec.learning_rate)
        self._rates = [float(group["lr"]) for group in self.optimiser.param_groups]

    def loss(self, position: Tensor) -> Tensor:
        """(), on the batch at this position () in the block."""
        batch = self._spec.stream.batch(position)
        if self._context.precision == "bf16-mixed":  # the data too: all records of this precision were made so
            batch = tuple(tensor.bfloat16() if tensor.is_floating_point() else tensor for tensor in batch)
        with self._context.autocast():
            return self._spec.loss(self._spec.model, batch)

    def _prepare(self) -> None:
        """Set the learning rates of the next step."""
        factor = self._spec.schedule(self.taken)
        for group, rate in zip(self.optimiser.param_groups, self._rates, strict=True):
            group["lr"] = rate * factor

    def _operations(self) -> None:
        """One step; apart from the learning rates, nothing in it depends on values on the host."""
        self._prepare()
        self.optimiser.zero_grad()
        loss = self.loss(self.clock % self._block)
        loss.backward()
        if self._spec.clip is not None:
            nn.utils.clip_grad_norm_(self._parameters.values(), self._spec.clip)
        self.optimiser.step()
        self.total += loss.detach()
        self.clock += 1

    def step(self) -> None:
        """Take a step."""
        if self.taken % self._block == 0:
            self._spec.stream.fill(self.taken // self._block)
        self._operations()
        self.taken += 1

    def state(self) -> dict[str, Any]:
        """All that the next steps depend on."""
        optimiser = self.optimiser.state_dict()["state"]
        return {"taken": self.taken, "model": self._tensors, "optimiser": optimiser, "total": self.total}

    def load(self, state: Mapping[str, Any]) -> None:
        """Resume from a state."""
        with torch.no_grad():
            for name, tensor in self._tensors.items():
                tensor.copy_(state["model"][name])
        rates = [group["lr"] for group in self.optimiser.param_groups]
        groups = self.optimiser.state_dict()["param_groups"]
        self.optimiser.load_state_dict({"state": state["optimiser"], "param_groups": groups})
        for group, rate in zip(self.optimiser.param_groups, rates, strict=True):
            group["lr"] = rate  # the same tensor object, since a graph reads it
        self.total.fill_(state["total"].item())
        self.taken = state["taken"]
        self.clock.fill_(self.taken)
        self._spec.stream.fill(self.taken // self._block)


@contextmanager
def evaluating(model: nn.Module, context: Context) -> Iterator[None]:
    """The model in eval mode, without gradients, in the run's precision."""
    with eval_mode(model), torch.no_grad(), context.autocast():
        yield


class Training:
    """Trains the model of a spec."""

    def __init__(self, context: Context, spec: TrainSpec, stepper: Stepper) -> None:
        self.context, self.spec, self.stepper = context, spec, stepper

    def run(self) -> None:
        """Train from the current step to the end."""
        context, spec = self.context, self.spec
        context.describe(spec.model)
        if (saved := context.restored) is not None:
            self.stepper.load(saved)
        while self.stepper.taken < spec.steps:
            self.stepper.step()
            taken = self.stepper.taken
            last = taken == spec.steps
            if last or taken % spec.evaluate_every == 0:
                self._evaluate()
            context.progress(taken, spec.steps, loss=self._recent_loss)
            if not last and context.should_save:
                context.save(**self.stepper.state())
        with evaluating(spec.model, context):
            context.observe(spec.observe(spec.model))

    def _steps(self) -> int:
        """Steps since the last evaluation."""
        return self.stepper.taken - int(self.context.history[-1]["step"] if self.context.history else 0)

    def _recent_loss(self) -> float:
        """The mean since the last evaluation; waits for the device."""
        steps = self._steps()
        return float(self.stepper.total) / steps if steps else self.context.history[-1]["loss"]

    def _evaluate(self) -> None:
        """Extend the history. A loss that is not finite ends the run."""
        context, spec, step = self.context, self.spec, self.stepper.taken
        loss = (self.stepper.total / self._steps()).item()
        self.stepper.total.zero_()
        if not math.isfinite(loss):
            raise TrainingError(f"the training loss is {loss} at step {step}")
        with evaluating(spec.model, context):
            metrics = spec.evaluate(spec.model)
        if taken := set(OWN) & set(metrics):
            raise ValueError(f"evaluate must not name a metric {' or '.join(OWN)}, got {taken.pop()!r}")
        context.log(step, **{"loss": loss, **metrics})


def train(context: Context, spec: TrainSpec) -> None:
    """Train the spec as the context's loop says: eagerly, or as a CUDA graph."""
    from .graphs import GraphStepper

    if spec.steps < 1:
        raise TrainingError(f"a run must have at least one step, got {spec.steps}")
    stepper = (GraphStepper if context.loop == "graph" else Stepper)(spec, context)
    torch.manual_seed(context.seed)
    Training(context, spec, stepper).run()
