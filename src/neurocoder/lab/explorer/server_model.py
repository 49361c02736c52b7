"""A model of one's own and its data for the explorer: `package.module:name`, checked before anything is shown."""

from __future__ import annotations

import importlib
import itertools
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
        return gathered(found, limit)
    except ValueError as error:
        raise ValueError(f"--data {reference}: {error}") from None


def gathered(data: Any, limit: int) -> Inputs:
    """The first `limit` inputs of the data."""
    batches: list[Batch] = []
    labels: list[Tensor | None] = []
    room = limit
    try:
        for found in _batches(data, limit):
            batch, told = _batch(found)
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
    return Inputs(batches, torch.cat(known) if len(known) == len(labels) else None)


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
    """Whether this is (x,) or (x, y), not a list of batches."""
    return isinstance(data, tuple) and bool(data) and all(isinstance(one, Tensor | np.ndarray) for one in data)


def _batch(found: Any) -> tuple[Batch, Tensor | None]:
    """The arguments and, if there are some, the labels (n,)."""
    if isinstance(found, Mapping):
        named = {str(name): _tensor(value) for name, value in found.items()}
        tensors = [value for name, value in named.items() if isinstance(value, Tensor) and name not in LABELS]
        if not tensors or any(value.dim() == 0 for value in tensors):
            raise ValueError("a dictionary must hold tensors with one entry for each input")
        size = len(tensors[0])
        told = next((named[name] for name in LABELS if name in named and _are_labels(named[name], size)), None)
        return Batch((), {name: value for name, value in named.items() if name not in LABELS}, size), told
    parts = tuple(map(_tensor, found)) if isinstance(found, tuple | list) else (_tensor(found),)
    if not parts or not isinstance(parts[0], Tensor) or parts[0].dim() == 0:
        got = type(parts[0]).__name__ if parts and not isinstance(parts[0], Tensor) else "a tensor without dimensions"
        raise ValueError(f"a batch must be a tensor, (x, y) or a dictionary, got {got if parts else 'an empty one'}")
    size = len(parts[0])
    if len(parts) == 2 and isinstance(parts[1], Tensor):  # the second one is never an argument: labels, or targets
        if parts[1].dim() == 0 or len(parts[1]) != size:
            raise ValueError(f"y must have one entry for each of the {size} inputs, got shape {tuple(parts[1].shape)}")
        return Batch(parts[:1], {}, size), parts[1].cpu() if _are_labels(parts[1], size) else None
    return Batch(parts, {}, size), None


def _tensor(value: Any) -> Any:
    return torch.from_numpy(value) if isinstance(value, np.ndarray) and value.dtype != object else value


def _are_labels(value: Any, size: int) -> bool:
    """Whether these are whole numbers, one for each input."""
    fits = isinstance(value, Tensor) and value.dim() == 1 and len(value) == size
    return fits and not value.is_floating_point() and not value.is_complex()
