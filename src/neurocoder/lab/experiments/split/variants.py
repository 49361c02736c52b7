"""The variants of continual learning: data set, scenario, method and model; methods with the coefficients of Hsu et al.
(2018) or our own."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from ... import continual as cl

DATASETS = {"mnist": (5, 2), "permuted": (10, 10), "cifar10": (5, 2), "cifar100": (20, 5)}
"""Tasks, and classes per task. The tasks of `permuted` are all ten digits, each with its own order of pixels."""
METHODS = ("adam", "adagrad", "l2", "si", "ewc", "online-ewc", "mas", "lwf", "rehearsal", "offline")
MODELS = ("mlp", "mlp-400", "mlp-wide", "stored-program", "neurocoder", "neurocoder-plain", "growing", "growing-small")

REHEARSED = 4_400
"""Images in the memory of naive rehearsal, the larger one of Hsu et al."""
HSU = {
    "l2": {"task": 0.01, "domain": 0.5, "class": 100.0},
    "ewc": {"task": 100.0, "domain": 100.0, "class": 600.0},
    "online-ewc": {"task": 400.0, "domain": 700.0, "class": 100.0},
    "si": {"task": 300.0, "domain": 3000.0, "class": 600.0},
    "mas": {"task": 1.0, "domain": 10_000.0, "class": 1.0},
    "lwf": {"task": 1.0, "domain": 1.0, "class": 1.0},
}
"""Coefficients of the penalties on Split MNIST; also elsewhere, unless `FEATURES` has one."""
FEATURES = {"si": 10.0}
"""Coefficients on features of CIFAR, our own."""
KINDS = {"l2": cl.L2, "ewc": cl.EWC, "online-ewc": cl.OnlineEWC, "si": cl.SI, "mas": cl.MAS, "lwf": cl.LwF}
CHOSEN: dict[str, dict[str, float]] = {
    "mnist-task-l2": {"mlp": 1, "neurocoder": 1},
    "mnist-task-si": {"mlp": 1, "neurocoder": 1},
    "mnist-task-ewc": {"mlp": 30, "neurocoder": 10},
    "mnist-task-online-ewc": {"mlp": 3, "neurocoder": 3},
    "mnist-task-mas": {"mlp": 0.1, "neurocoder": 1},
    "mnist-domain-l2": {"mlp": 10, "neurocoder": 3},
    "mnist-domain-si": {"mlp": 10, "neurocoder": 10},
    "mnist-domain-ewc": {"mlp": 3000, "neurocoder": 10000},
    "mnist-domain-online-ewc": {"mlp": 300, "neurocoder": 10000},
    "mnist-domain-mas": {"mlp": 0.1, "neurocoder": 0.1},
    "cifar10-task-si": {"mlp": 30, "neurocoder": 30, "neurocoder-plain": 30},
    "cifar100-task-si": {"mlp": 30, "neurocoder": 30, "neurocoder-plain": 30},
}
"""Factors on these coefficients that were best on validation data: `DATASET-SCENARIO-METHOD`, then by model; else that
of the model in `ALIKE`; else 1."""
ALIKE = {"mlp-400": "mlp", "mlp-wide": "mlp", "stored-program": "mlp", "neurocoder-plain": "neurocoder"}


class Variant(NamedTuple):
    """One of them."""

    dataset: str
    scenario: str
    method: str
    model: str

    @property
    def outputs(self) -> int:
        """Of each head."""
        tasks, classes = DATASETS[self.dataset]
        return tasks * classes if self.scenario == "class" else classes

    def __str__(self) -> str:
        return "-".join(self)


_ALL = {
    str(variant): variant
    for variant in (
        Variant(dataset, scenario, method, model)
        for dataset in DATASETS
        for scenario in cl.SCENARIOS
        for method in METHODS
        for model in MODELS
    )
}


def variants() -> list[str]:
    """All names, in the order of the tables."""
    return list(_ALL)


def naming() -> str:
    """All names in short."""
    parts = {"DATASET": DATASETS, "SCENARIO": cl.SCENARIOS, "METHOD": METHODS, "MODEL": MODELS}
    return f"{'-'.join(parts)}, where " + "; ".join(f"{name} is {', '.join(of)}" for name, of in parts.items())


def parse(name: str) -> Variant:
    """The variant of this name."""
    if name not in _ALL:
        raise ValueError(f"variant must be DATASET-SCENARIO-METHOD-MODEL such as {next(iter(_ALL))}, got {name!r}")
    return _ALL[name]


def make_method(variant: Variant, strength: float | None) -> tuple[cl.Method, float | None]:
    """A new method, and its coefficient if it has one."""
    if variant.method == "rehearsal":
        return cl.Rehearsal(REHEARSED), None
    if variant.method == "offline":
        return cl.Offline(), None
    if variant.method not in KINDS:
        return cl.Plain(), None
    if strength is None:
        chosen = CHOSEN.get("-".join(variant[:3]), {})
        strength = chosen.get(variant.model, chosen.get(ALIKE.get(variant.model, ""), 1.0))
    own = FEATURES if variant.dataset in ("cifar10", "cifar100") else {}
    coefficient = strength * own.get(variant.method, HSU[variant.method][variant.scenario])
    return KINDS[variant.method](coefficient), coefficient


def make_optimiser(method: str, parameters: Iterable[Tensor], rate: float) -> torch.optim.Optimizer:
    """Adagrad where the method is named so, else Adam, with the rates of Hsu et al. times `rate`."""
    if method == "adagrad":
        return torch.optim.Adagrad(parameters, lr=1e-2 * rate)
    return torch.optim.Adam(parameters, lr=1e-3 * rate)
