"""What the tests of the growing layers share."""

import torch
from torch import nn

from conftest import randomised
from neurocoder.growing import GrowingConfig, GrowingConv1d, GrowingConv2d, GrowingLinear


def small(**changes):
    """A small configuration in which every mechanism is at work."""
    fields = {"slots": 6, "rank": 2, "top_k": 3, "sharpness": 3.0, "max_similarity": 0.5}
    return GrowingConfig(**({**fields, "consolidation": 2.0, "count": "inputs"} | changes))


LAYERS = {
    "linear": lambda **options: GrowingLinear(7, 3, growing=small(), **options),
    "linear, no residual": lambda **options: GrowingLinear(7, 3, growing=small(residual=False), **options),
    "linear, no bias": lambda **options: GrowingLinear(7, 3, False, small(residual=False), **options),
    "conv1d": lambda **options: GrowingConv1d(3, 4, 3, padding=1, growing=small(), **options),
    "conv2d": lambda **options: GrowingConv2d(
        3, 2, 3, 2, (1, 0), padding_mode="reflect", growing=small(residual=False), **options
    ),
}
INPUTS = {"linear": (7,), "conv1d": (3, 9), "conv2d": (3, 8, 8)}


def batch(kind, size=5, **options):
    return torch.randn(size, *INPUTS[kind.split(",")[0]], **options)


def fill(layer, count=None):
    """Write random keys into this many slots, by default all but one, and randomise every parameter."""
    memory = layer.memory
    count = memory.capacity - 1 if count is None else count
    randomised(layer)
    if not memory.U.is_meta:
        with torch.no_grad():
            keys = torch.nn.functional.normalize(torch.randn(count, memory.keys.shape[1], dtype=torch.float64), dim=-1)
            memory.keys[:count].copy_(keys)
            memory.visits[:count].uniform_(0, 5)
            memory.born[:count] = torch.arange(count)
            memory.written.fill_(count)
        memory.written_bound = count
    return layer


def filled(kind, count=None, **options):
    return fill(LAYERS[kind](**options), count)


def state_of(layer):
    """Parameters, with their graph, and buffers by name."""
    return {**dict(layer.named_parameters()), **dict(layer.named_buffers())}


def copied(layer):
    return {name: tensor.detach().clone() for name, tensor in layer.state_dict().items()}


def unit_rows(*rows, dtype=torch.float32):
    return nn.functional.normalize(torch.tensor(rows, dtype=dtype), dim=-1)
