"""The layers under comparison, and the expected results of each: exact on a few inputs, in float64."""

from __future__ import annotations

import copy
import dataclasses
import importlib.util
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, normalize

import neurocoder as nc
from neurocoder.growing import reference as growing

from .cases import CONTROL, GIB, MIXTURE, PATHS, STORED, Case, Settings

TITLES = {
    "linear": "nn.Linear",
    "program": "nc.Linear",
    "earlier": "nc.Linear before",
    "materialising": "W_t built",
    "mixture": "nc.MixtureLinear",
    "stored": "nc.StoredProgramLinear",
    "growing": "nc.GrowingLinear",
    "core": "nc.CoreLinear",
    "steered": "nc.CoreLinear, steered",
    "gpt": "plain GPT",
    "gpt-core": "GPT, core MLPs",
    "gpt-steered": "GPT, steered core MLPs",
    "plain": "plain MLP",
    "recoded": "recoded MLP",
    "torch": "torch path",
    "cpu": "hand-written CPU path",
}
EARLIER = "neurocoder_earlier"
"""Today's name of an earlier version of the library."""


class Skip(Exception):
    """A contender that is left out, with the reason."""


class Materialising(nn.Module):
    """As in the released code: build each input's weight (W_t), then multiply. It shares its layer's parameters."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        """(N, d_in) -> (N, d_out)"""
        y: Tensor = torch.einsum("ni,nio->no", x, self.layer.materialize(x))
        return y if self.layer.bias is None else y + self.layer.bias.to(y.dtype)


class OnePath(nn.Module):
    """A layer under `nc.backend`. It shares its layer's parameters."""

    def __init__(self, layer: nn.Module, path: Any) -> None:  # a name that it knows
        super().__init__()
        self.layer, self.path = layer, path

    def forward(self, x: Tensor) -> Tensor:
        """(N, d_in) -> (N, d_out)"""
        with nc.backend(self.path):
            return self.layer(x)


class WithControl(nn.Module):
    """A steered layer with a control for each input."""

    z: Tensor

    def __init__(self, layer: nc.CoreLinear, z: Tensor) -> None:
        super().__init__()
        self.layer = layer
        self.register_buffer("z", z)

    def forward(self, x: Tensor) -> Tensor:
        """(N, d_in) -> (N, d_out)"""
        y: Tensor = self.layer(x, control=self.z)
        return y

    def materialize(self, x: Tensor) -> Tensor:
        """W_t (N, d_in, d_out)"""
        return self.layer.materialize(x, control=self.z)

    @property
    def bias(self) -> Tensor | None:
        """(d_out,)"""
        return self.layer.bias


class Subject(NamedTuple):
    """A contender of a case, and its expected results for some inputs."""

    module: nn.Module
    rows: Tensor  # which inputs (n,)
    y: Tensor  # (n, d_out)
    x_grad: Tensor  # (n, d_in)
    grads: dict[str, Tensor]  # of the parameters, when only these inputs have a gradient


@cache
def package(folder: str) -> ModuleType:
    """The package `neurocoder` of another source folder, under a name of its own beside today's."""
    file = Path(folder, "neurocoder", "__init__.py")
    spec = importlib.util.spec_from_file_location(EARLIER, file, submodule_search_locations=[str(file.parent)])
    assert spec is not None
    assert spec.loader is not None
    sys.modules[EARLIER] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


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


def write_all(layer: nc.GrowingLinear) -> None:
    """Random keys and programs in every slot, with outputs of the size of the residual's."""
    memory = layer.memory
    with torch.no_grad():
        memory.keys.copy_(normalize(torch.randn(memory.keys.shape), dim=-1))
        memory.V.normal_()
        memory.written.fill_(memory.capacity)


def margin(layer: nn.Module, x: Tensor) -> Tensor:
    """How far a layer's choices for each input are from changing (N,).

    A mixture chooses experts, a growing layer the nearest slots. A program layer chooses, at each step but the first,
    the least-used slots; there is no choice if all are chosen, or all but the most used, which gets no attention either
    way.
    """
    if isinstance(layer, nc.MixtureLinear):
        ranked = linear(x, layer.gating_weight).topk(layer.config.active + 1).values
        return ranked[:, -2] - ranked[:, -1]
    if isinstance(layer, nc.GrowingLinear):
        cosine = normalize(x - x.mean(dim=-1, keepdim=True), dim=-1) @ layer.memory.keys.mT
        ranked = cosine.topk(layer.config.top_k + 1).values
        return ranked[:, -2] - ranked[:, -1]
    if not isinstance(layer, nc.Linear) or layer.config.steps == 1 or layer.config.least_used >= layer.config.slots - 1:
        return x.new_full((len(x),), torch.inf)
    c, programs = layer.config, layer.programs(x)
    attention = torch.stack([programs.u, programs.v, programs.s], 1).unflatten(2, (c.steps, c.heads))
    usage = attention.cummax(2).values[:, :, :-1].sort(-1).values
    gap = (usage[..., c.least_used] - usage[..., c.least_used - 1]) / usage[..., -1]
    return gap.flatten(1).amin(1)


class Contenders:
    """The contenders of a case, built from its seed when first asked for. All but the growing layer, which takes notes
    in training, are in eval mode, so that the mixture has no noise and can be checked."""

    def __init__(self, case: Case, settings: Settings) -> None:
        self.case, self.settings = case, settings
        self.built: dict[str, Subject] = {}
        torch.manual_seed(settings.seed)
        # Values that are exact in bfloat16, so that both dtypes have the same exact answer.
        self.x, self.grad = (
            torch.randn(case.batch, width).bfloat16().float().to(settings.device)
            for width in (case.widths[0], case.widths[-1])
        )

    def subject(self, name: str) -> Subject:
        """A contender by name; raises `Skip` if it does not fit."""
        if name not in self.built:
            torch.manual_seed(self.settings.seed)
            earlier = self.case.against if name == "earlier" else None
            if earlier:
                self.built[name] = self.earlier(earlier)
            else:
                self.built[name] = self.expect(self.build(name).train(name == "growing"))
        return self.built[name]

    def build(self, name: str) -> nn.Module:
        """The layer itself."""
        d_in, d_out = self.case.widths
        if name == "materialising":
            size, limit = 4 * self.case.batch * d_in * d_out, self.settings.limit
            if size > limit:
                raise Skip(f"W_t of the batch takes {size / GIB:.3g} GiB, over the limit of {limit / GIB:.3g} GiB")
            layer = self.subject("program").module
            assert isinstance(layer, nc.Linear)
            return Materialising(layer)
        if name in PATHS:
            return OnePath(self.subject("program").module, name)
        config: Any = self.case.program
        kinds: dict[str, Callable[[], nn.Module]] = {
            "linear": lambda: nn.Linear(d_in, d_out),
            "program": lambda: nc.Linear(d_in, d_out, program=config),
            "mixture": lambda: nc.MixtureLinear(d_in, d_out, mixture=MIXTURE),
            "stored": lambda: nc.StoredProgramLinear(d_in, d_out, stored_program=STORED),
            "growing": lambda: nc.GrowingLinear(d_in, d_out, growing=config),
            "core": lambda: nc.CoreLinear(d_in, d_out, core=config),
            "steered": lambda: WithControl(
                nc.CoreLinear(d_in, d_out, core=config, control_dim=CONTROL), torch.randn(self.case.batch, CONTROL)
            ),
        }
        module = kinds[name]()
        randomise_zeros(module)
        if isinstance(module, nc.GrowingLinear):
            write_all(module)
        return module.to(self.settings.device)

    def expect(self, module: nn.Module) -> Subject:
        """Values by an independent route, gradients by autograd over torch operations.

        The inputs are those whose choices are least sensitive to rounding: another choice rightly changes the result.
        """
        affordable = max(1, 2**22 // (self.case.widths[0] * self.case.widths[1]))  # the reference is slow
        count = min(affordable, self.settings.check_rows, self.case.batch)
        twin = copy.deepcopy(module).double()
        layer: Any = twin.layer if isinstance(twin, Materialising | OnePath) else twin
        with nc.backend("torch"):
            with torch.no_grad():
                rows = margin(layer, self.x[:256].double()).topk(count).indices
                x = self.x[rows].double()
                if isinstance(twin, WithControl):
                    twin.z = twin.z[rows]
                if isinstance(layer, nc.Linear):  # the literal equations
                    y = nc.reference.linear(dict(layer.named_parameters()), layer.config, x)
                elif isinstance(layer, nc.GrowingLinear):
                    y = growing.linear(layer.state_dict(), layer.config, x)
                else:
                    y = (Materialising(layer) if hasattr(layer, "materialize") else layer)(x)
            x.requires_grad_()
            layer(x).backward(self.grad[rows].double())
        assert x.grad is not None
        grads = {key: leaf.grad.float() for key, leaf in twin.named_parameters() if leaf.grad is not None}
        return Subject(module, rows, y, x.grad, grads)

    def earlier(self, folder: str) -> Subject:
        """The program layer of an earlier library, with the same values and so the same exact results."""
        library, today, layer = package(folder), self.subject("program"), self.subject("program").module
        assert isinstance(layer, nc.Linear)
        fields = {field.name for field in dataclasses.fields(library.ProgramConfig)}
        config = library.ProgramConfig(**{k: v for k, v in dataclasses.asdict(layer.config).items() if k in fields})
        module: nn.Module = library.Linear(layer.in_features, layer.out_features, program=config)
        module.load_state_dict(layer.state_dict())
        return today._replace(module=module.to(self.settings.device).eval())
