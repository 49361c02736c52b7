"""A model of one's own and its data for the explorer: `package.module:name`, checked before anything is shown."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

import neurocoder as nc

BATCH = 64
"""Inputs that pass through the model at once."""
LABELS = ("labels", "label", "targets", "target", "y")
"""Names under which a dictionary may hold the labels."""


class Batch(NamedTuple):
    """Arguments of one call of the model, with n inputs."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    size: int

    @property
    def first(self) -> Tensor | None:
        """The first tensor among the arguments: what can be shown as an image (n, ...)."""
        return next((value for value in (*self.args, *self.kwargs.values()) if isinstance(value, Tensor)), None)

    def changed(self, change: Callable[[Any], Any]) -> Batch:
        """With every argument changed."""
        return self._replace(
            args=tuple(map(change, self.args)), kwargs={name: change(value) for name, value in self.kwargs.items()}
        )

    def part(self, start: int, stop: int) -> Batch:
        """Some of the inputs: of every tensor that has one entry for each."""

        def cut(value: Any) -> Any:
            fits = isinstance(value, Tensor) and value.dim() > 0 and len(value) == self.size
            return value[start:stop] if fits else value

        return self.changed(cut)._replace(size=min(stop, self.size) - start)

    def to(self, device: torch.device) -> Batch:
        """With all tensors on a device."""
        return self.changed(lambda value: value.to(device) if isinstance(value, Tensor) else value)


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
        found = importlib.import_module(module)
    except Exception as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing and f"{module}.".startswith(f"{missing}."):
            raise ValueError(f"{option}: there is no module {missing!r}, got {reference!r}") from None
        raise ValueError(f"{option}: {module} cannot be imported: {line(error)}") from None
    try:
        return attrgetter(name)(found)
    except AttributeError:
        raise ValueError(f"{option}: {module} has no {name!r}, got {reference!r}") from None


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
    if isinstance(data, tuple | list):
        data = tuple(data) if _is_call(data) else list(data)
    try:
        for call in nc.inspect.calls(data, limit):
            batch, told, reason = _named(call.kwargs) if call.kwargs else _positional(call.args)
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
    known = [told for told in labels if told is not None]
    if len(known) == len(labels):
        return Inputs(batches, torch.cat(known))
    if known and not why:
        why = "some batches have none"
    return Inputs(batches, None, f"labels are not used: {why}" if why else "")


def _is_call(data: Any) -> bool:
    """Whether this is (x,), (x, y) or [x, y], not several batches."""
    if not data or not isinstance(data[0], Tensor | np.ndarray):
        return False
    if len(data) == 2 and _is_list(data[1]):
        return True
    if not all(isinstance(part, Tensor | np.ndarray) for part in data):
        return False
    return isinstance(data, tuple) or (len(data) == 2 and _unlike(*data))


def _is_list(value: Any) -> bool:
    """Whether these are plain numbers or words."""
    plain = isinstance(value, tuple | list) and bool(value)
    return plain and all(isinstance(entry, int | float | str | np.generic) for entry in value)


def _unlike(x: Any, y: Any) -> bool:
    """Whether the second of two tensors is no further batch of inputs, such as labels or targets."""
    floats = [part.is_floating_point() if isinstance(part, Tensor) else part.dtype.kind == "f" for part in (x, y)]
    if x.ndim != y.ndim or floats[0] != floats[1]:
        return True
    return floats[0] and x.ndim == 2 and len(x) == len(y) and x.shape != y.shape


def _positional(args: tuple[Any, ...]) -> tuple[Batch, Tensor | None, str]:
    """The arguments; if there are some, the labels (n,); or why what is in their place cannot be used."""
    if not args or not isinstance(args[0], Tensor) or args[0].dim() == 0:
        got = type(args[0]).__name__ if args and not isinstance(args[0], Tensor) else "a tensor without dimensions"
        raise ValueError(f"a batch must be a tensor, (x, y) or a dictionary, got {got if args else 'an empty one'}")
    size = len(args[0])
    y: Any = args[1] if len(args) == 2 else None
    if isinstance(y, Tensor | np.ndarray) or _is_list(y):  # never an argument: labels, or targets
        shape = tuple(y.shape) if isinstance(y, Tensor | np.ndarray) else (len(y),)
        if not shape or shape[0] != size:
            raise ValueError(f"y must have one entry for each of the {size} inputs, got shape {shape}")
        return Batch(args[:1], {}, size), *_labels(y)
    return Batch(args, {}, size), None, ""


def _named(named: dict[str, Any]) -> tuple[Batch, Tensor | None, str]:
    """As `_positional`, of arguments by name: only whole numbers, one for each input, are labels."""
    tensors = {name: value for name, value in named.items() if isinstance(value, Tensor)}
    tensors = {name: value for name, value in tensors.items() if name not in LABELS} or tensors
    if not tensors or any(value.dim() == 0 for value in tensors.values()):
        raise ValueError("a dictionary must hold tensors with one entry for each input")
    size = len(next(iter(tensors.values())))
    told = {name: _labels(named[name])[0] for name in LABELS if name in named and name not in tensors}
    labels = {name: value for name, value in told.items() if value is not None and len(value) == size}
    batch = Batch((), {name: value for name, value in named.items() if name not in labels}, size)
    return batch, next(iter(labels.values()), None), ""


def _labels(y: Any) -> tuple[Tensor | None, str]:
    """Whole numbers (n,), or why these are none."""
    if _is_list(y):
        y = np.asarray(y)
        if y.dtype.kind == "U":
            return None, "they are words, not whole numbers"
        y = torch.from_numpy(y) if y.dtype.kind in "biuf" else y
    if not isinstance(y, Tensor):
        return None, "they are words or objects, not whole numbers"
    if y.dim() != 1:
        return None, f"they must be whole numbers, one for each input, not of shape {tuple(y.shape)}"
    if y.is_floating_point() or y.is_complex():
        return None, f"they must be whole numbers, not {str(y.dtype).removeprefix('torch.')}"
    return y.detach().cpu(), ""
