"""The networks over polynomial sequences, and the kinds of sequences: each pair is a variant."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from torch import Tensor, nn

import neurocoder as nc

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
    """Called with fields of `ProgramConfig` that differ from the paper's; only the Neurocoders use them."""


def plain(gru: int) -> Callable[..., Regressor]:
    """A GRU with a linear output layer."""
    return lambda **_: Regressor(2, gru, nn.Linear(gru, 1))


def hyper(**_: Any) -> Regressor:
    """A GRU with a HyperNet as output layer."""
    return Regressor(2, 28, nc.HyperLinear(28, 1, hyper=nc.HyperConfig(hidden=26)))


def neurocoder(gru: int, **sizes: int) -> Callable[..., Regressor]:
    """A GRU with a Neurocoder as output layer, as in the paper: K = 3, l_I = 2, a = 0.1, no residual."""
    usual: dict[str, Any] = {"key_dim": 3, "least_used": 2, "orthogonality": 0.1, "residual": False, **sizes}
    return lambda **changes: Regressor(2, gru, nc.Linear(gru, 1, program=nc.ProgramConfig(**usual | changes)))


MODELS = {
    "gru": Model("GRU", "original", plain(32)),
    "hyper": Model("HyperNet", "hypernet", hyper),
    "single-2": Model("single-step (LSTM 2)", "single_step", neurocoder(16, slots=10, steps=1, heads=15, hidden=2)),
    "single-3": Model("single-step (LSTM 3)", "single_step", neurocoder(16, slots=10, steps=1, heads=15, hidden=3)),
    "multi": Model("multi-step", "multi_step", neurocoder(8, slots=20, steps=5, heads=1, hidden=10)),
    "gru-16": Model("GRU 16", None, plain(16)),
    "gru-8": Model("GRU 8", None, plain(8)),
}
"""Sizes whose totals come close to the paper's, which does not give the LSTM's size; and the Neurocoders' own GRUs with
a linear output layer, to show what the program layer adds."""

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
    if model not in MODELS:
        endings = ", ".join(f"-{suffix}" for suffix in SETTINGS[1:])
        raise ValueError(f"variant must be one of {', '.join(MODELS)}, or one with {endings}, got {variant!r}")
    return model, setting


def family(setting: str, chunks: int, points: int, noise: float) -> Family:
    """The sequences of a setting."""
    return Family(2 * chunks if setting == "doubled" else chunks, points, noise if setting == "noise" else 0.0)
