"""Networks that more than one experiment uses, and the mode in which they are evaluated."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise

from torch import Tensor, nn

import neurocoder as nc


@contextmanager
def eval_mode(model: nn.Module) -> Iterator[None]:
    """The model in eval mode; each module's own mode comes back."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes.items():
            module.training = mode


def mlp(sizes: Sequence[int]) -> nn.Sequential:
    """Linear layers of these sizes, from input to output, with ReLU between them."""
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(sizes):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


class LeNet(nn.Module):
    """LeNet (LeCun et al., 1998), wide enough for the paper's 2.1M parameters on 32 x 32 colour images: two 5 x 5
    convolutions, each with ReLU and 2 x 2 max pooling, and three dense layers; 1.98M for ten classes."""

    def __init__(self, classes: int, dense: Sequence[int] = (512, 256)) -> None:
        super().__init__()
        self.convolutions = nn.Sequential(
            nn.Conv2d(3, 64, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(64, 128, 5), nn.ReLU(), nn.MaxPool2d(2)
        )
        self.dense = mlp((128 * 5 * 5, *dense, classes))

    def forward(self, x: Tensor) -> Tensor:
        """(N, 3, 32, 32) -> (N, classes)"""
        return self.dense(self.convolutions(x).flatten(1))


class OneProgram(nn.Module):
    """A Neurocoder layer that is steered by ones: one program for all inputs, in the same parametrisation. It is the
    control that tells what programs gain from what their parametrisation does.

    Args:
        layer: made with `control_dim`
    """

    def __init__(self, layer: nc.Linear) -> None:
        super().__init__()
        assert layer.control_dim is not None
        self.layer, self.control_dim = layer, layer.control_dim

    def forward(self, x: Tensor) -> Tensor:
        """(..., inputs) -> (..., outputs)"""
        return self.layer(x, control=x.new_ones(self.control_dim))
