"""What is measured: layers and training steps, the ways to run them, and for how long."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import neurocoder as nc

from ..records import environment

COMPILED: dict[str, dict[str, Any]] = {
    "compiled": {},
    "wrapped": {"options": {"cpp_wrapper": True}},
    "reduced": {"mode": "reduce-overhead"},
}
"""Arguments of torch.compile in each mode that uses it."""
LAYERS = ("linear", "program", "materialising", "mixture", "stored")
PAIR = LAYERS[:2]
GROWN = ("linear", "growing")
CORES = ("linear", "core", "steered")
GPT = ("gpt", "gpt-core", "gpt-steered")
PATHS = ("torch", "cpu")
"""Implementations of one layer, the names that `nc.backend` knows."""
BASELINES = ("linear", "plain", "torch", "gpt")
"""Contenders that ratios are relative to."""
BACKWARD = ("forward+backward",)
BOTH = ("forward", *BACKWARD)
AXES = {"slots": "P", "steps": "J", "heads": "H", "width": "width", "batch": "batch"}
"""Sizes with which the cost grows, and the names that the plots use."""
GIB = 2**30
MIXTURE = nc.MixtureConfig(experts=10, active=2)
STORED = nc.StoredProgramConfig(programs=10)
CONTROL = 8
"""Width of the control of steered layers."""


class Group(NamedTuple):
    """Contenders that are timed side by side."""

    dtype: str
    mode: str
    direction: str
    contenders: tuple[str, ...]


@dataclass(frozen=True)
class Case:
    """A linear map (`widths` of length 2), or a whole training step of an MLP or the MLPs of a GPT (longer), coded by
    `program`: composed programs, a growing memory with all its slots written, or core programs."""

    name: str
    widths: tuple[int, ...]
    batch: int
    program: nc.ProgramConfig | nc.GrowingConfig | nc.CoreConfig
    groups: tuple[Group, ...]
    threads: int | None = None
    """CPU threads; None: torch's default."""
    axis: str | None = None
    points: tuple[int, ...] = ()
    """The size that grows, and its values."""
    against: str | None = None
    """Source folder of an earlier version of the library, the contender `earlier`."""

    @property
    def family(self) -> str:
        """`growth` or `path`; of another case, its name."""
        return self.name.partition("-")[0] if self.axis else self.name

    def at(self, point: int | None) -> Case:
        """The case with another value of its axis."""
        if self.axis is None or point is None:
            return self
        if self.axis == "width":
            return replace(self, widths=(point, point))
        if self.axis == "batch":
            return replace(self, batch=point)
        assert isinstance(self.program, nc.ProgramConfig)
        slots = point if self.axis == "slots" else self.program.slots
        changes: dict[str, Any] = {"least_used": min(self.program.least_used, slots), self.axis: point}
        return replace(self, program=replace(self.program, **changes))

    def config(self) -> dict[str, Any]:
        """Everything that defines the measurement, for JSON; an earlier library by its hash."""
        earlier = self.against and environment.source(Path(self.against, "neurocoder"), without="lab")
        return {**asdict(self), "mixture": asdict(MIXTURE), "stored": asdict(STORED), "against": earlier}


@dataclass(frozen=True)
class Settings:
    """How long to measure, and the limits."""

    device: str
    seconds: float
    """Time for the repetitions of one contender in one group."""
    repetition: float
    """A repetition makes enough calls to last this many seconds."""
    limit: int
    """Bytes of W_t for the whole batch beyond which the materialising contender is skipped."""
    minimum: int = 10
    """Minimum number of repetitions, or three if they would take more than `slow` seconds."""
    slow: float = 20.0
    check_rows: int = 8
    """Inputs on which results are compared; fewer for large layers."""
    seed: int = 0


def settings(device: str, quick: bool, growth: bool = False) -> Settings:
    """Less time for each point of a growth axis: there are many."""
    seconds, repetition, limit = (0.3, 0.005, 24 * GIB) if device == "cuda" else (1.5, 0.02, GIB)
    whole = Settings(device, 0.2 if quick else seconds, repetition, limit)
    return replace(whole, seconds=whole.seconds / 3, minimum=5, slow=5.0, check_rows=1) if growth else whole


def program(slots: int, steps: int, heads: int, hidden: int, residual: bool = True) -> nc.ProgramConfig:
    """K = 5 and l_I = 5."""
    return nc.ProgramConfig(slots, 5, steps, heads, 5, hidden, residual=residual)


def groups(
    dtype: str, modes: Iterable[str], directions: Sequence[str], contenders: tuple[str, ...] = LAYERS
) -> tuple[Group, ...]:
    """All combinations of modes and directions."""
    return tuple(Group(dtype, mode, direction, contenders) for mode in modes for direction in directions)


def growth(base: Case, **ranges: tuple[int, int]) -> list[Case]:
    """One axis at a time around a base case, over the powers of two from the first to the last of each range."""
    base = replace(base, groups=groups("float32", ["eager"], BACKWARD, LAYERS[:3]))
    points = {axis: tuple(2**n for n in range(30) if first <= 2**n <= last) for axis, (first, last) in ranges.items()}
    return [replace(base, name=f"growth-{axis}", axis=axis, points=points[axis]) for axis in ranges]


def paths() -> list[Case]:
    """Two implementations over the number of steps, for a small, a middle and a large layer."""
    both = groups("float32", ["eager"], BOTH, PATHS)
    layers = {(784, 10): SMALL, (256, 256): program(16, 1, 2, 32), (1024, 1024): program(30, 1, 3, 32)}
    return [
        Case(f"path-{d_in}x{d_out}-{batch}", (d_in, d_out), batch, config, both, axis="steps", points=(1, 2, 3, 5))
        for (d_in, d_out), config in layers.items()
        for batch in (32, 256)
    ]


SMALL = program(6, 5, 1, hidden=8, residual=False)
GROWING = nc.GrowingConfig(slots=1000, max_slots=1000, count="inputs", consolidation=30.0)


def cpu_cases() -> list[Case]:
    """Batches on all cores; single inputs on one."""
    batch = groups("float32", ["eager", "compiled"], BOTH)
    large = groups("float32", ["eager"], BOTH) + groups("float32", ["compiled"], BOTH, PAIR)
    single = groups("float32", ["eager", "compiled", "wrapped"], ["forward"])
    cores = groups("float32", ["eager", "compiled"], BOTH, CORES)
    base = Case("growth", (512, 512), 128, program(16, 4, 2, 32), ())
    return [
        Case("784x10", (784, 10), 128, SMALL, batch),
        Case("1024x1024", (1024, 1024), 256, program(30, 5, 3, 32), batch),
        Case("4096x4096", (4096, 4096), 256, program(50, 5, 3, 32), large),
        Case("growing", (1024, 1024), 256, GROWING, groups("float32", ["eager"], BOTH, GROWN)),
        Case("core-784x10", (784, 10), 128, nc.CoreConfig(), cores),
        Case("core-1024x1024", (1024, 1024), 256, nc.CoreConfig(), cores),
        Case("784x10-single", (784, 10), 1, SMALL, single, threads=1),
        Case("1024x1024-single", (1024, 1024), 1, program(30, 5, 3, 32), single, threads=1),
        *growth(base, slots=(4, 64), steps=(1, 8), heads=(1, 8), width=(128, 2048), batch=(16, 1024)),
        *paths(),
    ]


def cuda_cases() -> list[Case]:
    """Compilation takes seconds each time: only the program layer and its baseline are compiled, or graphed. Graphed
    layers do not support autocast. A graph would keep all the memory that building W_t for a large batch needs."""
    base = Case("growth", (1024, 1024), 4096, program(32, 4, 4, 32), ())
    step = groups("float32", ["eager", "graph"], ["step"], ("plain", "recoded"))
    small, large = (
        (
            *groups("float32", ["eager"], BOTH),
            *groups("float32", ["compiled"], BOTH, PAIR),
            *groups("float32", ["graphed"], BACKWARD, PAIR),
            *groups("float32", ["graph"], BACKWARD, captured),
            *groups("bfloat16", ["eager"], BOTH),
            *groups("bfloat16", ["compiled"], BACKWARD, PAIR),
            *groups("bfloat16", ["graph"], BACKWARD, captured),
        )
        for captured in (LAYERS, ("linear", "program", "mixture", "stored"))
    )
    growing = groups("float32", ["eager"], BOTH, GROWN) + groups("float32", ["graph"], BACKWARD, GROWN)
    growing += groups("bfloat16", ["graph"], BACKWARD, GROWN)
    cores = groups("float32", ["eager"], BOTH, CORES) + groups("float32", ["graph"], BACKWARD, CORES)
    compiled = groups("float32", ["compiled", "reduced"], BACKWARD, CORES)
    blocks = groups("bfloat16", ["eager", "compiled"], BACKWARD, GPT)
    reduced = groups("bfloat16", ["reduced"], BACKWARD, GPT)
    return [
        Case("784x10", (784, 10), 128, SMALL, small),
        Case("1024x1024", (1024, 1024), 4096, program(50, 1, 10, 32), large),
        Case("4096x4096", (4096, 4096), 4096, program(50, 5, 3, 32), large),
        Case("growing", (1024, 1024), 4096, GROWING, growing),
        Case("core-1024x1024", (1024, 1024), 4096, nc.CoreConfig(), cores),
        Case("core-1024x1024-compiled", (1024, 1024), 4096, nc.CoreConfig(), compiled),
        Case("gpt", (768, 3072, 768), 8, nc.CoreConfig(), blocks),
        Case("gpt-reduced", (768, 3072, 768), 8, nc.CoreConfig(), reduced),
        Case("mlp-step", (3072, 512, 256, 10), 128, program(30, 1, 10, 8), step),
        *growth(base, slots=(8, 256), steps=(1, 16), heads=(1, 16), width=(256, 4096), batch=(256, 16384)),
    ]


QUICK = ("784x10", "core-784x10", "784x10-single", "mlp-step")


def cases(device: str, quick: bool = False) -> dict[str, Case]:
    """The cases of a device by name; only small ones with `quick`."""
    found = cuda_cases() if device == "cuda" else cpu_cases()
    return {case.name: case for case in found if not quick or case.name in QUICK}
