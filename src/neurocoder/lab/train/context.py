"""What a run gets from the lab: its settings and device, what was saved, and where to report."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from numbers import Real
from typing import Any

import torch
from torch import Tensor, nn

import neurocoder as nc

from ..records.checkpoint import Checkpoint
from ..records.record import OWN

REPORT_EVERY = 0.5
"""Seconds between progress reports."""

REPORTED = ("history", "observations", "parameters", "model")
"""What a run has reported, which its checkpoints keep."""

Shown = float | Tensor | Callable[[], float]
"""A number to show beside the progress; a function is called only when it is shown."""


class TrainingError(RuntimeError):
    """A run that cannot continue; the message says why."""


class Interrupted(Exception):
    """A run that was stopped by a signal, and saved if possible."""

    def __init__(self, signal: int) -> None:
        super().__init__(signal)
        self.signal = signal


@dataclass
class RunHooks:
    """What may stop, save or watch a running run."""

    stopped: Callable[[], int] = lambda: 0
    """The stop signal, or 0."""
    save: Callable[[Checkpoint], None] | None = None
    interval: float = math.inf
    """Seconds between saves."""
    report: Callable[[int, int, str], None] | None = None
    """Receives progress: step, total steps, and numbers to show."""


class Context:
    """One run of an experiment.

    `run(context)` trains as it likes. It logs metrics, saves its state when `should_save` says so, and starts from
    `restored`; docs/lab.md has complete examples.
    """

    def __init__(
        self,
        config: Any,
        variant: str,
        seed: int,
        device: torch.device,
        *,
        loop: str = "plain",
        precision: str = "32-true",
        source: str = "",
        identity: Mapping[str, Any] | None = None,
        start: Checkpoint | None = None,
        hooks: RunHooks | None = None,
    ) -> None:
        self.config, self.variant, self.seed = config, variant, seed
        self.device, self.loop, self.precision = device, loop, precision
        """The loop is `plain` or `graph`, the precision `32-true` or `bf16-mixed`."""
        self.history: list[dict[str, float]] = []
        self.observations: dict[str, Any] = {}
        self.parameters: dict[str, int] = {}
        """By part, and `total`."""
        self.model: dict[str, Any] = {}
        """The config of each coded layer, by name."""
        self.sources = [source]
        """Hashes of the source that the run's parts were made with."""
        self._identity, self._hooks, self._start = dict(identity or {}), hooks or RunHooks(), start
        self._earlier, self._signal, self._rewound = 0.0, 0, False
        self._begun = self._saved = self._reported = time.monotonic()
        if start is not None:
            self._earlier = start.seconds
            self.sources = list(dict.fromkeys([*start.sources, *self.sources]))
            for name in REPORTED:
                setattr(self, name, start.run[name])

    @property
    def seconds(self) -> float:
        """Wall time of all parts of the run until now."""
        return self._earlier + time.monotonic() - self._begun

    @property
    def restored(self) -> dict[str, Any] | None:
        """What was last saved, tensors on the CPU; None at the start of a run. Read it when the model is built: the
        first reading also sets torch's random generators to where they were."""
        if self._start is None:
            return None
        state = dict(self._start.state)
        generators = state.pop("generators")
        if not self._rewound:
            self._rewound = True
            _set_generators(generators, self.device)
        return state

    def restore(self, **objects: Any) -> dict[str, Any] | None:
        """Load what was saved under these names into modules, optimisers and the like; returns all that was saved, or
        None at the start of a run."""
        state = self.restored
        if state is not None:
            for name, entry in objects.items():
                entry.load_state_dict(state[name])
        return state

    @property
    def should_stop(self) -> bool:
        """Whether the run was asked to stop. `save` then ends it, so most runs ask only `should_save`."""
        return bool(self._signal or self._hooks.stopped())

    @property
    def should_save(self) -> bool:
        """Whether to `save` now: it is time to, or the run was asked to stop. Ask once per step."""
        self._signal = self._hooks.stopped()
        return bool(self._signal) or time.monotonic() - self._saved > self._hooks.interval

    def save(self, **state: Any) -> None:
        """Write a checkpoint: tensors, numbers, strings, nested lists and dicts, and what has a `state_dict`. Torch's
        random generators are added. If the run was asked to stop, this ends it by an exception."""
        if "generators" in state:
            raise ValueError("save must not be given 'generators', where torch's random generators are kept")
        if self._hooks.save is not None:
            run = {name: getattr(self, name) for name in REPORTED}
            state = {**state, "generators": _generators(self.device)}
            self._hooks.save(Checkpoint(self._identity, run, self.seconds, self.sources, state))
        self._saved = time.monotonic()
        if signal := self._signal or self._hooks.stopped():
            raise Interrupted(signal)

    def progress(self, step: int, steps: int, **shown: Shown) -> None:
        """Show how far the run is, at most twice a second."""
        now = time.monotonic()
        if self._hooks.report is not None and now - self._reported > REPORT_EVERY:
            self._reported = now
            found = {name: value() if callable(value) else value for name, value in shown.items()}
            numbers = {name: float(v.detach() if isinstance(v, Tensor) else v) for name, v in found.items()}
            self._hooks.report(step, steps, ", ".join(f"{name} {value:.4g}" for name, value in numbers.items()))

    def log(self, step: int, /, **metrics: Any) -> None:
        """Add an entry to the history. The metrics of the last one are the result of the run; `loss`, the mean
        training loss since the entry before, is kept apart."""
        for name, value in metrics.items():
            if name == "step":
                raise ValueError("a metric must not be named 'step'")
            if not isinstance(value, Real):
                raise ValueError(f"metrics must be numbers (.item() of a tensor), got {value!r} as {name!r}")
        numbers = {name: value if isinstance(value, int | float) else float(value) for name, value in metrics.items()}
        self.history.append({"step": step, **numbers})

    def describe(self, model: nn.Module) -> None:
        """Keep the model's number of parameters and the config of each coded layer for the record."""
        self.parameters = nc.count_parameters(model)
        self.model = {name: asdict(layer.config) for name, layer in nc.coded_layers(model).items()}

    def observe(self, observations: Mapping[str, Any]) -> None:
        """Keep what the figures need: numbers, strings and nested lists."""
        self.observations |= observations

    def autocast(self) -> AbstractContextManager[Any]:
        """The run's precision, for what is computed in the block; the trainers of the lab use it by themselves."""
        mixed = self.precision == "bf16-mixed"
        return torch.autocast(self.device.type, torch.bfloat16) if mixed else nullcontext()


def final(history: list[dict[str, float]]) -> dict[str, float]:
    """The metrics of the last entry."""
    return {name: value for name, value in history[-1].items() if name not in OWN}


def _generators(device: torch.device) -> dict[str, Tensor]:
    """The states of torch's random generators."""
    found = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        found["cuda"] = torch.cuda.get_rng_state(device)
    return found


def _set_generators(states: Mapping[str, Tensor], device: torch.device) -> None:
    torch.set_rng_state(states["cpu"])
    if "cuda" in states:
        torch.cuda.set_rng_state(states["cuda"], device)
