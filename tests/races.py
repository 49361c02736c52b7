"""Looks for races between streams, without a GPU.

While a CUDA graph is recorded, work goes to several streams. Here streams are mere names: operations and kernels run on
the CPU one after the other, and each notes which numbers it read and wrote, and what it is sure to come after. Two that
touch the same number, one of them writing, must be sure to come one after the other. Memory belongs to the stream that
made it: given back, it may be used again by what comes next there, which must have waited for all that touched it.
"""

import weakref
from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves
from triton.runtime.interpreter import InterpretedFunction

import neurocoder as nc
from neurocoder.ops import launch as side_stream


class Race(AssertionError):
    """Two streams that may touch the same memory at the same time."""


class Stream:
    """`clock`: for each stream, how many of its operations are sure to be done before what comes next on this one."""

    def __init__(self, device=None):
        self.device, self.clock = device, {}

    def wait_stream(self, other):
        self.wait_event(other.clock)

    def record_event(self):
        return dict(self.clock)

    def wait_event(self, event):
        self.clock = {key: max(self.clock.get(key, 0), event.get(key, 0)) for key in self.clock | event}


@contextmanager
def watching(monkeypatch, is_traced):
    """A watch over kernels in eager mode: `is_traced`, by its full name, is off. New memory is spoilt, so that all that
    a kernel writes is seen to change."""
    monkeypatch.setattr(is_traced, lambda: False)
    torch.use_deterministic_algorithms(True)
    with nc.backend("triton"):
        yield Watch(monkeypatch)
    torch.use_deterministic_algorithms(False)


def look_at(tensors):
    """Read every gradient, as what follows a backward does."""
    for tensor in tensors:
        if tensor.grad is not None:
            tensor.grad.add(1)


class Watch(TorchDispatchMode):
    """Inside, branches have streams; at the end the first race is raised as `Race`."""

    def __init__(self, monkeypatch):
        super().__init__()
        self.current, self.owners, self.touched, self.given_back, self.races = Stream(), {}, {}, {}, []
        cuda = SimpleNamespace(Stream=Stream, current_stream=lambda device: self.current, set_stream=self.go_to)
        stand_in = SimpleNamespace(cuda=cuda, float32=torch.float32, backends=torch.backends)
        monkeypatch.setattr(side_stream, "torch", stand_in)
        monkeypatch.setattr(side_stream, "capturing", lambda tensor: True)
        monkeypatch.setattr(side_stream, "_streams", {})
        run = InterpretedFunction.run
        monkeypatch.setattr(InterpretedFunction, "run", lambda *args, **options: self.launch(run, *args, **options))

    def __exit__(self, kind, error, trace):
        super().__exit__(kind, error, trace)
        races, self.races = self.races, []
        if races and error is None:
            raise Race(races[0])

    def go_to(self, stream):
        self.current = stream

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        schema = function._schema
        found = function(*args, **(kwargs or {}))
        self.begin()
        if any(value.alias_info is not None and not value.alias_info.is_write for value in schema.returns):
            return found  # a view
        named = {argument.name: value for argument, value in zip(schema.arguments, args, strict=False)} | (kwargs or {})
        changed = [a.name for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write]
        written = [*tensors(found), *tensors([named.get(name) for name in changed])]
        for tensor in written:
            self.note(tensor, places(tensor), "empty" not in schema.name, schema.name)
        for tensor in tensors(args):
            self.note(tensor, places(tensor), False, schema.name)
        return found

    def launch(self, run, kernel, *args, **options):
        """A Triton kernel reads what it is given, and writes what has changed after it."""
        given = tensors([args, options])
        with _disable_current_modes():
            before = [contents(tensor).copy() for tensor in given]
            run(kernel, *args, **options)
            self.begin()
            for tensor, old in zip(given, before, strict=True):
                self.note(tensor, contents(tensor) != old, True, kernel.__name__)
                self.note(tensor, places(tensor), False, kernel.__name__)

    def begin(self):
        """The next operation on this stream."""
        clock, key = self.current.clock, id(self.current)
        for other, then, _, _, what in self.given_back.pop(key, []):
            if clock.get(other, 0) < then:
                self.races.append(f"memory is used again while {what} may still use it")
        clock[key] = clock.get(key, 0) + 1

    def note(self, tensor, where, writes, label):
        storage = tensor.untyped_storage()
        key = storage.data_ptr()
        if not where.any():
            return
        if key not in self.owners:
            self.owners[key], self.touched[key] = id(self.current), []
            weakref.finalize(storage, self.freed, key)
        for other, then, there, wrote, what in self.touched[key]:
            if (writes or wrote) and self.current.clock.get(other, 0) < then and (there & where).any():
                self.races.append(f"{label} does not wait for {what}")
        mine = id(self.current)
        self.touched[key].append((mine, self.current.clock[mine], where, writes, label))

    def freed(self, key):
        self.given_back.setdefault(self.owners.pop(key), []).extend(self.touched.pop(key))


def tensors(values):
    return [value for value in tree_leaves(values) if isinstance(value, torch.Tensor) and value.numel()]


def contents(tensor):
    """The bits of a tensor's whole memory, as numbers of the tensor's size."""
    size = tensor.element_size()
    return np.frombuffer(bytes(tensor.untyped_storage()), dtype=f"u{size}")


def places(tensor):
    """Where in its memory a tensor's numbers stand."""
    at = np.array(tensor.storage_offset())
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        at = at[..., None] + np.arange(size) * stride
    found = np.zeros(tensor.untyped_storage().nbytes() // tensor.element_size(), dtype=bool)
    found[at.ravel()] = True
    return found
