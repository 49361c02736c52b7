"""The layers under comparison, and the expected results of each: exact on a few inputs, in float64."""

from __future__ import annotations

import copy
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

import neurocoder as nc

from .cases import GIB, MIXTURE, STORED, Case, Settings

TITLES = {
    "linear": "nn.Linear",
    "program": "nc.Linear",
    "earlier": "nc.Linear before",
    "materialising": "W_t built",
    "mixture": "nc.MixtureLinear",
    "stored": "nc.StoredProgramLinear",
    "plain": "plain MLP",
    "recoded": "recoded MLP",
}
_CANDIDATES = 256
"""Inputs searched for those with clear choices."""


class Skip(Exception):
    """A contender that is left out, with the reason."""


class Materialising(nn.Module):
    """As in the released code: build W_t for every input, then multiply. It shares a program layer's parameters."""

    def __init__(self, layer: nc.Linear) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        """(N, d_in) -> (N, d_out)"""
        y = torch.einsum("ni,nio->no", x, self.layer.materialize(x))
        return y if self.layer.bias is None else y + self.layer.bias.to(y.dtype)


class Exact(NamedTuple):
    """The expected results for some inputs."""

    rows: Tensor
    """Which inputs (n,)."""
    y: Tensor
    """(n, d_out) in float64."""
    x_grad: Tensor
    """(n, d_in)"""
    grads: dict[str, Tensor]
    """Of the parameters, when only these inputs have a gradient."""


class Subject(NamedTuple):
    """A contender of a case."""

    name: str
    module: nn.Module
    exact: Exact


def randomise_zeros(module: nn.Module) -> None:
    """Randomise weights that start at zero, and scale the residual to the size of the active program's output.

    A fresh program layer composes the same program for every input, and nearly all of its output comes from residual
    and bias: an error in the composition would not show.
    """
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.dim() > 1 and not parameter.any():
                parameter.copy_(torch.randn(parameter.shape) * parameter.shape[-1] ** -0.5)
        for layer in module.modules():
            if isinstance(layer, nc.Linear) and layer.R is not None:
                x = torch.randn(16, layer.in_features).to(layer.R)
                residual, bias = layer.R.clone(), torch.zeros(()) if layer.bias is None else layer.bias
                both = layer(x)
                layer.R.zero_()
                active = layer(x)
                scale = (active - bias).norm() / (both - active).norm()
                layer.R.copy_(scale * residual)
                bias.mul_(scale)


def reference(layer: nc.Linear, x: Tensor) -> Tensor:
    """The literal equations, one input at a time."""
    return nc.reference.linear(dict(layer.named_parameters()), layer.config, x)


def multiplied(layer: nc.MixtureLinear | nc.StoredProgramLinear, x: Tensor) -> Tensor:
    """The layer's own weight for each input, times the input."""
    y = torch.einsum("ni,nio->no", x, layer.materialize(x))
    return y if layer.bias is None else y + layer.bias


def margin(layer: nn.Module, x: Tensor) -> Tensor:
    """How far a layer's choices for each input are from changing (N,).

    A mixture chooses experts. A program layer chooses, at each step but the first, the least-used slots; there is no
    choice if all are chosen, or all but the most used, which gets no attention either way.
    """
    if isinstance(layer, nc.MixtureLinear):
        ranked = linear(x, layer.gating_weight).topk(layer.config.active + 1).values
        return ranked[:, -2] - ranked[:, -1]
    far = x.new_full((len(x),), torch.inf)
    if not isinstance(layer, nc.Linear) or layer.config.steps == 1:
        return far
    c, programs = layer.config, layer.programs(x)
    if c.least_used >= c.slots - 1:
        return far
    attention = torch.stack([programs.u, programs.v, programs.s], 1).unflatten(2, (c.steps, c.heads))
    usage = attention.cummax(2).values[:, :, :-1].sort(-1).values
    gap = (usage[..., c.least_used] - usage[..., c.least_used - 1]) / usage[..., -1]
    return gap.flatten(1).amin(1)


def exact_answer(module: nn.Module, x: Tensor, grad: Tensor, count: int) -> Exact:
    """Values by an independent route (the reference, or built weights), gradients by autograd over torch operations.

    The inputs are those whose choices are least sensitive to rounding: another choice rightly changes the result.
    """
    twin = copy.deepcopy(module).double()
    layer = twin.layer if isinstance(twin, Materialising) else twin
    with torch.no_grad(), nc.backend("torch"):
        rows = margin(layer, x[:_CANDIDATES].double()).topk(count).indices
        picked = x[rows].double()
        if isinstance(layer, nc.Linear):
            y = reference(layer, picked)
        elif isinstance(layer, nc.MixtureLinear | nc.StoredProgramLinear):
            y = multiplied(layer, picked)
        else:
            y = layer(picked)
    picked = picked.requires_grad_()
    with nc.backend("torch"):
        layer(picked).backward(grad[rows].double())
    assert picked.grad is not None
    grads = {name: parameter.grad.float() for name, parameter in twin.named_parameters() if parameter.grad is not None}
    return Exact(rows, y, picked.grad, grads)


class Contenders:
    """The contenders of a case, built from its seed when first asked for. All are in eval mode, so that the mixture
    has no noise and can be checked."""

    def __init__(self, case: Case, settings: Settings) -> None:
        self.case, self.settings = case, settings
        self.built: dict[str, Subject] = {}
        torch.manual_seed(settings.seed)
        d_in, d_out = case.widths
        # Values that are exact in bfloat16, so that both dtypes have the same exact answer.
        self.x, self.grad = (
            torch.randn(case.batch, width).bfloat16().float().to(settings.device) for width in (d_in, d_out)
        )

    def subject(self, name: str) -> Subject:
        """A contender by name; raises `Skip` if it does not fit."""
        if name == "earlier":
            from . import against

            assert self.settings.against is not None
            self.built[name] = against.subject(self.settings.against, self.subject("program"))
        if name not in self.built:
            torch.manual_seed(self.settings.seed)
            module = self.build(name).eval()
            affordable = max(1, 2**22 // (self.case.widths[0] * self.case.widths[1]))  # the reference is slow
            count = min(affordable, self.settings.check_rows, self.case.batch)
            self.built[name] = Subject(name, module, exact_answer(module, self.x, self.grad, count))
        return self.built[name]

    def build(self, name: str) -> nn.Module:
        """The layer itself."""
        d_in, d_out = self.case.widths
        if name == "materialising":
            size, limit = self.case.program_bytes(), self.settings.limit
            if size > limit:
                raise Skip(f"W_t of the batch takes {size / GIB:.3g} GiB, over the limit of {limit / GIB:.3g} GiB")
            layer = self.subject("program").module
            assert isinstance(layer, nc.Linear)
            return Materialising(layer)
        module: nn.Module
        if name == "linear":
            module = nn.Linear(d_in, d_out)
        elif name == "program":
            module = nc.Linear(d_in, d_out, program=self.case.program)
        elif name == "mixture":
            module = nc.MixtureLinear(d_in, d_out, mixture=MIXTURE)
        elif name == "stored":
            module = nc.StoredProgramLinear(d_in, d_out, stored_program=STORED)
        else:
            raise ValueError(f"contender must be one of {', '.join(TITLES)}, got {name!r}")
        randomise_zeros(module)
        return module.to(self.settings.device)


def recoded(case: Case) -> nn.Module:
    """The MLP of a training step, all its layers coded."""
    return nc.recode(plain(case), "*", case.program)


def plain(case: Case) -> nn.Sequential:
    """The MLP of a training step."""
    layers: list[nn.Module] = []
    for d_in, d_out in pairwise(case.widths):
        layers += [nn.Linear(d_in, d_out), nn.ReLU()]
    return nn.Sequential(*layers[:-1])
