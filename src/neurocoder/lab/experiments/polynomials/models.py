"""The networks over polynomial sequences, and the kinds of sequences: each pair is a variant."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

import neurocoder as nc

from ...networks import OneProgram
from .data import Family


class Regressor(nn.Module):
    """A GRU whose state goes through an output layer to one number per time step."""

    def __init__(self, inputs: int, hidden: int, output: nn.Module) -> None:
        super().__init__()
        self.gru = nn.GRU(inputs, hidden, batch_first=True)
        self.output = output

    def states(self, x: Tensor) -> Tensor:
        """(N, T, inputs) -> (N, T, hidden)"""
        return self.gru(x)[0]

    def forward(self, x: Tensor) -> Tensor:
        """(N, T, inputs) -> (N, T)"""
        return self.output(self.states(x)).squeeze(-1)


class Model(NamedTuple):
    """A network of this experiment."""

    title: str
    paper: str | None
    """Its name in `paper.toml`; None if it is not in the paper."""
    build: Callable[..., Regressor]
    """Called with the `scale` of y, and with fields of `ProgramConfig` that differ from the paper's, which only the
    Neurocoders use."""
    output_rate: float = 1.0
    """Factor on the learning rate of the output layer."""


def plain(gru: int) -> Callable[..., Regressor]:
    """A GRU with a linear output layer."""
    return lambda **_: Regressor(2, gru, nn.Linear(gru, 1))


def hyper(**_: Any) -> Regressor:
    """A GRU with a HyperNet as output layer."""
    return Regressor(2, 28, nc.HyperLinear(28, 1, hyper=nc.HyperConfig(hidden=26)))


class Scaled(nn.Module):
    """A linear layer with a scale: `y = s (w h + b)`. s is fixed, or learned as `exp(a)` from 1."""

    def __init__(self, width: int, scale: float | None) -> None:
        super().__init__()
        self.linear = nn.Linear(width, 1)
        self.log_scale = nn.Parameter(torch.zeros(())) if scale is None else None
        self.scale = scale

    def forward(self, states: Tensor) -> Tensor:
        """(..., width) -> (..., 1)"""
        return self.linear(states) * (self.scale if self.log_scale is None else self.log_scale.exp())


def neurocoder(gru: int, *, constant: bool = False, **sizes: int) -> Callable[..., Regressor]:
    """A GRU with a Neurocoder as output layer, as in the paper: K = 3, l_I = 2, a = 0.1, no residual."""
    usual: dict[str, Any] = {"key_dim": 3, "least_used": 2, "orthogonality": 0.1, "residual": False, **sizes}

    def build(scale: float = 1.0, **changes: Any) -> Regressor:
        config = nc.ProgramConfig(**usual | changes)
        output = nc.Linear(gru, 1, program=config, control_dim=gru if constant else None)
        return Regressor(2, gru, OneProgram(output) if constant else output)

    return build


SINGLE: dict[str, Any] = {"gru": 16, "slots": 10, "steps": 1, "heads": 15}
MULTI: dict[str, Any] = {"gru": 8, "slots": 20, "steps": 5, "heads": 1, "hidden": 10}
MODELS = {
    "gru": Model("GRU", "original", plain(32)),
    "hyper": Model("HyperNet", "hypernet", hyper),
    "single-2": Model("single-step (LSTM 2)", "single_step", neurocoder(**SINGLE, hidden=2)),
    "single-3": Model("single-step (LSTM 3)", "single_step", neurocoder(**SINGLE, hidden=3)),
    "multi": Model("multi-step", "multi_step", neurocoder(**MULTI)),
    "gru-16": Model("GRU 16", None, plain(16)),
    "gru-8": Model("GRU 8", None, plain(8)),
}
"""Sizes whose totals come close to the paper's, which does not give the LSTM's size; and the Neurocoders' own GRUs with
a linear output layer, to show what the program layer adds."""

CONTROLS = {
    "single-3-constant": Model("single-step, one program", None, neurocoder(**SINGLE, hidden=3, constant=True)),
    "multi-constant": Model("multi-step, one program", None, neurocoder(**MULTI, constant=True)),
    "gru-scaled": Model(
        "GRU, output times the scale of y", None, lambda scale, **_: Regressor(2, 32, Scaled(32, scale))
    ),
    "gru-exp": Model("GRU, learned output scale", None, lambda **_: Regressor(2, 32, Scaled(32, None))),
    "gru-fast": Model("GRU, output rate x100", None, plain(32), output_rate=100.0),
}
"""What tells programs that follow the sequence from a parametrisation that reaches a large scale sooner; only for
sequences of another scale than 1."""
ALL = MODELS | CONTROLS

SETTINGS = ("clean", "noise", "doubled")
"""The sequences; a variant is named by its model, and by its setting unless that is `clean`."""


def join(model: str, setting: str) -> str:
    """The name of a variant."""
    return model if setting == "clean" else f"{model}-{setting}"


def split(variant: str) -> tuple[str, str]:
    """Model and setting of a variant."""
    model, setting = variant, "clean"
    for suffix in SETTINGS[1:]:
        if variant.endswith(f"-{suffix}"):
            model, setting = variant.removesuffix(f"-{suffix}"), suffix
    if model not in ALL:
        endings = ", ".join(f"-{suffix}" for suffix in SETTINGS[1:])
        raise ValueError(f"variant must be one of {', '.join(ALL)}, or one with {endings}, got {variant!r}")
    return model, setting


def family(setting: str, chunks: int, points: int, noise: float, scale: float = 1.0, reach: float = 1.0) -> Family:
    """The sequences of a setting."""
    noise = noise if setting == "noise" else 0.0
    return Family(2 * chunks if setting == "doubled" else chunks, points, noise, scale, reach)
