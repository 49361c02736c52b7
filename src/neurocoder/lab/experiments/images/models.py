"""The variants of object recognition: data set, network and model, as in `cifar10-mlp-neurocoder`.

The paper recodes all layers of an MLP and the output layer of a CNN. It says that mixtures of experts (MOE) and stored
programs (NSM) replace the same layers, but ten weights for an output layer do not make the counts of its Table 6.
Here they replace the set of dense layers whose count, averaged over both data sets, is nearest to Table 6:

| | MOE | Table 6 | NSM | Table 6 |
|---|---|---|---|---|
| MLP | first layer: 15.9M | 15.4M | all three: 17.2M | 21.2M |
| LeNet | first dense layer: 16.8M | 12.3M | all three dense: 18.1M | 27.1M |
| DenseNet | output layer, the only dense one: 7.6M | 20.5M | the same: 7.6M | 16.7M |

Neurocoder has 2.0M on the MLP (Table 6: 1.9M), 2.0M on LeNet (2.3M, which all its dense layers would make) and 7.1M on
DenseNet (7.3M).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import avg_pool2d

import neurocoder as nc

from ...networks import LeNet, mlp
from .densenet import DenseNet

DATASETS = {"cifar10": 10, "cifar100": 100}
"""Classes of each."""
NETWORKS = {"mlp": "MLP", "lenet": "LeNet", "densenet": "DenseNet"}
WIDER = 9 / 8
"""Factor on the hidden dense layers of `original-wide`: 1.12 times the parameters."""
CONTROL_DIM = 3 * 8 * 8
"""Numbers that steer `neurocoder-steered`, averages over 4 x 4 pixels, and `neurocoder-constant`."""

Targets = Mapping[str, Sequence[str]]
"""Layers by network; a network without any does not have the model."""
DENSE: Targets = {"mlp": ["1", "3", "5"], "lenet": ["dense.0", "dense.2", "dense.4"], "densenet": ["classifier"]}
OUTPUT: Targets = {"mlp": ["1", "3", "5"], "lenet": ["dense.4"], "densenet": ["classifier"]}
"""What the paper recodes."""
FIRST: Targets = {"mlp": ["1"], "lenet": ["dense.0"], "densenet": ["classifier"]}
MIDDLE: Targets = {"mlp": ["3"], "lenet": ["dense.2"]}
CONVOLUTIONS: Targets = {
    "lenet": ["convolutions.0", "convolutions.3"],
    "densenet": ["transitions.0.convolution", "transitions.1.convolution"],
}


@dataclass(frozen=True)
class Model:
    """What is done to a network."""

    title: str
    targets: Targets = field(default_factory=lambda: {name: [] for name in NETWORKS})
    config: nc.Config | None = None
    """Of the new layers; None: programs as in the paper, with `changes`."""
    changes: Mapping[str, Any] = field(default_factory=dict)
    controller_rate: float = 1.0
    """Factor on the learning rate of the controllers."""
    control: Literal["image", "constant"] | None = None
    """What steers the layers instead of their own input: the image, seen coarsely, or ones for all images."""


MODELS = {
    "original": Model("original"),
    "original-wide": Model("original, wider", {"mlp": [], "lenet": []}),
    "mixture": Model("mixture of experts", FIRST, nc.MixtureConfig(experts=10)),
    "stored-program": Model("stored programs", DENSE, nc.StoredProgramConfig(programs=10)),
    "neurocoder": Model("Neurocoder", OUTPUT),
    "neurocoder-middle": Model("Neurocoder, middle layer only", MIDDLE),
    "neurocoder-conv": Model("Neurocoder, convolutions", CONVOLUTIONS),
    "neurocoder-dense": Model("Neurocoder, all dense layers", {"lenet": DENSE["lenet"]}),
    "neurocoder-single": Model("Neurocoder, J=1 H=10", OUTPUT, changes={"steps": 1, "heads": 10}),
    "neurocoder-slots": Model("Neurocoder, P=60 J=1 H=3", OUTPUT, changes={"slots": 60, "steps": 1}),
    "neurocoder-sharp": Model("Neurocoder, sharpness 10", OUTPUT, changes={"sharpness": 10.0}),
    "neurocoder-plain": Model("Neurocoder, ungated residual", OUTPUT, changes={"residual": "plain"}),
    "neurocoder-free": Model("Neurocoder, no orthogonal loss", OUTPUT, changes={"orthogonality": 0.0}),
    "neurocoder-lstm32": Model("Neurocoder, LSTM 32", OUTPUT, changes={"hidden": 32}),
    "neurocoder-fast": Model("Neurocoder, controllers at 5 times the rate", OUTPUT, controller_rate=5.0),
    "neurocoder-steered": Model("Neurocoder, steered by the image", OUTPUT, control="image"),
    "neurocoder-constant": Model("Neurocoder, one program for all images", OUTPUT, control="constant"),
}
"""From `neurocoder-middle` on: where conditional programs might pay most."""


class Variant(NamedTuple):
    """One of them."""

    dataset: str
    network: str
    model: str

    @property
    def classes(self) -> int:
        """Of the data set."""
        return DATASETS[self.dataset]


_ALL = {
    f"{dataset}-{network}-{name}": Variant(dataset, network, name)
    for dataset in DATASETS
    for network in NETWORKS
    for name, model in MODELS.items()
    if network in model.targets
}


def variants() -> list[str]:
    """All names, in the order of the tables."""
    return list(_ALL)


def parse(name: str) -> Variant:
    """The variant of this name."""
    if name not in _ALL:
        raise ValueError(f"variant must be DATASET-NETWORK-MODEL such as {next(iter(_ALL))}, got {name!r}")
    return _ALL[name]


class Steered(nn.Module):
    """A network whose recoded layers are steered by a coarse view of the image, or by ones: then they compose one
    program for all images, the control that tells what programs gain from what their parametrisation does."""

    def __init__(self, network: nn.Module, constant: bool) -> None:
        super().__init__()
        self.network, self.constant = network, constant

    def forward(self, x: Tensor) -> Tensor:
        """(N, 3, 32, 32) -> (N, classes)"""
        z = avg_pool2d(x, 4).flatten(1)
        with nc.control(self.network, torch.ones_like(z) if self.constant else z):
            return self.network(x)


def build_network(network: str, classes: int, depth: int, checkpointing: bool, wide: bool = False) -> nn.Module:
    """As it is, on the CPU, from torch's generator."""
    hidden = [round(width * (WIDER if wide else 1)) for width in (512, 256)]
    if network == "mlp":
        return nn.Sequential(nn.Flatten(), *mlp((3 * 32 * 32, *hidden, classes)))
    return LeNet(classes, hidden) if network == "lenet" else DenseNet(classes, depth, checkpointing=checkpointing)


def build_model(variant: Variant, hidden: int = 8, depth: int = 100, checkpointing: bool = False) -> nn.Module:
    """On the CPU, from torch's generator. The network is drawn first: all models of a seed start from the same one."""
    model, wide = MODELS[variant.model], variant.model == "original-wide"
    network = build_network(variant.network, variant.classes, depth, checkpointing, wide)
    targets = list(model.targets[variant.network])
    if not targets:
        return network
    fields: dict[str, Any] = {"slots": 30, "key_dim": 5, "steps": 5, "heads": 3, "least_used": 5, "hidden": hidden}
    program = nc.ProgramConfig(**(fields | {"orthogonality": 0.1, "residual": True} | dict(model.changes)))
    nc.recode(network, targets, model.config or program, control_dim=CONTROL_DIM if model.control else None)
    for layer in network.modules():
        if isinstance(layer, nc.MixtureLinear | nc.StoredProgramLinear):
            layer.reset_parameters()  # ten weights of their own, as published, not ten copies of one
    return Steered(network, model.control == "constant") if model.control else network
