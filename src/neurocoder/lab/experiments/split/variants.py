"""The variants of continual learning: data set, scenario, method and model."""

from __future__ import annotations

from typing import NamedTuple

DATASETS = {"mnist": (5, 2), "permuted": (10, 10), "cifar10": (5, 2), "cifar100": (20, 5)}
"""Tasks, and classes per task. The tasks of `permuted` are all ten digits, each with its own order of pixels."""
SCENARIOS = ("task", "domain", "class")
METHODS = ("adam", "adagrad", "l2", "si", "ewc", "online-ewc", "mas", "lwf", "rehearsal", "offline")
MODELS = ("mlp", "mlp-400", "stored-program", "neurocoder", "neurocoder-plain", "growing", "growing-small")


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
        for scenario in SCENARIOS
        for method in METHODS
        for model in MODELS
    )
}


def variants() -> list[str]:
    """All names, in the order of the tables."""
    return list(_ALL)


def naming() -> str:
    """All names in short."""
    parts = {"DATASET": DATASETS, "SCENARIO": SCENARIOS, "METHOD": METHODS, "MODEL": MODELS}
    return f"{'-'.join(parts)}, where " + "; ".join(f"{name} is {', '.join(of)}" for name, of in parts.items())


def parse(name: str) -> Variant:
    """The variant of this name."""
    if name not in _ALL:
        raise ValueError(f"variant must be DATASET-SCENARIO-METHOD-MODEL such as {next(iter(_ALL))}, got {name!r}")
    return _ALL[name]
