"""Many models in one: the same start and the same batches, an optimiser and a rate for each.

    parameters of S models as one tensor (S, N); a step is one forward and backward of all, by `torch.func.vmap`, and
    one update a kind of optimiser, with the formulas of `torch.optim`

A model that diverges does not touch the others.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

MOMENTUM = 0.9
BETAS, EPSILON, DECAY = (0.9, 0.999), 1e-8, 0.01
"""Of Adam and AdamW, as in torch."""
ADAGRAD_EPSILON = 1e-10

Cell = tuple[str, float]
"""An optimiser and its learning rate."""


def sgd(p: Tensor, g: Tensor, rate: Tensor, state: Sequence[Tensor], step: int) -> None:
    """p <- p - rate g"""
    p.sub_(rate * g)


def momentum(p: Tensor, g: Tensor, rate: Tensor, state: Sequence[Tensor], step: int) -> None:
    """v <- .9 v + g, p <- p - rate v"""
    state[0].mul_(MOMENTUM).add_(g)
    p.sub_(rate * state[0])


def adam(p: Tensor, g: Tensor, rate: Tensor, state: Sequence[Tensor], step: int) -> None:
    """p <- p - rate m / (sqrt(v) + eps), with means of g and g² that are corrected for their start"""
    mean, square = state
    mean.lerp_(g, 1 - BETAS[0])
    square.mul_(BETAS[1]).addcmul_(g, g, value=1 - BETAS[1])
    root = (square.sqrt() / math.sqrt(1 - BETAS[1] ** step)).add_(EPSILON)
    p.sub_(rate / (1 - BETAS[0] ** step) * mean / root)


def adamw(p: Tensor, g: Tensor, rate: Tensor, state: Sequence[Tensor], step: int) -> None:
    """Adam, after p <- (1 - rate decay) p"""
    p.mul_(1 - rate * DECAY)
    adam(p, g, rate, state, step)


def adagrad(p: Tensor, g: Tensor, rate: Tensor, state: Sequence[Tensor], step: int) -> None:
    """s <- s + g², p <- p - rate g / sqrt(s)"""
    state[0].addcmul_(g, g)
    p.sub_(rate * g / state[0].sqrt().add_(ADAGRAD_EPSILON))


Update = Callable[[Tensor, Tensor, Tensor, Sequence[Tensor], int], None]
OPTIMISERS: dict[str, tuple[Update, int]] = {
    "sgd": (sgd, 0),
    "momentum": (momentum, 1),
    "adam": (adam, 2),
    "adamw": (adamw, 2),
    "adagrad": (adagrad, 1),
}
"""How each updates, and how many tensors of the parameters' size it keeps."""


class Stack:
    """S copies of a model, each with its own optimiser and rate.

    Args:
        model: the start of all; called with the tensors that `losses` is given, it returns a loss ().
        cells: an optimiser and a rate for each copy; those of one optimiser beside each other.
        ratios: factors on the rates (S,) of parameters, by name.
    """

    def __init__(
        self, model: nn.Module, cells: Sequence[Cell], ratios: Mapping[str, Sequence[float]] | None = None
    ) -> None:
        self.model, self.cells, self.step = model, list(cells), 0
        self.factor = 1.0
        """On all rates, at the next step."""
        named = dict(model.named_parameters())
        start = torch.cat([parameter.detach().flatten() for parameter in named.values()])
        self.values = start.repeat(len(self.cells), 1)
        """(S, N)"""
        parts = self.values.split([parameter.numel() for parameter in named.values()], 1)
        self.parameters = {
            name: part.unflatten(1, parameter.shape if parameter.dim() else (1,)).detach().requires_grad_()
            for (name, parameter), part in zip(named.items(), parts, strict=True)
        }
        """Views of `values`, (S, ...) each."""
        self.buffers = dict(model.named_buffers())
        rates = torch.tensor([rate for _, rate in self.cells], dtype=start.dtype, device=start.device).unsqueeze(1)
        if ratios:
            ones = torch.ones_like(rates)
            factors = {name: rates.new_tensor(ratio).unsqueeze(1) for name, ratio in ratios.items()}
            wide = [factors.get(name, ones).expand(-1, parameter.numel()) for name, parameter in named.items()]
            rates = rates * torch.cat(wide, 1)
        self.groups: list[tuple[Update, slice, Tensor, list[Tensor]]] = []
        for optimiser, indices in groupby(range(len(self.cells)), lambda index: self.cells[index][0]):
            rows = list(indices)
            update, count = OPTIMISERS[optimiser]
            place = slice(rows[0], rows[-1] + 1)
            state = [torch.zeros_like(self.values[place]) for _ in range(count)]
            self.groups.append((update, place, rates[place], state))

    def call(self, model: nn.Module, *inputs: Tensor, prefix: str = "", own: bool = False) -> Tensor:
        """What each copy, or a part of it, makes of the same inputs, or of its own ones (S, ...) -> (S, ...)."""
        parameters, buffers = (
            {name.removeprefix(prefix): value for name, value in named.items() if name.startswith(prefix)}
            for named in (self.parameters, self.buffers)
        )

        def one(values: Mapping[str, Tensor], *given: Tensor) -> Tensor:
            found: Tensor = functional_call(model, (dict(values), buffers), given)
            return found

        found: Tensor = vmap(one, (0, *[0 if own else None] * len(inputs)))(parameters, *inputs)
        return found

    def train(self, *inputs: Tensor, own: bool = False) -> Tensor:
        """One step of all copies on the same batch, or each on its own one; returns their losses (S,)."""
        losses = self.call(self.model, *inputs, own=own)
        gradients = torch.autograd.grad(losses.sum(), list(self.parameters.values()), materialize_grads=True)
        self.step += 1
        with torch.no_grad():
            g = torch.cat([gradient.flatten(1) for gradient in gradients], 1)
            for update, place, rates, state in self.groups:
                update(self.values[place], g[place], self.factor * rates, state, self.step)
        return losses.detach()
