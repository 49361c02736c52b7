"""What the slots of a layer are used for, as numbers: usage, inputs that share programs, drift, growth.

`plot` draws these numbers as figures, the explorer as a page. Tensors come back on the CPU, in float32.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..growing import GrowingPrograms
from ..growing.layer import GrowingLayer
from ..program.layer import Programs

MEMORIES = ("u", "v", "s")
STILL = 1e-3
"""Vectors that differ by less than this share of their norm count as equal."""
ROUNDS, STARTS = 50, 4
"""Of k-means."""
SAMPLE = 2_000
"""Of more inputs than this, a fixed sample finds the groups."""


class Clusters(NamedTuple):
    """Inputs that share programs: k groups of N vectors, the largest first."""

    groups: Tensor
    """Which group each input is in (N,)."""
    centres: Tensor
    """The mean vector of each group (k, D)."""
    distance: Tensor
    """Of each input to the centre of its group (N,); the smallest are the most typical ones."""
    silhouette: float
    """How clear the groups are, at most 1: from 0.5 on they are distinct, below 0.25 programs vary continuously."""

    def typical(self, group: int, count: int | None = None) -> Tensor:
        """The inputs nearest to the centre of a group, the nearest first (count,)."""
        members = (self.groups == group).nonzero().flatten()
        return members[self.distance[members].argsort(stable=True)][:count]


class Written(NamedTuple):
    """The n written slots of a growing layer, in order of writing."""

    slots: Tensor
    """Their places in the memory (n,)."""
    born: Tensor
    """The optimiser step that wrote each (n,)."""
    visits: Tensor
    """How much training used each (n,)."""


def many(count: int, thing: str) -> str:
    """A number with its thing: `1 input`, `2 inputs`."""
    return f"{count:,} {thing}" if count == 1 else f"{count:,} {thing}s"


def _plain(tensor: Tensor) -> Tensor:
    return tensor.detach().to("cpu", torch.float32)


def _by_input(values: Tensor, own: int, inputs: int | None) -> Tensor:
    """Means over all leading dimensions but that of the inputs: (..., *own) -> (N, *own); `own` counts the last ones.

    The inputs are the first dimension of size N, or the only other one, as where the batch comes second.
    """
    leading, rest = values.shape[: values.dim() - own], values.shape[values.dim() - own :]
    count = (leading[0] if leading else 1) if inputs is None else inputs
    axes = [axis for axis, size in enumerate(leading) if size == count]
    if count == 1 and leading.numel():  # whatever the dimensions are, all programs are those of the one input
        return values.reshape(1, -1, *rest).mean(1)
    if count < 1 or not leading.numel() or not axes or (axes[0] and len(axes) > 1):
        which = "several dimensions" if len(axes) > 1 else "no dimension"
        raise ValueError(
            f"inputs must be one dimension of the programs of this call, {tuple(leading)}, got {count}: {which} of them"
        )
    return values.movedim(axes[0], 0).reshape(count, -1, *rest).mean(1)


def attention(programs: Programs | GrowingPrograms, memory: str = "u", inputs: int | None = None) -> Tensor:
    """How strongly each input reads each slot, the mean over components (N, P).

    Args:
        programs: of one call; several programs for an input (positions of a sequence) are averaged.
        memory: `"u"`, `"v"` or `"s"`; a growing layer has one attention for all, over its P written slots.
        inputs: N, if it is not the first dimension; one dimension must have this size.
    """
    if memory not in MEMORIES:
        raise ValueError(f"memory must be among {', '.join(MEMORIES)}, got {memory!r}")
    if isinstance(programs, GrowingPrograms):
        written = max(1, int(programs.written))
        lost = programs.similarity.isnan().any(-1, keepdim=True).cpu()  # of inputs that are not finite
        share = _plain(programs.share).masked_fill(lost, math.nan)
        dense = share.new_zeros(*share.shape[:-1], written)
        dense.scatter_add_(-1, programs.slots.cpu().clamp(max=written - 1), share)
        return _by_input(dense, 1, inputs)
    if not isinstance(programs, Programs):
        raise ValueError(f"programs must be Programs or GrowingPrograms, got {type(programs).__name__}")
    return _by_input(_plain(getattr(programs, memory)).mean(-2), 1, inputs)


def vectors(programs: Programs | GrowingPrograms, inputs: int | None = None) -> Tensor:
    """What decides the program of each input (N, D): the attention of every component over the slots of U, V and S.

    Inputs with the same vector have the same program.
    """
    if isinstance(programs, GrowingPrograms):
        return attention(programs, inputs=inputs)
    parts = [_by_input(_plain(getattr(programs, memory)), 2, inputs).flatten(1) for memory in MEMORIES]
    return torch.cat(parts, 1)


def by_label(values: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """The distinct labels (L,) in order, and the mean of the values (N, P) over the inputs of each (L, P)."""
    try:
        labels = torch.as_tensor(labels).detach().cpu().flatten()
    except (TypeError, ValueError, RuntimeError):
        raise ValueError(f"labels must be whole numbers, one for each input, got {type(labels).__name__}") from None
    if len(labels) != len(values):
        raise ValueError(f"labels must have one entry for each of the {len(values)} inputs, got {len(labels)}")
    names = labels.unique()
    return names, torch.stack([values[labels == name].mean(0) for name in names])


def _means(points: Tensor, groups: Tensor, count: int) -> Tensor:
    sums = points.new_zeros(count, points.shape[1]).index_add_(0, groups, points)
    return sums / groups.bincount(minlength=count).clamp(min=1).unsqueeze(1)


def _k_means(points: Tensor, count: int, generator: torch.Generator) -> tuple[Tensor, float]:
    """Groups (N,) and the sum of squared distances; the start spreads centres by their distance (k-means++)."""
    chosen = [int(torch.randint(len(points), (), generator=generator))]
    for _ in range(count - 1):
        nearest = torch.cdist(points, points[chosen]).amin(1) ** 2
        weight = nearest if nearest.sum() > 0 else torch.ones_like(nearest)
        chosen.append(int(torch.multinomial(weight, 1, generator=generator)))
    centres, groups = points[chosen], None
    for _ in range(ROUNDS):
        now = torch.cdist(points, centres).argmin(1)
        if groups is not None and torch.equal(now, groups):
            break
        groups, centres = now, _means(points, now, count)
    assert groups is not None
    return groups, float((points - centres[groups]).square().sum())


def _silhouette(distances: Tensor, groups: Tensor) -> float:
    """Mean over the inputs of (b - a) / max(a, b): a within the own group, b to the nearest other one; alone: 0."""
    count = int(groups.max()) + 1
    sizes = groups.bincount(minlength=count).to(distances)
    sums = distances.new_zeros(len(groups), count).index_add_(1, groups, distances)
    own = sizes[groups]
    a = sums.gather(1, groups.unsqueeze(1)).squeeze(1) / (own - 1).clamp(min=1)
    other = (sums / sizes).scatter(1, groups.unsqueeze(1), math.inf)
    b = other.amin(1)
    score = (b - a) / torch.maximum(a, b).clamp(min=1e-12)
    return float(torch.where(own > 1, score, 0.0).mean())


def clusters(points: Tensor, count: int | None = None, most: int = 10) -> Clusters:
    """Groups of similar vectors, by k-means from fixed starts: the same vectors always give the same groups.

    Args:
        points: (N, D), such as `vectors(programs)`. Of more than 2,000, a fixed sample finds the groups and their
            silhouette; the others join the nearest group.
        count: how many groups; None: 2 to `most`, those with the largest mean silhouette, or one if all are equal.
    """
    points = _plain(points)
    if points.dim() != 2 or not len(points):
        raise ValueError(f"points must have shape (inputs, numbers), got {tuple(points.shape)}")
    if isinstance(count, bool) or not isinstance(count, int | None):
        raise ValueError(f"count must be a whole number, got {count!r}")
    if count is not None and not 1 <= count <= len(points):
        raise ValueError(f"count must be in 1..{len(points)}, the inputs, got {count}")
    bad = int((~points.isfinite().all(1)).sum())
    if bad:
        raise ValueError(f"points must be finite, got {bad} of {len(points)} inputs with numbers that are not")
    mean = points.mean(0)
    spread = (points - mean).square().sum(1).mean().sqrt()
    equal = bool(spread <= STILL * mean.norm().clamp(min=1e-12))
    wanted = [count] if count is not None else [1] if equal else list(range(2, min(most, len(points) - 1) + 1)) or [1]
    best, clearest = torch.zeros(len(points), dtype=torch.int64), -math.inf
    if wanted != [1]:
        near = points
        if points.shape[1] > len(points):  # fewer numbers with the same distances
            near = torch.linalg.qr((points - mean).double().mT, mode="r").R.mT.float()
        sample = torch.arange(len(near))
        if len(near) > SAMPLE:
            sample = torch.randperm(len(near), generator=torch.Generator().manual_seed(0))[:SAMPLE].sort().values
        found = near if max(wanted) > SAMPLE // 10 else near[sample]  # many groups need every input
        distances = torch.cdist(near[sample], near[sample])
    for number in wanted:
        if number == 1:
            continue
        generator = torch.Generator().manual_seed(0)
        part, _ = min((_k_means(found, number, generator) for _ in range(STARTS)), key=lambda one: one[1])
        groups = part
        if len(found) < len(near):
            groups = torch.cdist(near, _means(found, part, number)[part.unique()]).argmin(1)
        groups = groups.unique(return_inverse=True)[1]  # without empty ones
        seen = groups[sample].unique(return_inverse=True)[1]
        clear = _silhouette(distances, seen) if int(seen.max()) else 0.0
        if clear > clearest:
            best, clearest = groups, clear
    order = best.bincount().argsort(descending=True, stable=True)
    groups = order.argsort()[best]
    centres = _means(points, groups, len(order))
    distance = (points - centres[groups]).norm(dim=1)
    return Clusters(groups, centres, distance, clearest if math.isfinite(clearest) else 0.0)


def drift(usage: Tensor | Sequence[Any]) -> Tensor:
    """How much usage moved from each row to the next (T - 1,), from 0 (not at all) to 1 (to other slots entirely).

    Args:
        usage: mean attention over the slots, a row for each moment (T, P); each row is scaled to sum to one. The
            number is the total variation, half the sum of absolute differences.
    """
    try:
        rows = _plain(torch.as_tensor(usage))
    except (TypeError, ValueError, RuntimeError):
        raise ValueError(f"usage must be numbers of shape (moments, slots), got {type(usage).__name__}") from None
    if rows.dim() != 2 or not rows.numel():
        raise ValueError(f"usage must have shape (moments, slots), got {tuple(rows.shape)}")
    rows = rows / rows.sum(1, keepdim=True).clamp(min=1e-12)
    rows = torch.cat([rows, 1 - rows.sum(1, keepdim=True)], 1)  # a row without any usage is unlike every other one
    return rows.diff(dim=0).abs().sum(1) / 2


def written(layer: GrowingLayer) -> Written:
    """The written slots of a growing layer: which, when, how much visited."""
    if not isinstance(layer, GrowingLayer):
        raise ValueError(f"layer must be a growing layer, got {type(layer).__name__}")
    memory = layer.memory
    count = int(memory.written)
    born = memory.born[:count].detach().cpu()
    order = born.argsort(stable=True)
    return Written(order, born[order], _plain(memory.visits[:count])[order])


def thumbnails(inputs: Tensor, side: int = 32) -> Tensor | None:
    """Images of at most `side` pixels in height and width, as numbers from 0 to 255 (N, h, w, 1 or 3); None: no images.

    Args:
        inputs: (N, H, W) with H = W, (N, 1 or 3, H, W), (N, H * H) or (N, 3 * H * H), scaled by the smallest and
            largest number of all.
    """
    if not isinstance(inputs, Tensor) or inputs.dim() < 2 or not len(inputs) or inputs.is_complex():
        return None
    images = inputs.detach().cpu().float()
    if images.dim() == 2:
        width = images.shape[1]
        channels = next((c for c in (1, 3) if width % c == 0 and math.isqrt(width // c) ** 2 == width // c), 0)
        if not channels:
            return None
        images = images.reshape(len(images), channels, *[math.isqrt(width // channels)] * 2)
    elif images.dim() == 3 and images.shape[1] == images.shape[2]:
        images = images.unsqueeze(1)
    if images.dim() != 4 or images.shape[1] not in (1, 3) or min(images.shape[2:]) < 8:
        return None
    images = images.nan_to_num(0.0, 0.0, 0.0)
    low, high = images.aminmax()
    images = 255 * (images - low) / (high - low).clamp(min=1e-12)
    scale = side / max(images.shape[2:])
    if scale < 1:
        size = max(1, round(scale * images.shape[2])), max(1, round(scale * images.shape[3]))
        images = torch.nn.functional.adaptive_avg_pool2d(images, size)
    return images.movedim(1, -1)
