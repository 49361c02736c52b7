"""Looking into a model while it runs: `record`."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import nn

from ..layer.base import CodedLayer
from ..layer.checks import require_module
from ..ops.compiled import run_uncompiled
from ..ops.torch_private import current_backward


class Recording(Mapping[str, Any]):
    """The programs composed while recording: `Programs`, or `GrowingPrograms` of a growing layer.

    Indexing by layer name gives the last call; `calls` gives all of them.

    A layer with several names is found under each of them and iterated over once, under the first.

    Example:
        >>> model = nc.recode(nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 4)), "*", nc.ProgramConfig(slots=10))
        >>> with nc.record(model) as trace:
        ...     y = model(torch.randn(32, 8))
        >>> list(trace), len(trace.calls("0"))
        (['0', '1'], 1)
    """

    def __init__(self, calls: dict[str, list[Any]], first_names: dict[str, str]) -> None:
        self._calls, self._first_names = calls, first_names

    def calls(self, name: str) -> list[Any]:
        """The programs of every call of this layer, in order (time steps, for instance)."""
        if name not in self._first_names:
            raise KeyError(f"no program layer {name!r} in the model; there is {', '.join(map(repr, self._calls))}")
        return self._calls[self._first_names[name]]

    def __getitem__(self, name: str) -> Any:
        calls = self.calls(name)
        if not calls:
            raise KeyError(f"layer {name!r} was not called while recording")
        return calls[-1]

    def __iter__(self) -> Iterator[str]:
        return (name for name, calls in self._calls.items() if calls)

    def __len__(self) -> int:
        return sum(1 for _ in self)


_blocks: ContextVar[tuple[int, ...]] = ContextVar("neurocoder_recordings", default=())
"""The blocks that the running thread or task is in, by number."""
_numbers = itertools.count()
_lock = threading.Lock()


class _Recorder:
    """What `layer.recorded` holds while a block is open, in whatever thread; None otherwise."""

    def __init__(self) -> None:
        self.calls: dict[int, list[Any]] = {}
        """For each open block: the programs of this layer's calls in it."""

    def append(self, programs: Any) -> None:
        """Keep the programs of a call in each open block around it."""
        if torch.compiler.is_compiling():  # inside a block, and before it nothing was compiled
            blocks = tuple(self.calls)  # compiled code cannot tell threads apart
        elif current_backward() >= 0:  # in a backward, activation checkpointing repeats the call
            blocks = ()
        else:
            blocks = _blocks.get()
        for block in blocks:
            self.calls.get(block, []).append(programs)


@contextmanager
def record(model: nn.Module) -> Iterator[Recording]:
    """Record the programs that each program layer composes.

    A call is recorded in every block around it: those of the thread or asyncio task that makes the call. A thread that
    is started inside the block is another one, as those of `DataParallel` are, unless it is given the context, as
    `asyncio.to_thread` does; a task that is started inside the block is given it. Calls that activation checkpointing
    repeats in the backward do not count.

    Compiled models run uncompiled while any block is open, in every thread, and are not recompiled afterwards.

    Example:
        >>> model = nc.recode(nn.Sequential(nn.Linear(8, 4)), "0", nc.ProgramConfig(slots=10, steps=2, heads=3))
        >>> with nc.record(model) as trace:
        ...     y = model(torch.randn(32, 8))
        >>> trace["0"].u.shape  # detached
        torch.Size([32, 6, 10])
    """
    require_module("model", model)
    names_of: dict[CodedLayer, list[str]] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        if isinstance(module, CodedLayer) and module.has_programs:
            names_of.setdefault(module, []).append(_plain_name(name))
    if not names_of:
        raise ValueError("model must have a program layer to record, found none: use nc.recode or nc.Linear first")
    calls: dict[str, list[Any]] = {names[0]: [] for names in names_of.values()}
    first_names = {name: names[0] for names in names_of.values() for name in names}
    block = next(_numbers)
    with _lock:
        for layer, names in names_of.items():
            layer.recorded = layer.recorded or _Recorder()
            layer.recorded.calls[block] = calls[names[0]]
    _blocks.set((*_blocks.get(), block))
    try:
        with run_uncompiled():
            yield Recording(calls, first_names)
    finally:
        _blocks.set(tuple(other for other in _blocks.get() if other != block))
        with _lock:
            for layer in names_of:
                del layer.recorded.calls[block]
                layer.recorded = layer.recorded if layer.recorded.calls else None


def _plain_name(name: str) -> str:
    """The layer's name in the model before `torch.compile` wrapped it."""
    return ".".join(part for part in name.split(".") if part != "_orig_mod")
