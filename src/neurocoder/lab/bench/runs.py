"""A contender ready to be called repeatedly: eager, compiled, or captured in a CUDA graph."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import neurocoder as nc

from .cases import COMPILED, Case, Group, Settings
from .check import BOUNDS, STACKED_GRADIENTS, Refused, compare, compare_gradients, error, require
from .contenders import Subject, plain, randomise_zeros, recoded, reference

INPUT = "(input)"


class Run:
    """One contender in one group. Calling it does the work that is timed and returns the results."""

    def __init__(self, name: str, module: nn.Module, group: Group, device: str) -> None:
        self.name, self.module, self.group, self.device = name, module, group, device
        self.leaves: dict[str, Tensor] = dict(module.named_parameters())
        self.call: Callable[[], Any] = self.work
        self.held: dict[str, Tensor | None] | None = None

    def work(self) -> Any:
        """The work in eager or compiled mode; returns the outputs."""
        raise NotImplementedError

    def check(self) -> dict[str, float]:
        """Run once and compare; returns the relative errors or raises `Refused`."""
        raise NotImplementedError

    def __call__(self) -> Any:
        return self.call()

    def prepare(self) -> None:
        """Capture the work in a CUDA graph if the group asks for it. Replays write to the captured tensors."""
        if self.group.mode != "graph":
            return
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                self.work()
        torch.cuda.current_stream().wait_stream(stream)
        torch.cuda.empty_cache()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            outputs = self.work()
        self.held = self.gradients()

        def replay() -> Any:
            graph.replay()
            return outputs

        self.call = replay

    def clear(self) -> None:
        """Drop all gradients."""
        for leaf in self.leaves.values():
            leaf.grad = None

    def gradients(self) -> dict[str, Tensor | None]:
        """Of the last call, by name of the leaf."""
        return self.held or {name: leaf.grad for name, leaf in self.leaves.items()}

    def poison(self) -> None:
        """Overwrite a graph's results with NaN, so that one that it fails to write again shows."""
        if self.held is not None:
            with torch.no_grad():
                for tensor in (*self(), *self.held.values()):
                    if tensor is not None:
                        tensor.fill_(float("nan"))

    def autocast(self) -> torch.autocast:
        """bfloat16 if the group asks for it."""
        return torch.autocast(self.device, torch.bfloat16, enabled=self.group.dtype == "bfloat16")


class LayerRun(Run):
    """A layer on a batch: forward in inference mode, or forward and backward to parameters and input."""

    def __init__(self, subject: Subject, x: Tensor, grad: Tensor, group: Group, device: str) -> None:
        module = copy.deepcopy(subject.module) if group.mode == "graphed" else subject.module  # graphing changes it
        super().__init__(subject.name, module, group, device)
        self.exact, self.training = subject.exact, group.direction == "forward+backward"
        dtype = getattr(torch, group.dtype)
        self.x = x.to(dtype).detach().requires_grad_(self.training)
        self.leaves[INPUT] = self.x
        self.grad = grad.to(dtype, copy=True)
        self.function: Any = self.module
        if group.mode in COMPILED:
            self.function = torch.compile(self.module, fullgraph=True, **COMPILED[group.mode])
        if group.mode == "graphed":
            sample = self.x.detach().clone().requires_grad_()
            self.function = torch.cuda.make_graphed_callables(self.module, (sample,))

    def work(self) -> tuple[Tensor, ...]:
        if not self.training:
            with torch.inference_mode(), self.autocast():
                return (self.function(self.x),)
        self.clear()
        with self.autocast():
            y = self.function(self.x)
        y.backward(self.grad)
        return (y.detach(),)

    def check(self) -> dict[str, float]:
        before, rows = self.grad.clone(), self.exact.rows
        self.grad.zero_()
        self.grad[rows] = before[rows]
        self.poison()
        (y,) = self()
        gradients = dict(self.gradients())
        self.grad.copy_(before)
        x_grad = gradients.pop(INPUT)
        return compare(self.exact, self.group.dtype, y, x_grad, gradients if self.training else None)


class StepRun(Run):
    """A whole training step of an MLP: forward, loss, backward, Adam."""

    def __init__(self, name: str, case: Case, group: Group, settings: Settings) -> None:
        torch.manual_seed(settings.seed)
        module = (recoded if name == "recoded" else plain)(case)
        randomise_zeros(module)
        x, labels = torch.randn(case.batch, case.widths[0]), torch.randint(case.widths[-1], (case.batch,))
        self.x, self.labels, self.rows = (
            x.to(settings.device),
            labels.to(settings.device),
            slice(min(2, settings.check_rows)),
        )
        super().__init__(name, module.to(settings.device), group, settings.device)
        self.optimiser = torch.optim.Adam(self.module.parameters(), 1e-4, fused=True, capturable=self.device == "cuda")

    def loss(self, module: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
        """The task loss plus the coded layers' auxiliary loss, and the logits."""
        logits = module(x)
        task = cross_entropy(logits, self.labels)
        return (task + nc.auxiliary_loss(module) if self.name == "recoded" else task), logits

    def work(self) -> tuple[Tensor, ...]:
        self.optimiser.zero_grad()
        with self.autocast():
            loss, logits = self.loss(self.module, self.x)
        loss.backward()
        self.optimiser.step()
        return loss.detach(), logits.detach()

    def check(self) -> dict[str, float]:
        self.poison()
        self.clear()
        before = {name: leaf.detach().clone() for name, leaf in self.leaves.items()}
        twin: Any = copy.deepcopy(self.module).double()
        expected = self.x[self.rows].double()
        with torch.no_grad():
            for layer in twin:
                expected = reference(layer, expected) if isinstance(layer, nc.Linear) else layer(expected)
        with nc.backend("torch"):
            exact, _ = self.loss(twin, self.x.double())
        exact.backward()
        loss, logits = self()
        errors = {"the loss": error(loss, exact.detach()), "outputs": error(logits[self.rows], expected)}
        require(errors, BOUNDS[self.group.dtype])
        targets = {name: leaf.grad for name, leaf in twin.named_parameters() if leaf.grad is not None}
        errors["the parameters' gradient"] = compare_gradients(
            self.gradients(), targets, self.group.dtype, STACKED_GRADIENTS
        )
        for name, old in before.items():
            if name in targets and torch.equal(old, self.leaves[name]):
                raise Refused(f"the step does not move {name}")
        return errors
