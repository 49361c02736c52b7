"""One coded layer of the model: how each input reads its slots."""

from __future__ import annotations

import math
import re
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

import neurocoder as nc

DIGITS = 5
MARKS = re.compile(r"\$(M_)?")
"""Of formulas, in titles."""


def many(count: int, thing: str) -> str:
    """A number with its thing: `1 input`, `2 inputs`."""
    return f"{count:,} {thing}{'' if count == 1 else 's'}"


def rounded(values: Tensor) -> Any:
    """Numbers for JSON; what is not finite counts as zero."""
    return to_json(values.detach().double().nan_to_num(0.0, 0.0, 0.0))


def to_json(values: Tensor) -> Any:
    """Numbers for JSON; None for what is not finite."""
    return rounded_to(values.detach().cpu().double().tolist(), DIGITS)


def rounded_to(value: Any, digits: int) -> Any:
    """A number, or lists of them, for JSON; None for what is not finite."""
    if isinstance(value, list):
        return [rounded_to(one, digits) for one in value]
    return round(value, digits) if math.isfinite(value) else None


def leading(programs: Any) -> tuple[int, ...]:
    """The dimensions of the programs of one call: inputs, positions."""
    return tuple(programs.reads()["u"].shape[:-2])


class Layer:
    """One coded layer: how each input reads its slots, whatever kind it is of (`reads`, `title` and `vectors`)."""

    def __init__(self, name: str, module: nc.CodedLayer) -> None:
        self.name, self.module, self.grows = name, module, module.grows
        self.titles: dict[str, str] = {}  # what the columns of each memory are, such as "slot of U"
        self.read: list[list[Tensor]] = []  # for each batch and memory: how much the slots are read (n, P)
        self.decided: list[Tensor] = []  # for each batch: what decides the programs (n, D)
        self.axis: int | None = None  # the dimension of the inputs, where their number does not tell
        self.problem = "" if module.has_programs else "this kind of layer keeps no programs to look at"

    def add(self, calls: list[Any], size: int) -> None:
        """Keep how a batch of so many inputs was read; the calls of a layer that ran several times are averaged."""
        if self.problem:
            return
        if not calls:
            self.problem = "the model did not call it on this data"
            return
        reads = calls[0].reads()
        if not reads["u"].shape[-1]:
            self.problem = "it has no slots"
            return
        self.titles = {memory: MARKS.sub("", calls[0].title(memory)) for memory in reads}
        calls = [self._first(one, size) for one in calls]
        try:
            read = [[nc.inspect.attention(one, memory, size) for one in calls] for memory in reads]
            decided = [nc.inspect.vectors(one, size) for one in calls]
        except ValueError:
            self.problem = "its programs cannot be told apart by input: one program serves several inputs"
            return
        self.read.append([torch.stack(of_calls).mean(0) for of_calls in read])
        self.decided.append(torch.stack(decided).mean(0))

    def unsure(self, calls: list[Any], size: int) -> bool:
        """Whether several dimensions of the programs are as long as there are inputs."""
        return self.axis is None and size > 1 and any(leading(c).count(size) > 1 for c in calls)

    def probe(self, calls: list[Any]) -> None:
        """Find the dimension of the inputs from the calls of a single one."""
        shape = leading(calls[0]) if calls else ()
        self.axis = shape.index(1) if shape.count(1) == 1 else 0

    def _first(self, programs: Any, size: int) -> Any:
        """Programs with the inputs first, where that was found out."""
        shape, axis = leading(programs), self.axis or 0
        if not axis or axis >= len(shape) or shape[axis] != size or not isinstance(programs, tuple):
            return programs
        parts = ((value, isinstance(value, Tensor) and value.shape[: len(shape)] == shape) for value in programs)
        return type(programs)(*(value.movedim(axis, 0) if has_inputs else value for value, has_inputs in parts))

    @cached_property
    def attention(self) -> list[Tensor]:
        """(N, P) of each memory"""
        return [torch.cat(parts) for parts in zip(*self.read, strict=True)]

    @cached_property
    def vectors(self) -> Tensor:
        """(N, D)"""
        return torch.cat(self.decided)

    @cached_property
    def finite(self) -> Tensor:
        """Which inputs have a program of finite numbers (N,); the others are left out of all means and groups."""
        return torch.stack([part.isfinite().all(1) for part in (self.vectors, *self.attention)]).all(0)

    def usage(self, inputs: Tensor) -> list[Any]:
        """How much each slot is read, for each memory: the mean over some inputs (N,)."""
        return [rounded(attention[inputs & self.finite].mean(0)) for attention in self.attention]

    @property
    def note(self) -> str:
        """How many inputs are left out."""
        count = 0 if self.problem else int((~self.finite).sum())
        gives = "gives a program that is" if count == 1 else "give programs that are"
        return f"{many(count, 'input')} {gives} not finite: left out" if count else ""

    def close(self) -> None:
        """After the last batch."""
        if not self.problem and not (self.read and self.finite.any()):
            self.problem = "no input gives a program that is finite"

    @cached_property
    def clusters(self) -> nc.inspect.Clusters:
        """Inputs that share programs; those that are left out are in group -1."""
        found = nc.inspect.clusters(self.vectors[self.finite])
        groups = torch.full((len(self.finite),), -1)
        distance = torch.full((len(self.finite),), math.inf)
        groups[self.finite], distance[self.finite] = found.groups, found.distance
        return found._replace(groups=groups, distance=distance)

    def facts(self) -> dict[str, Any]:
        """For the list of layers."""
        counts = nc.count_parameters(self.module)
        config = self.module.config.to_dict() | {"kind": None}
        return {
            "name": self.name or "(the model itself)",
            "kind": type(self.module).__name__,
            "shape": list(self.module.weight_shape),
            "grows": self.grows,
            "parameters": counts,
            "config": {name: value for name, value in config.items() if isinstance(value, int | float | str | bool)},
            "problem": self.problem,
            "note": self.note,
        }


def coded(model: nn.Module) -> dict[str, nc.CodedLayer]:
    """The coded layers, named as `nc.record` names them, also in a compiled model."""
    named = nc.coded_layers(model).items()
    return {".".join(part for part in name.split(".") if part != "_orig_mod"): layer for name, layer in named}
