"""What data may be, wherever inputs pass through a model: it is read here, call by call."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, from_numpy, nn
from torch.utils.data import Dataset, IterableDataset, default_collate

from ..ops.compiled import run_uncompiled

DATA = "a tensor, a tuple of arguments, a dictionary of keyword arguments, a data set, or an iterable of these"
BATCH = 64
"""Inputs of a data set that make one call."""


class Call(NamedTuple):
    """The arguments of one call of a model: `model(*call.args, **call.kwargs)`.

    Example:
        >>> nc.inspect.Call((torch.zeros(2),), {"scale": 3.0}).kwargs
        {'scale': 3.0}
    """

    args: tuple[Any, ...]
    kwargs: dict[str, Any]


def require_data(data: Any, hint: str = "", name: str = "data") -> None:
    """Require what `calls` takes; `hint` follows the error about a word."""
    if isinstance(data, str | bytes | nn.Module) or not isinstance(data, Iterable | Dataset):
        raise ValueError(f"{name} must be {DATA}, got {data!r}{hint if isinstance(data, str) else ''}")


def calls(data: Any, limit: int | None = None) -> Iterator[Call]:
    """The calls of a model that data stands for, as `nc.restore(model, data=...)` makes them.

    Args:
        data: a tensor, a tuple of arguments or a dictionary of keyword arguments for one call; or a loader, which is an
            iterable of these (lists count as tuples); or a data set, 64 inputs to a call. NumPy arrays count as
            tensors.
        limit: inputs of a data set to read at most.

    Example:
        >>> x, y = torch.randn(6, 4), torch.arange(6)
        >>> [len(call.args) for call in nc.inspect.calls([(x[:4], y[:4]), (x[4:], y[4:])])]
        [2, 2]
        >>> [list(call.kwargs) for call in nc.inspect.calls({"input": x})]
        [['input']]
    """
    require_data(data)
    if isinstance(data, Dataset):
        data = _collated(data, limit)
    for batch in [data] if isinstance(data, Tensor | np.ndarray | tuple | Mapping) else data:
        found = _tensor(batch)
        if isinstance(found, Tensor):
            yield Call((found,), {})
        elif isinstance(found, tuple | list):
            yield Call(tuple(map(_tensor, found)), {})
        elif isinstance(found, Mapping):
            yield Call((), {str(name): _tensor(value) for name, value in found.items()})
        else:
            raise ValueError(f"data must be {DATA}, got a batch that is {type(batch).__name__}: wrap it as (batch,)")


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Eval mode; afterwards every module has its own again."""
    modes = [(module, module.training) for module in model.modules()]
    try:
        model.eval()
        yield
    finally:
        for module, mode in modes:
            module.training = mode


def pass_through(model: nn.Module, data: Any, layers: Iterable[Any], see: Callable[..., None]) -> Call | None:
    """Pass data through a model once, in eval mode and without gradients; returns the first call, if there is any.

    Args:
        model: any module.
        data: as in `calls`.
        layers: the modules in it to look at.
        see: `see(layer, args, kwargs)` is called after each call of one of them.
    """
    handles = [one.register_forward_hook(lambda *seen: see(*seen[:3]), with_kwargs=True) for one in layers]
    first = None
    try:
        with evaluating(model), torch.no_grad(), run_uncompiled():
            for call in calls(data):
                require_fit(model, call)
                first = first or call
                model(*call.args, **call.kwargs)
    finally:
        for handle in handles:
            handle.remove()
    return first


def _collated(data: Any, limit: int | None) -> Iterator[Any]:
    """A data set has single inputs: batches of them."""
    items = iter(data) if isinstance(data, IterableDataset) else (data[index] for index in range(len(data)))
    items = islice(items, limit)
    while batch := list(islice(items, BATCH)):
        yield default_collate(batch)


def _tensor(value: Any) -> Any:
    return from_numpy(value) if isinstance(value, np.ndarray) and value.dtype.kind in "biufc" else value


def require_fit(model: nn.Module, call: Call) -> None:
    """Require arguments that the model's forward accepts."""
    try:
        signature = inspect.signature(model.forward)
    except (TypeError, ValueError):
        return
    try:
        signature.bind(*call.args, **call.kwargs)
    except TypeError as error:
        raise ValueError(
            f"data must be what the model's forward takes: {error}. A tuple gives its arguments (several batches make "
            "a list), a dictionary its keyword arguments; of (input, label) pairs take the inputs: "
            "data=(x for x, _ in loader)"
        ) from error
