"""What the slots of a layer are used for, as numbers: usage, drift, growth.

`plot` draws these numbers as figures, the explorer as a page. Tensors come back on the CPU, in float32.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..layer.active import Composition

MEMORIES = ("u", "v", "s")


class Written(NamedTuple):
    """The n written slots of a growing layer, in order of writing.

    Example:
        >>> nc.inspect.written(nc.GrowingLinear(8, 4)).slots
        tensor([], dtype=torch.int64)
    """

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


def by_input(values: Tensor, own: int, inputs: int | None = None) -> Tensor:
    """Means over all leading dimensions but that of the inputs: (..., *own) -> (N, *own); `own` counts the last ones.

    The inputs are the first dimension of size N, or the only other one, as where the batch comes second.
    """
    values = _plain(values)
    leading, rest = values.shape[: values.dim() - own], values.shape[values.dim() - own :]
    count = (leading[0] if leading else 1) if inputs is None else inputs
    axes = [axis for axis, size in enumerate(leading) if size == count]
    if count == 1 and leading.numel():  # whatever the dimensions are, all programs are those of the one input
        return values.reshape(leading.numel(), *rest).mean(0, keepdim=True)
    if count < 1 or not leading.numel() or not axes or (axes[0] and len(axes) > 1):
        which = "several dimensions" if len(axes) > 1 else "no dimension"
        raise ValueError(
            f"inputs must be one dimension of the programs of this call, {tuple(leading)}, got {count}: {which} of them"
        )
    return values.movedim(axes[0], 0).reshape(count, leading.numel() // count, *rest).mean(1)


def reads_of(programs: Composition) -> dict[str, Tensor]:
    """Attention over the slots of each memory (..., r, P)."""
    if not isinstance(programs, Composition):
        raise ValueError(f"programs must be those of one layer, such as trace['fc'], got {type(programs).__name__}")
    return programs.reads()


def attention(programs: Composition, memory: str = "u", inputs: int | None = None) -> Tensor:
    """How strongly each input reads each slot, the mean over components (N, P).

    Args:
        programs: of one call; several programs for an input (positions of a sequence) are averaged.
        memory: `"u"`, `"v"` or `"s"`, or another one that this kind of layer reads; a growing layer has one attention
            for all, over its P written slots.
        inputs: N, if it is not the first dimension; one dimension must have this size.

    Example:
        >>> layer = nc.Linear(8, 4, program=nc.ProgramConfig(slots=10))
        >>> nc.inspect.attention(layer.programs(torch.randn(32, 8)), "v").shape
        torch.Size([32, 10])
    """
    read = reads_of(programs)
    if memory not in (known := dict.fromkeys([*MEMORIES, *read])):
        raise ValueError(f"memory must be among {', '.join(known)}, got {memory!r}")
    return by_input(_plain(read.get(memory, read["u"])).mean(-2), 1, inputs)


def vectors(programs: Composition, inputs: int | None = None) -> Tensor:
    """What decides the program of each input (N, D): the attention of every component over the slots of U, V and S.

    Inputs with the same vector have the same program.

    Args:
        programs: of one call.
        inputs: N, as in `attention`.

    Example:
        >>> layer = nc.Linear(8, 4, program=nc.ProgramConfig(slots=10, steps=2, heads=3))
        >>> nc.inspect.vectors(layer.programs(torch.randn(32, 8))).shape  # 3 memories, 6 components, 10 slots
        torch.Size([32, 180])
    """
    reads = reads_of(programs)
    if hasattr(programs, "vectors"):
        return by_input(programs.vectors(), 1, inputs)
    return torch.cat([by_input(values, 2, inputs).flatten(1) for values in reads.values()], 1)


def as_labels(labels: Any) -> Tensor:
    """Labels as a tensor on the CPU."""
    try:
        return torch.as_tensor(labels).detach().cpu()
    except (TypeError, ValueError, RuntimeError):
        kind = type(next(iter(labels), None)).__name__ if isinstance(labels, Sequence) else type(labels).__name__
        raise ValueError(f"labels must be whole numbers, one for each input, got {kind}") from None


def by_label(values: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """The distinct labels (L,) in order, and the mean of the values (N, P) over the inputs of each (L, P).

    Example:
        >>> nc.inspect.by_label(torch.tensor([[1.0], [0.0], [3.0]]), torch.tensor([7, 2, 7]))
        (tensor([2, 7]), tensor([[0.],
                [2.]]))
    """
    labels = as_labels(labels).flatten()
    if len(labels) != len(values):
        raise ValueError(f"labels must have one entry for each of the {len(values)} inputs, got {len(labels)}")
    names = labels.unique()
    return names, torch.stack([values[labels == name].mean(0) for name in names])


def drift(usage: Tensor | Sequence[Any]) -> Tensor:
    """How much usage moved from each row to the next (T - 1,), from 0 (not at all) to 1 (to other slots entirely).

    Args:
        usage: mean attention over the slots, a row for each moment (T, P); each row is scaled to sum to one. The
            number is the total variation, half the sum of absolute differences.

    Example:
        >>> nc.inspect.drift([[1.0, 1.0], [2.0, 0.0], [2.0, 0.0]])
        tensor([0.5000, 0.0000])
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


def written(layer: Any) -> Written:
    """The written slots of a growing layer: which, when, how much visited.

    Example:
        >>> layer = nc.GrowingLinear(8, 4)
        >>> optimiser = torch.optim.SGD(layer.parameters(), lr=0.1)
        >>> growth = nc.grow(layer, optimiser)
        >>> layer(torch.randn(32, 8)).sum().backward()
        >>> optimiser.step()
        >>> nc.inspect.written(layer).born
        tensor([0])
    """
    if not getattr(layer, "grows", False):
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

    Example:
        >>> nc.inspect.thumbnails(torch.rand(5, 28 * 28)).shape
        torch.Size([5, 28, 28, 1])
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
