"""The growing model of continual learning: one layer of allocated slots from the inputs to the classes."""

from __future__ import annotations

import base64
import copy
import math
from collections.abc import Sequence
from itertools import accumulate, product
from statistics import fmean
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import adaptive_avg_pool2d, avg_pool2d, normalize

import neurocoder as nc

from ... import continual as cl

ROWS = 4096
"""Inputs that are compared with all keys at once."""
BINS = 100
"""Columns in the map of slots, at most; a column is the sum over neighbours in order of writing."""
KEPT = (0.75, 0.5, 0.25, 0.1)
"""Shares of the slots that stay when the least visited are erased."""
SHOWN, PIXELS = 6, 16
"""Keys of each task that are kept to be shown, and their pixels to a side."""

View = Literal["blurred", "pixels", "features"]
"""What keys are made of: images, blurred and centred; images, centred; the inputs as they are."""


class Size(NamedTuple):
    """Of a growing memory, and how fast it fills."""

    slots: int
    rank: int
    key_dim: int | None
    """Numbers in a key; None: as many as inputs"""
    writes: int
    """Slots that one step may write"""
    max_similarity: float
    """An input becomes a new key if its cosine to every key is below this"""


SIZES: dict[tuple[str, View], Size] = {
    ("growing", "blurred"): Size(4_000, 4, None, 8, 0.85),
    ("growing", "pixels"): Size(8_000, 4, None, 2, 0.6),
    ("growing", "features"): Size(8_000, 4, None, 4, 0.6),
    ("growing-small", "blurred"): Size(1_780, 1, 256, 2, 0.85),
    ("growing-small", "pixels"): Size(980, 2, 256, 1, 0.5),
    ("growing-small", "features"): Size(980, 2, 256, 1, 0.6),
}
"""By model and keys; chosen on validation data, but the small ones of pixels and features. On Split MNIST the small one
has no more parameters than the paper's NSM, 2.3M, keys included."""


class Growing(nn.Module):
    """One growing layer from the inputs to the classes, for each head, which share the slots evenly.

    Shorter keys are means over parts of the image, or a fixed random projection of the features.
    """

    projection: Tensor

    def __init__(
        self,
        inputs: int,
        outputs: int,
        heads: int | None,
        config: nc.GrowingConfig,
        view: View = "blurred",
        key_dim: int | None = None,
    ) -> None:
        super().__init__()
        self.view, self.key_dim = view, key_dim or inputs
        if view == "blurred" and math.isqrt(self.key_dim) ** 2 != self.key_dim:
            raise ValueError(f"key_dim must be a square number, the pixels of a smaller image, got {key_dim}")
        self.register_buffer("projection", torch.empty(0))
        if view != "blurred" and self.key_dim != inputs:
            self.projection = torch.randn(inputs, self.key_dim) / math.sqrt(self.key_dim)
        layers = (nc.GrowingLinear(inputs, outputs, False, config, control_dim=self.key_dim) for _ in range(heads or 1))
        self.heads = nn.ModuleList(layers)

    def control(self, x: Tensor) -> Tensor:
        """What keys are made of: (N, inputs) -> (N, key_dim)"""
        z = x
        if self.view == "blurred":
            image = x.view(len(x), 1, *[math.isqrt(x.shape[1])] * 2)
            for _ in range(2):
                image = avg_pool2d(image, 3, 1, 1)
            z = adaptive_avg_pool2d(image, math.isqrt(self.key_dim)).flatten(1)
        if self.view != "features":
            z = z - z.mean(1, keepdim=True)
        return z @ self.projection if self.projection.numel() else z

    def forward(self, x: Tensor, head: int | None = None) -> Tensor:
        """(N, inputs) -> (N, outputs)"""
        return self.heads[head or 0](x, control=self.control(x))

    def memory(self, head: int | None) -> Any:
        """The memory behind a head."""
        layer = self.heads[head or 0]
        assert isinstance(layer, nc.GrowingLinear)
        return layer.memory


@torch.no_grad()
def nearest_keys(model: Growing, tasks: Sequence[cl.Task]) -> float:
    """The average accuracy over the tasks, in percent, if each input has the label of its nearest key (1-NN). A key is
    of a training input, so it has a label."""
    accuracies = []
    for head in dict.fromkeys(task.head for task in tasks):
        own, memory = [task for task in tasks if task.head == head], model.memory(head)
        best = torch.full((int(memory.written),), -2.0, device=memory.keys.device)
        labels = torch.zeros_like(best, dtype=torch.int64)
        keys = memory.keys[: len(best)]
        for task in own:
            for x, y in zip(task.train[0].split(ROWS), task.train[1].split(ROWS), strict=True):
                found = (normalize(model.control(x)) @ keys.mT).max(0)
                labels = torch.where(found.values > best, y[found.indices], labels)
                best = torch.maximum(best, found.values)
        for x, y in (task.test for task in own):
            nearest = torch.cat([(model.control(rows) @ keys.mT).argmax(1) for rows in x.split(ROWS)])
            accuracies.append(100 * (labels[nearest] == y).double().mean().item())
    return sum(accuracies) / len(accuracies)


@torch.no_grad()
def erased(model: Growing, tasks: Sequence[cl.Task]) -> dict[str, list[float]]:
    """The average accuracy over the tasks, in percent, after erasing the least visited slots of each head.

    Returns:
        merged, dropped: for each share in `KEPT`, with and without the nearest slot taking over.
    """
    found: dict[str, list[float]] = {"merged": [], "dropped": []}
    for name, share in product(found, KEPT):
        smaller = copy.deepcopy(model)
        for layer in smaller.heads:
            assert isinstance(layer, nc.GrowingLinear)
            visits = layer.memory.visits[: int(layer.memory.written)]
            visits += 1e-6 * torch.arange(len(visits), 0, -1, device=visits.device)  # of equal ones the first stay
            stay = math.ceil(share * len(visits))
            below = visits.topk(stay).values[-1].item() if stay else 0.0
            nc.shrink(layer, below=below, merge=name == "merged")
        found[name].append(round(fmean(cl.accuracy(smaller, task) for task in tasks), 4))
    return found


@torch.no_grad()
def slot_map(model: Growing, tasks: Sequence[cl.Task], steps: Sequence[int]) -> dict[str, Any]:
    """Which slots each task wrote and uses after the last one.

    Args:
        model: after all tasks.
        tasks: in their order.
        steps: how many each task took.

    Returns:
        written: slots that each task wrote (tasks,); use: each task's mean attention over the slots in order of writing
        (tasks, columns), `width` slots to a column; keys: for each task, its most visited ones as images of `PIXELS`
        squared bytes in base64, if keys are images.
    """
    heads = list(dict.fromkeys(task.head for task in tasks))
    memories = [model.memory(head) for head in heads]
    counts = [int(memory.written) for memory in memories]
    width = max(1, math.ceil(sum(counts) / BINS))
    offsets = dict(zip(heads, accumulate(counts, initial=0), strict=False))
    use, written, keys = [], [], []
    bounds = list(accumulate(steps, initial=0))
    for index, task in enumerate(tasks):
        memory, count = model.memory(task.head), int(model.memory(task.head).written)
        first, last = (0, steps[index]) if len(heads) > 1 else bounds[index : index + 2]
        born = memory.born[:count]
        own = ((born >= first) & (born < last)).nonzero().flatten()
        written.append(len(own))
        reading = memory(model.control(task.test[0][:ROWS]))
        share = torch.zeros(sum(counts) + -sum(counts) % width, device=born.device)
        share.index_add_(0, offsets[task.head] + reading.slots.flatten(), reading.share.flatten().to(share.dtype))
        use.append([round(value, 4) for value in (share.view(-1, width).sum(1) / len(reading.slots)).tolist()])
        if model.view == "blurred":
            chosen = own[memory.visits[own].argsort(descending=True)[:SHOWN]]
            keys.append([picture(key) for key in memory.keys[chosen]])
    return {"written": written, "use": use, "width": width, "keys": keys}


def picture(key: Tensor) -> str:
    """A key (S * S,) as an image of `PIXELS` squared bytes, base64."""
    side = math.isqrt(len(key))
    image = adaptive_avg_pool2d(key.float().view(1, 1, side, side), PIXELS).flatten()
    low, high = image.aminmax()
    scaled = (255 * (image - low) / (high - low).clamp(min=1e-12)).round().to(torch.uint8)
    return base64.b64encode(bytes(scaled.tolist())).decode()
