"""Looking into a model while it runs, and steering it: `record` and `control`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from torch import Tensor, nn

from .coded import coded_layers
from .program import ProgramLayer, Programs


class Recording(Mapping[str, Programs]):
    """The programs composed while recording: by layer name those of the last call, all of them by `calls`."""

    def __init__(self, calls: dict[str, list[Programs]]) -> None:
        self._calls = calls

    def calls(self, name: str) -> list[Programs]:
        """The programs of every call of this layer, in order (time steps, for instance)."""
        if name not in self._calls:
            raise KeyError(f"no program layer {name!r} was recorded; there is {', '.join(map(repr, self._calls))}")
        return self._calls[name]

    def __getitem__(self, name: str) -> Programs:
        calls = self.calls(name)
        if not calls:
            raise KeyError(f"layer {name!r} was not called while recording")
        return calls[-1]

    def __iter__(self) -> Iterator[str]:
        return (name for name, calls in self._calls.items() if calls)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __contains__(self, name: object) -> bool:
        return bool(self._calls.get(name))  # type: ignore[call-overload]  # any object may be asked for


@contextmanager
def record(model: nn.Module) -> Iterator[Recording]:
    """Record the programs that each program layer composes.

        with nc.record(model) as trace:
            model(x)
        trace["fc"].u        # detached

    A compiled model is recorded too: entering and leaving recompiles it once each.
    """
    layers = {
        _plain_name(name): layer for name, layer in coded_layers(model).items() if isinstance(layer, ProgramLayer)
    }
    if not layers:
        raise ValueError("record needs a model with a program layer, found none: use nc.recode or nc.Linear first")
    before = {name: layer.recorded for name, layer in layers.items()}
    calls: dict[str, list[Programs]] = {name: [] for name in layers}
    try:
        for name, layer in layers.items():
            layer.recorded = calls[name]
        yield Recording(calls)
    finally:
        for name, layer in layers.items():
            layer.recorded = before[name]


def _plain_name(name: str) -> str:
    """The name that the layer has in the model before `torch.compile` wrapped it."""
    return ".".join(part for part in name.split(".") if part != "_orig_mod")


@contextmanager
def control(model: nn.Module, z: Tensor) -> Iterator[None]:
    """Steer by `z (..., control_dim)` the layers of the model that were built with `control_dim`."""
    layers = [layer for layer in coded_layers(model).values() if layer.control_dim is not None]
    if not layers:
        raise ValueError(
            "control needs a layer that was built with control_dim, found none: use nc.recode(..., control_dim=...)"
        )
    for layer in layers:
        if z.dim() == 0 or z.shape[-1] != layer.control_dim:
            raise ValueError(f"control must have shape (..., {layer.control_dim}), got {tuple(z.shape)}")
    before = [layer.ambient_control for layer in layers]
    try:
        for layer in layers:
            layer.ambient_control = z
        yield
    finally:
        for layer, value in zip(layers, before, strict=True):
            layer.ambient_control = value
