"""A model of one's own and its data for the explorer: `package.module:name`, checked before anything is shown."""

from __future__ import annotations

import importlib
import itertools
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, default_collate

BATCH = 64
"""Inputs that pass through the model at once."""
LABELS = ("labels", "label", "targets", "target", "y")
"""Names under which a dictionary may hold the labels."""


class Batch(NamedTuple):
    """Arguments of one call of the model, with n inputs."""

    positional: tuple[Any, ...]
    named: dict[str, Any]
    size: int

    @property
    def first(self) -> Tensor | None:
        """The first tensor among the arguments: what can be shown as an image (n, ...)."""
        return next((one for one in (*self.positional, *self.named.values()) if isinstance(one, Tensor)), None)

    def mapped(self, change: Callable[[Tensor], Tensor]) -> Batch:
        """With every tensor that has one entry for each input changed."""
        named = {name: self._one(value, change) for name, value in self.named.items()}
        return Batch(tuple(self._one(value, change) for value in self.positional), named, self.size)

    def _one(self, value: Any, change: Callable[[Tensor], Tensor]) -> Any:
        fits = isinstance(value, Tensor) and value.dim() > 0 and len(value) == self.size
        return change(value) if fits else value

    def part(self, start: int, stop: int) -> Batch:
        """Some of the inputs."""
        return self.mapped(lambda value: value[start:stop])._replace(size=min(stop, self.size) - start)

    def to(self, device: torch.device) -> Batch:
        """With all tensors on a device."""
        named = {name: value.to(device) if isinstance(value, Tensor) else value for name, value in self.named.items()}
        moved = tuple(value.to(device) if isinstance(value, Tensor) else value for value in self.positional)
        return Batch(moved, named, self.size)


class Inputs(NamedTuple):
    """At most so many inputs as batches, and their labels (N,) if the data has some."""

    batches: list[Batch]
    labels: Tensor | None
    note: str = ""
    """Why there are none, if the data has something in their place."""

    @property
    def total(self) -> int:
        """N."""
        return sum(batch.size for batch in self.batches)

    def one(self, index: int) -> Batch:
        """A single input, as a batch."""
        for batch in self.batches:
            if index < batch.size:
                return batch.part(index, index + 1)
            index -= batch.size
        raise IndexError(index)


def imported(option: str, reference: str) -> Any:
    """The object that `package.module:name` refers to."""
    module, _, name = reference.partition(":")
    if not module or not name:
        raise ValueError(f"{option} must be like package.module:name, got {reference!r}")
    try:
        found: Any = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name and (module == error.name or module.startswith(f"{error.name}.")):
            raise ValueError(f"{option}: there is no module {error.name!r}, got {reference!r}") from None
        raise ValueError(f"{option}: {module} cannot be imported: {line(error)}") from None
    except Exception as error:
        raise ValueError(f"{option}: {module} cannot be imported: {line(error)}") from None
    for part in name.split("."):
        if not hasattr(found, part):
            raise ValueError(f"{option}: {module} has no {name!r}, got {reference!r}")
        found = getattr(found, part)
    return found


def line(error: BaseException) -> str:
    """An error in one line."""
    text = next((row.strip() for row in str(error).splitlines() if row.strip()), "")
    return f"{type(error).__name__}: {text[:300]}" if text else type(error).__name__


def called(option: str, reference: str, maker: Any) -> Any:
    """What the function returns."""
    try:
        return maker()
    except Exception as error:
        raise ValueError(f"{option}: {reference} failed: {line(error)}") from None


def load_model(reference: str) -> nn.Module:
    """A module, or what a function returns."""
    found = imported("--model", reference)
    if callable(found) and not isinstance(found, nn.Module):
        found = called("--model", reference, found)
    if not isinstance(found, nn.Module):
        raise ValueError(
            f"--model must be a torch.nn.Module or a function that returns one, got {type(found).__name__} from "
            f"{reference}"
        )
    return found


def load_inputs(reference: str, limit: int) -> Inputs:
    """A tensor, (x, y), a dictionary, or an iterable of these, or a function that returns one."""
    found = imported("--data", reference)
    if callable(found) and not isinstance(found, Tensor | Mapping | Dataset):
        found = called("--data", reference, found)
    try:
        inputs = gathered(found, limit)
    except ValueError as error:
        raise ValueError(f"--data {reference}: {error}") from None
    if inputs.note:
        print(inputs.note, file=sys.stderr)
    return inputs


def gathered(data: Any, limit: int) -> Inputs:
    """The first `limit` inputs of the data."""
    batches: list[Batch] = []
    labels: list[Tensor | None] = []
    room, why = limit, ""
    try:
        for found in _batches(data, limit):
            batch, told, reason = _batch(found)
            why = why or reason
            for start in range(0, min(batch.size, room), BATCH):
                stop = min(start + BATCH, room, batch.size)
                batches.append(batch.part(start, stop))
                labels.append(None if told is None else told[start:stop])
            room -= min(batch.size, room)
            if not room:
                break
    except ValueError:
        raise
    except Exception as error:  # of the user's own iterator
        raise ValueError(line(error)) from None
    if not batches:
        raise ValueError("there must be at least one input, got none")
    known = [one for one in labels if one is not None]
    if len(known) == len(labels):
        return Inputs(batches, torch.cat(known))
    if known and not why:
        why = "some batches have none"
    return Inputs(batches, None, f"labels are not used: {why}" if why else "")


def _batches(data: Any, limit: int) -> Iterator[Any]:
    """Batches of whatever was given."""
    if isinstance(data, Dataset):
        if not hasattr(data, "__len__"):
            yield default_collate(list(itertools.islice(iter(data), limit)))
            return
        count = min(limit, len(data))
        for start in range(0, count, BATCH):
            yield default_collate([data[index] for index in range(start, min(start + BATCH, count))])
    elif isinstance(data, Tensor | np.ndarray | Mapping) or _is_call(data):
        yield data
    elif isinstance(data, Iterable) and not isinstance(data, str | bytes):
        yield from data
    else:
        raise ValueError(
            f"it must be a tensor, (x, y), a dictionary or an iterable of these, got {type(data).__name__}"
        )


def _is_call(data: Any) -> bool:
    """Whether this is (x,), (x, y) or [x, y], not a list of batches."""
    if not isinstance(data, tuple | list) or not data or not isinstance(data[0], Tensor | np.ndarray):
        return False
    if len(data) == 2 and _is_list(data[1]):
        return True
    if not all(isinstance(one, Tensor | np.ndarray) for one in data):
        return False
    return isinstance(data, tuple) or (len(data) == 2 and _unlike(_tensor(data[0]), _tensor(data[1])))


def _is_list(value: Any) -> bool:
    """Whether these are plain numbers or words."""
    plain = isinstance(value, tuple | list) and bool(value)
    return plain and all(isinstance(one, int | float | str | np.generic) for one in value)


def _unlike(x: Any, y: Any) -> bool:
    """Whether the second of two tensors is no further batch of inputs, such as labels or targets."""
    if not isinstance(x, Tensor) or not isinstance(y, Tensor):
        return True
    if x.dim() != y.dim() or x.is_floating_point() != y.is_floating_point():
        return True
    return x.is_floating_point() and x.dim() == 2 and len(x) == len(y) and x.shape != y.shape


def _batch(found: Any) -> tuple[Batch, Tensor | None, str]:
    """The arguments; if there are some, the labels (n,); or why what is in their place cannot be used."""
    if isinstance(found, Mapping):
        return _named({str(name): _tensor(value) for name, value in found.items()})
    parts = tuple(map(_tensor, found)) if isinstance(found, tuple | list) else (_tensor(found),)
    if not parts or not isinstance(parts[0], Tensor) or parts[0].dim() == 0:
        got = type(parts[0]).__name__ if parts and not isinstance(parts[0], Tensor) else "a tensor without dimensions"
        raise ValueError(f"a batch must be a tensor, (x, y) or a dictionary, got {got if parts else 'an empty one'}")
    size = len(parts[0])
    y: Any = parts[1] if len(parts) == 2 else None
    if isinstance(y, Tensor | np.ndarray) or _is_list(y):  # never an argument: labels, or targets
        shape = tuple(y.shape) if isinstance(y, Tensor | np.ndarray) else (len(y),)
        if not shape or shape[0] != size:
            raise ValueError(f"y must have one entry for each of the {size} inputs, got shape {shape}")
        return Batch(parts[:1], {}, size), *_labels(y)
    return Batch(parts, {}, size), None, ""


def _named(named: dict[str, Any]) -> tuple[Batch, Tensor | None, str]:
    """As `_batch`, of arguments by name: only whole numbers, one for each input, are labels."""
    tensors = {name: value for name, value in named.items() if isinstance(value, Tensor)}
    tensors = {name: value for name, value in tensors.items() if name not in LABELS} or tensors
    if not tensors or any(value.dim() == 0 for value in tensors.values()):
        raise ValueError("a dictionary must hold tensors with one entry for each input")
    size = len(next(iter(tensors.values())))
    told = {name: _labels(named[name])[0] for name in LABELS if name in named and name not in tensors}
    labels = {name: value for name, value in told.items() if value is not None and len(value) == size}
    batch = Batch((), {name: value for name, value in named.items() if name not in labels}, size)
    return batch, next(iter(labels.values()), None), ""


def _tensor(value: Any) -> Any:
    return torch.from_numpy(value) if isinstance(value, np.ndarray) and value.dtype.kind in "biufc" else value


def _labels(y: Any) -> tuple[Tensor | None, str]:
    """Whole numbers (n,), or why these are none."""
    if _is_list(y):
        if any(isinstance(one, str) for one in y):
            return None, "they are words, not whole numbers"
        y = _tensor(np.asarray(y))
    if not isinstance(y, Tensor):
        return None, "they are words or objects, not whole numbers"
    if y.dim() != 1:
        return None, f"they must be whole numbers, one for each input, not of shape {tuple(y.shape)}"
    if y.is_floating_point() or y.is_complex():
        return None, f"they must be whole numbers, not {str(y.dtype).removeprefix('torch.')}"
    return y.detach().cpu(), ""
