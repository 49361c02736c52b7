"""What a model's coded layers do with some inputs, layer by layer, with advice: `diagnose`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..layer.active import Composition
from ..layer.base import CodedLayer, coded_layers
from ..layer.checks import require_module, require_scalar
from ..layer.control import control as steer_by
from ..ops.compiled import run_uncompiled, uncompiled
from ..surgery.targets import type_name
from .data import Call, evaluating, pass_through, require_data
from .views import attention

SAMPLE = 64
"""Inputs or controls of a layer whose weights are compared."""
SAME, SLIGHT = 1e-3, 0.05
"""A weight that varies by less than this share of its norm is the same for all inputs; it varies slightly."""
IDLE = 0.01
"""A slot is idle if its mean use is below this share of the most used slot's."""
SATURATED = 0.98
"""A gate or blend is saturated if it is nearer to its bound than this share of the way."""


@dataclass(frozen=True)
class LayerDiagnosis:
    """What one layer does with some inputs; None where that cannot be said.

    Example:
        >>> model = nc.recode(nn.Sequential(nn.Linear(8, 4)), "0", nc.ProgramConfig())
        >>> nc.diagnose(model, torch.randn(32, 8))["0"].varies  # as `recode` leaves it
        0.0
    """

    name: str
    kind: str
    steered: bool
    """Whether a control decides its programs, not its input."""
    programs: int
    """Different inputs or controls whose weights were compared, at most 64."""
    varies: float | None
    """The part of the norm of the weight, with its offset, that differs from one to the next, from 0 to 1."""
    slots: int | None
    """How many slots, or experts, there are; of a growing layer, those written."""
    idle: int | None
    """How many of them are idle on these inputs."""
    saturated: float | None
    """The share of gates and blends that are at their bounds."""
    auxiliary: float | None
    """The auxiliary loss's share of the gradient of the parameters that it reaches, from 0 to 1."""

    @property
    def advice(self) -> str:
        """What to do, in a sentence."""
        which = "controls" if self.steered else "inputs"
        if not self.programs:
            return "was not called: give data that pass through it"
        is_constant = self.varies is not None and self.varies < SAME
        if self.slots == 0:
            return f"has no slots in use: it works as a plain layer{'' if is_constant else ' with a gate'}"
        same = f"composes the same program for all {which}"
        if self.auxiliary is not None and self.auxiliary > 0.5:
            told = f"the auxiliary loss has {self.auxiliary:.0%} of its memory's gradient: lower that loss's weight"
            return f"{same}, and {told}" if is_constant else told
        if is_constant:
            return f"{same}: train it, or nc.restore it to an equal plain layer"
        if self.saturated is not None and self.saturated > 0.5:
            return f"has {self.saturated:.0%} of its gates or blends at their bounds: lower its controller_lr"
        if self.slots and self.idle is not None and 2 * self.idle > self.slots:
            return f"leaves {self.idle} of {self.slots} slots idle: fewer would do"
        if self.varies is None:
            return (
                f"got one of the {which}: give several to see how much its weight varies" if self.programs == 1 else ""
            )
        if self.varies < SLIGHT:
            return f"varies slightly with its {which}: see if nc.restore(model, data=x) costs anything"
        return "nothing to change"


class Diagnosis(dict[str, LayerDiagnosis]):
    """The diagnosis of each layer, by name; prints as a table.

    Example:
        >>> model = nc.recode(nn.Sequential(nn.Linear(8, 4)), "0", nc.ProgramConfig(slots=6))
        >>> for name, layer in nc.diagnose(model, torch.randn(32, 8)).items():
        ...     print(name, layer.advice)
        0 composes the same program for all inputs: train it, or nc.restore it to an equal plain layer
    """

    def __str__(self) -> str:
        found = list(self.values())
        columns: dict[str, list[str]] = {
            "layer": [one.name for one in found],
            "kind": [one.kind for one in found],
            "W varies": ["-" if one.varies is None else f"{one.varies:.1%}" for one in found],
            "idle slots": ["-" if one.idle is None else f"{one.idle} of {one.slots}" for one in found],
            "saturated": ["-" if one.saturated is None else f"{one.saturated:.0%}" for one in found],
            "auxiliary": ["-" if one.auxiliary is None else f"{one.auxiliary:.0%}" for one in found],
            "advice": [one.advice for one in found],
        }
        if all(one.auxiliary is None for one in found):
            del columns["auxiliary"]
        words = {"layer", "kind", "advice"}
        table = []
        for title, cells in columns.items():
            width = max(map(len, [title, *(cells if title != "advice" else ())]))
            lines = [title, "-" * width, *cells]
            table.append([line.ljust(width) if title in words else line.rjust(width) for line in lines])
        return "\n".join("  ".join(row).rstrip() for row in zip(*table, strict=True))

    __repr__ = __str__


class _Seen:
    """What the calls of one layer showed."""

    def __init__(self) -> None:
        self.rows: list[Tensor] = []
        self.use: list[Tensor] = []
        self.saturation: list[Tensor] = []

    def call(self, layer: CodedLayer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Keep what this call's programs were made from, and how they use the slots."""
        x, control = _arguments(*args, **kwargs)
        rows, _ = layer.rows(x, layer.resolve_control(control))
        if not len(rows):
            return
        self.rows.append(rows[:: math.ceil(len(rows) / SAMPLE)].detach())
        shares = layer.shares(rows)
        if shares is not None:
            self.use.append(shares.float().mean(0).cpu())
        programs = layer.programs(x, control) if layer.has_programs else None
        if isinstance(programs, Composition):
            use = attention(programs)
            self.use.append(use[use.isfinite().all(1)].mean(0).nan_to_num(0.0))
            if hasattr(programs, "saturation"):
                self.saturation.append(programs.saturation().detach().float().cpu().flatten())


def _arguments(x: Tensor, control: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
    """The arguments of a coded layer's forward, however they are given."""
    return x, control


def diagnose(
    model: nn.Module, x: Any, control: Tensor | None = None, loss: Callable[[Any], Tensor] | None = None
) -> Diagnosis:
    """What the coded layers of a model do with some inputs: a table with a row for each, and a sentence of advice.

    How much of the weight varies with the input or the control; which slots are idle; which gates and blends are at
    their bounds; with a loss, how much of the gradient the auxiliary loss has. The model runs in eval mode, and nothing
    in it changes.

    Args:
        model: has coded layers, of any kinds.
        x: the model's input, as in `restore`: a tensor, a tuple, a dictionary, or a loader of these.
        control: z (..., control_dim) of steered layers; several, to see how the weights vary.
        loss: of the model's output, to a tensor (); its gradient is taken for the first batch.

    Example:
        >>> model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
        >>> model = nc.recode(model, "*", nc.CoreConfig(residual=False), control_dim=3)
        >>> found = nc.diagnose(model, torch.randn(32, 8), control=torch.randn(32, 3))
        >>> found["2"].advice
        'nothing to change'
    """
    require_module("model", model)
    require_data(x, name="x")
    inner = uncompiled(model)
    layers = coded_layers(inner)
    if not layers:
        raise ValueError("model must have coded layers to diagnose, found none: use nc.recode first")
    seen = {layer: _Seen() for layer in layers.values()}
    shares: dict[str, float] = {}
    with nullcontext() if control is None else steer_by(inner, control), _unchanged(inner), run_uncompiled():
        first = pass_through(inner, x, seen, lambda layer, args, kwargs: seen[layer].call(layer, args, kwargs))
        if first is None:
            raise ValueError("x must have at least one batch, got none")
        if loss is not None:
            shares = _auxiliary_shares(inner, layers, first, loss)
        with torch.no_grad():
            return Diagnosis({name: _row(name, one, seen[one], shares.get(name)) for name, one in layers.items()})


@contextmanager
def _unchanged(model: nn.Module) -> Iterator[None]:
    """Eval mode; afterwards modes, random numbers and what layers remember of a call are as before."""
    kept = [(layer, dict(vars(layer))) for layer in coded_layers(model).values()]
    cuda = {p.device for p in model.parameters() if p.is_cuda}
    try:
        with torch.random.fork_rng(sorted(cuda, key=str)), evaluating(model):
            yield
    finally:
        for layer, state in kept:
            for name in vars(layer).keys() - state.keys():
                del vars(layer)[name]
            vars(layer).update(state)


def _row(name: str, layer: CodedLayer, seen: _Seen, auxiliary: float | None) -> LayerDiagnosis:
    rows = list(torch.cat(seen.rows).unique(dim=0)) if seen.rows else []
    rows = rows[:: math.ceil(len(rows) / SAMPLE) or 1]
    slots = idle = None
    if seen.use:
        use = torch.stack(seen.use).mean(0)
        most = float(use.max()) if len(use) else 0.0
        slots, idle = (len(use), int((use < IDLE * most).sum())) if most else (0, 0)
    saturation = torch.cat(seen.saturation) if seen.saturation else torch.zeros(0)
    return LayerDiagnosis(
        name=name,
        kind=type_name(type(layer)),
        steered=layer.control_dim is not None,
        programs=len(rows),
        varies=_variation(layer, rows),
        slots=slots,
        idle=idle,
        saturated=float((saturation > SATURATED).float().mean()) if len(saturation) else None,
        auxiliary=auxiliary,
    )


def _variation(layer: CodedLayer, rows: list[Tensor]) -> float | None:
    """`sqrt(mean |W - mean W|² / mean |W|²)` over the weights of these controls, one at a time (Welford's sums); an
    offset of the output is a part of W."""
    if len(rows) < 2:
        return None
    mean, spread, size = torch.zeros(()), 0.0, 0.0
    for count, row in enumerate(rows, 1):
        try:
            if layer.control_dim is None:
                weight, offset = layer.materialize(row.view(layer.input_shape)), None
            else:
                x = layer.prototype.new_zeros(layer.input_shape)
                weight, offset = layer.materialize(x, control=row), layer.mean_offset(x, control=row)
        except ValueError:  # an exact layer whose features give no input a weight of its own
            return None
        weight = torch.cat([part.flatten() for part in (weight, offset) if part is not None]).to("cpu", torch.float64)
        before, mean = weight - mean, mean + (weight - mean) / count
        spread += float((before * (weight - mean)).sum())
        size += float(weight.square().sum())
    return math.sqrt(spread / size) if size and spread > 0 else 0.0


def _auxiliary_shares(
    model: nn.Module, layers: dict[str, CodedLayer], call: Call, loss: Callable[[Any], Tensor]
) -> dict[str, float]:
    """For each layer `|g_a| / (|g_a| + |g|)`, with the gradients of the auxiliary loss and of the loss for the
    parameters that the former reaches."""
    for layer in layers.values():
        layer.training = not layer.grows  # a mixture's balance loss is one of training; slots must not grow
    shares: dict[str, float] = {}
    with torch.enable_grad():
        value = loss(model(*call.args, **call.kwargs))
        require_scalar("loss", value)
        for name, layer in layers.items():
            parameters = [parameter for parameter in layer.parameters() if parameter.requires_grad]
            extra = layer.auxiliary_loss()
            if not (parameters and extra.requires_grad):
                shares[name] = 0.0
                continue
            own = torch.autograd.grad(extra, parameters, allow_unused=True, retain_graph=True)
            reached = [parameter for parameter, grad in zip(parameters, own, strict=True) if grad is not None]
            task = torch.autograd.grad(value, reached, allow_unused=True, retain_graph=True)
            a, g = (_norm([grad for grad in grads if grad is not None]) for grads in (own, task))
            shares[name] = a / (a + g) if a else 0.0
    return shares


def _norm(grads: list[Tensor]) -> float:
    return math.sqrt(sum(float(grad.double().square().sum()) for grad in grads))
