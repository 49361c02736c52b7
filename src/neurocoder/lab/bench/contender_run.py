"""A contender ready to be called repeatedly, eager, compiled or captured in a CUDA graph; and checks of its results."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import neurocoder as nc

from ..networks import mlp
from ..train.capture import captured
from . import gpt
from .cases import COMPILED, Group
from .contenders import Contenders, randomise_zeros

INPUT = "(input)"
BOUNDS = {"float32": 1e-3, "bfloat16": 3e-2}
"""Bounds on ||found - exact|| / ||exact|| of outputs."""
GRADIENTS = 10.0
"""Factor on the bound, for the input's gradient and for all parameters' gradients together. Rounding can change which
slot is most used, and in which step; outputs are continuous there, gradients are not."""
STACKED_GRADIENTS = 100.0
"""The same for several layers with ReLUs: TF32 rounding turns units near zero on and off. The plain MLP is off by
2.4% on an H200."""
ONE_GRADIENT, NEGLIGIBLE = 0.5, 1e-3
"""Bound for each parameter's gradient in float32, relative to its norm or to this share of all, whichever is larger.
Some are small differences of large numbers, so only gross errors show."""


class WrongResult(Exception):
    """A contender whose result is wrong."""


def difference(found: Tensor | None, exact: Tensor) -> float:
    """||found - exact||; infinite for a missing tensor or a different shape."""
    if found is None or found.shape != exact.shape:
        return math.inf
    return float((found.double() - exact.double()).norm())


def within(bound: float, name: str, off: float, size: float) -> dict[str, float]:
    """The relative error by name, if it is within the bound; a NaN never is."""
    if not off / size <= bound:
        raise WrongResult(f"relative error of {name} is {off / size:.2g}, over the bound of {bound:g}")
    return {name: off / size}


def close(bound: float, name: str, found: Tensor | None, exact: Tensor) -> dict[str, float]:
    """The relative error of one tensor; raises `WrongResult`."""
    return within(bound, name, difference(found, exact), float(exact.double().norm()))


def close_gradients(
    found: Mapping[str, Tensor | None], exact: Mapping[str, Tensor], dtype: str, factor: float = GRADIENTS
) -> dict[str, float]:
    """The error of all parameters' gradients together, as one vector; raises `WrongResult`."""
    off = {name: difference(found.get(name), target) for name, target in exact.items()}
    size = {name: float(target.double().norm()) for name, target in exact.items()}
    total = math.hypot(*size.values())
    for name in exact if dtype == "float32" else ():
        within(ONE_GRADIENT, f"the gradient of {name}", off[name], max(size[name], NEGLIGIBLE * total))
    return within(factor * BOUNDS[dtype], "the parameters' gradient", math.hypot(*off.values()), total)


class Run:
    """One contender in one group. Calling it does the work that is timed and returns the results."""

    x: Tensor
    grad: Tensor
    """Of the outputs."""

    def __init__(self, name: str, module: nn.Module, group: Group, device: str) -> None:
        self.name, self.module, self.group, self.device = name, module, group, device
        self.bound = BOUNDS[group.dtype]
        self.autocast = torch.autocast(device, torch.bfloat16, enabled=group.dtype == "bfloat16")
        self.leaves: dict[str, Tensor] = dict(module.named_parameters())
        self.function: Any = module
        if group.mode in COMPILED:
            self.function = torch.compile(module, fullgraph=True, **COMPILED[group.mode])
        self.call: Callable[[], tuple[Tensor, ...]] = self.work
        self.held: dict[str, Tensor | None] | None = None

    def work(self) -> tuple[Tensor, ...]:
        """The work in eager or compiled mode; returns the outputs. Here: forward and backward of `function` on `x`."""
        self.clear()
        with self.autocast:
            y = self.function(self.x)
        y.backward(self.grad.to(y.dtype))
        return (y.detach(),)

    def check(self) -> dict[str, float]:
        """Run once and compare; returns the relative errors or raises `WrongResult`."""
        raise NotImplementedError

    def __call__(self) -> tuple[Tensor, ...]:
        return self.call()

    def capture(self) -> None:
        """Capture the work in a CUDA graph. Replays write to the captured tensors."""
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                self.work()
        torch.cuda.current_stream().wait_stream(stream)
        torch.cuda.empty_cache()
        with captured(stream) as graph:
            outputs = self.work()
        self.held = self.gradients()
        for tensor in (*outputs, *self.held.values()):
            if tensor is not None:
                tensor.fill_(math.nan)  # one that replays fail to write shows

        def replay() -> tuple[Tensor, ...]:
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


class LayerRun(Run):
    """A layer on a batch: forward in inference mode, or forward and backward to parameters and input."""

    def __init__(self, name: str, group: Group, contenders: Contenders) -> None:
        self.subject = contenders.subject(name)
        module = copy.deepcopy(self.subject.module) if group.mode == "graphed" else self.subject.module  # it is changed
        super().__init__(name, module, group, contenders.settings.device)
        self.training = group.direction == "forward+backward"
        dtype = getattr(torch, group.dtype)
        self.x = contenders.x.to(dtype).detach().requires_grad_(self.training)
        self.leaves[INPUT] = self.x
        self.grad = contenders.grad.to(dtype, copy=True)
        if group.mode == "graphed":
            sample = self.x.detach().clone().requires_grad_()
            self.function = torch.cuda.make_graphed_callables(module, (sample,))

    def work(self) -> tuple[Tensor, ...]:
        if not self.training:
            with torch.inference_mode(), self.autocast:
                return (self.function(self.x),)
        return super().work()

    def check(self) -> dict[str, float]:
        before, rows = self.grad.clone(), self.subject.rows
        self.grad.zero_()
        self.grad[rows] = before[rows]  # only the checked inputs have a gradient
        (y,) = self()
        gradients = dict(self.gradients())
        self.grad.copy_(before)
        if not bool(y.isfinite().all()):
            raise WrongResult("outputs are not finite")
        errors = close(self.bound, "outputs", y[rows], self.subject.y)
        x_grad = gradients.pop(INPUT)
        if self.training:
            found = None if x_grad is None else x_grad[rows]
            errors |= close(GRADIENTS * self.bound, "the input's gradient", found, self.subject.x_grad)
            errors |= close_gradients(gradients, self.subject.grads, self.group.dtype)
        return errors


class StepRun(Run):
    """A whole training step of an MLP: forward, loss, backward, Adam."""

    def __init__(self, name: str, group: Group, contenders: Contenders) -> None:
        case, device = contenders.case, contenders.settings.device
        torch.manual_seed(contenders.settings.seed)
        module: nn.Module = mlp(case.widths)
        if name == "recoded":
            nc.recode(module, "*", case.program)
        randomise_zeros(module)
        super().__init__(name, module.to(device), group, device)
        self.x, self.labels = contenders.x, torch.randint(case.widths[-1], (case.batch,)).to(device)
        self.optimiser = torch.optim.Adam(self.module.parameters(), 1e-4, fused=True, capturable=device == "cuda")

    def loss(self, module: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
        """The task loss plus the coded layers' auxiliary loss, and the logits."""
        logits = module(x)
        task = cross_entropy(logits, self.labels)
        return (task + nc.auxiliary_loss(module) if self.name == "recoded" else task), logits

    def work(self) -> tuple[Tensor, ...]:
        self.optimiser.zero_grad()
        loss, logits = self.loss(self.module, self.x)
        loss.backward()
        self.optimiser.step()
        return loss.detach(), logits.detach()

    def check(self) -> dict[str, float]:
        self.clear()
        before = {name: leaf.detach().clone() for name, leaf in self.leaves.items()}
        twin = copy.deepcopy(self.module).double()
        with nc.backend("torch"):
            exact_loss, exact_logits = self.loss(twin, self.x.double())
        exact_loss.backward()
        loss, logits = self()
        errors = close(self.bound, "the loss", loss, exact_loss.detach())
        errors |= close(self.bound, "outputs", logits, exact_logits.detach())
        targets = {name: leaf.grad for name, leaf in twin.named_parameters() if leaf.grad is not None}
        errors |= close_gradients(self.gradients(), targets, self.group.dtype, STACKED_GRADIENTS)
        for name, old in before.items():
            if name in targets and torch.equal(old, self.leaves[name]):
                raise WrongResult(f"the step does not move {name}")
        return errors


class BlocksRun(Run):
    """Forward and backward of a GPT's blocks on a batch of sequences."""

    def __init__(self, name: str, group: Group, contenders: Contenders) -> None:
        case, device = contenders.case, contenders.settings.device
        torch.manual_seed(contenders.settings.seed)
        assert isinstance(case.program, nc.CoreConfig)
        module: nn.Module = gpt.Blocks(name, case.widths, case.batch, case.program)
        randomise_zeros(module)
        super().__init__(name, module.to(device), group, device)
        shape = case.batch, gpt.LENGTH, case.widths[0]
        self.x, self.grad = torch.randn(shape).to(device), torch.randn(shape).to(device)

    def check(self) -> dict[str, float]:
        (y,) = self()
        found = dict(self.gradients())
        twin: Any = copy.deepcopy(self.module).double()
        outputs = []
        with nc.backend("torch"):  # sequence by sequence: attention in float64 keeps much
            whole = twin.z
            for row in range(len(self.x)):
                twin.z = whole[row : row + 1]
                part = twin(self.x[row : row + 1].double())
                part.backward(self.grad[row : row + 1].double())
                outputs.append(part.detach())
        exact = {name: leaf.grad for name, leaf in twin.named_parameters() if leaf.grad is not None}
        errors = close(self.bound, "outputs", y, torch.cat(outputs))
        return errors | close_gradients(found, exact, self.group.dtype)
