"""What is measured: layers and training steps, the ways to run them, and for how long."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import neurocoder as nc

Device = Literal["cpu", "cuda"]
Dtype = Literal["float32", "bfloat16"]
Mode = Literal["eager", "compiled", "wrapped", "graphed", "graph"]
COMPILED: dict[str, dict[str, Any]] = {"compiled": {}, "wrapped": {"options": {"cpp_wrapper": True}}}
"""Arguments of torch.compile in each mode that uses it."""
Direction = Literal["forward", "forward+backward", "step"]

LAYERS = ("linear", "program", "materialising", "mixture", "stored")
STEPS = ("plain", "recoded")
BASELINES = {"linear", "plain"}
"""Contenders that ratios are relative to."""
GIB = 2**30
MIXTURE = nc.MixtureConfig(experts=10, active=2)
STORED = nc.StoredProgramConfig(programs=10)


class Group(NamedTuple):
    """Contenders that are timed side by side."""

    dtype: Dtype
    mode: Mode
    direction: Direction
    contenders: tuple[str, ...]

    def title(self) -> str:
        """For progress lines."""
        return f"{self.dtype} {self.mode} {self.direction}"


@dataclass(frozen=True)
class Case:
    """A linear map (`widths` of length 2) or a whole training step of an MLP (longer), coded by `program`."""

    name: str
    widths: tuple[int, ...]
    batch: int
    program: nc.ProgramConfig
    groups: tuple[Group, ...]
    threads: int | None = None
    """CPU threads; None: torch's default."""
    point: int | None = None
    """The value on a growth axis."""

    @property
    def is_step(self) -> bool:
        """Whether this is a training step."""
        return len(self.widths) > 2

    def program_bytes(self) -> int:
        """Size of W_t for the whole batch in float32."""
        return 4 * self.batch * self.widths[0] * self.widths[1]

    def without(self, skipped: Iterable[str]) -> Case:
        """Leave out groups by dtype, mode or direction."""
        return replace(self, groups=tuple(group for group in self.groups if not set(group[:3]) & set(skipped)))

    def against(self) -> Case:
        """Only the program layer, its earlier version and the baseline."""
        contenders = ("linear", "program", "earlier")
        return replace(self, groups=tuple(group._replace(contenders=contenders) for group in self.groups))

    def quick(self) -> Case:
        """Compile only the program layer and its baseline: compilation takes longest."""
        fewer = (g._replace(contenders=g.contenders[:2]) if g.mode in COMPILED else g for g in self.groups)
        return replace(self, groups=tuple(fewer))

    def config(self) -> dict[str, Any]:
        """Everything that defines the measurement, ready for JSON."""
        return {
            "widths": list(self.widths),
            "batch": self.batch,
            "program": self.program.to_dict(),
            "mixture": MIXTURE.to_dict(),
            "stored": STORED.to_dict(),
            "threads": self.threads,
            "groups": [[*group[:3], list(group.contenders)] for group in self.groups],
        }


@dataclass(frozen=True)
class Settings:
    """How long to measure, and the limits."""

    device: Device
    seconds: float
    """Time for the repetitions of one contender in one group."""
    repetition: float
    """A repetition makes enough calls to last this many seconds."""
    limit: int
    """Bytes of W_t beyond which the materialising contender is skipped."""
    minimum: int = 10
    """Minimum number of repetitions, or three if they would take more than `slow` seconds."""
    slow: float = 20.0
    check_rows: int = 8
    """Inputs on which results are compared; fewer for large layers."""
    seed: int = 0
    against: str | None = None
    """Source folder of an earlier version of the library, the contender `earlier`."""


def settings(device: Device, quick: bool) -> Settings:
    """About 1.5 s per measurement on a CPU, 0.3 s on a GPU, 0.2 s with `quick`."""
    if device == "cuda":
        return Settings(device, 0.2 if quick else 0.3, 0.005, 24 * GIB)
    return Settings(device, 0.2 if quick else 1.5, 0.02, 4 * GIB)


def program(slots: int, steps: int, heads: int, hidden: int, residual: bool = True) -> nc.ProgramConfig:
    """K = 5 and l_I = 5 (or P, if that is less)."""
    return nc.ProgramConfig(slots, 5, steps, heads, min(5, slots), hidden, residual=residual)


def groups(
    dtypes: Sequence[Dtype],
    modes: Sequence[Mode],
    directions: Sequence[Direction],
    compiled: tuple[str, ...] = LAYERS,
    captured: tuple[str, ...] = LAYERS,
) -> tuple[Group, ...]:
    """The combinations, with the contenders that are compiled and captured.

    To save GPU time, graphs and bfloat16 compilation are measured with backward only. Graphed layers do not support
    autocast.
    """
    chosen = {"eager": LAYERS, "compiled": compiled, "wrapped": compiled, "graphed": compiled, "graph": captured}
    backward_only = {("graph", "float32"), ("graph", "bfloat16"), ("graphed", "float32"), ("compiled", "bfloat16")}
    return tuple(
        Group(dtype, mode, direction, chosen[mode])
        for dtype in dtypes
        for mode in modes
        for direction in directions
        if (mode, dtype) != ("graphed", "bfloat16") and (direction != "forward" or (mode, dtype) not in backward_only)
    )


SMALL = program(6, 5, 1, hidden=8, residual=False)
BOTH: tuple[Direction, ...] = ("forward", "forward+backward")


def cpu_cases() -> list[Case]:
    """Batches on all cores; single inputs on one."""
    batch = groups(["float32"], ["eager", "compiled"], BOTH)
    large = groups(["float32"], ["eager", "compiled"], BOTH, LAYERS[:2])
    single = groups(["float32"], ["eager", "compiled", "wrapped"], ["forward"])
    return [
        Case("784x10", (784, 10), 128, SMALL, batch),
        Case("1024x1024", (1024, 1024), 256, program(30, 5, 3, 32), batch),
        Case("4096x4096", (4096, 4096), 256, program(50, 5, 3, 32), large),
        Case("784x10-single", (784, 10), 1, SMALL, single, threads=1),
        Case("1024x1024-single", (1024, 1024), 1, program(30, 5, 3, 32), single, threads=1),
    ]


def cuda_cases() -> list[Case]:
    """Compilation takes seconds each time: only the program layer and its baseline are compiled, or graphed. A graph
    would keep all the memory that building W_t for a large batch needs."""
    both: tuple[Dtype, ...] = ("float32", "bfloat16")
    modes: tuple[Mode, ...] = ("eager", "compiled", "graphed", "graph")
    small = groups(both, modes, BOTH, compiled=LAYERS[:2])
    large = groups(both, modes, BOTH, compiled=LAYERS[:2], captured=("linear", "program", "mixture", "stored"))
    step = tuple(Group("float32", mode, "step", STEPS) for mode in ("eager", "graph"))
    return [
        Case("784x10", (784, 10), 128, SMALL, small),
        Case("1024x1024", (1024, 1024), 4096, program(50, 1, 10, 32), large),
        Case("4096x4096", (4096, 4096), 4096, program(50, 5, 3, 32), large),
        Case("mlp-step", (3072, 512, 256, 10), 128, program(30, 1, 10, 8), step),
    ]


QUICK = {"cpu": ("784x10", "784x10-single"), "cuda": ("784x10", "mlp-step")}


def cases(device: Device, quick: bool = False) -> dict[str, Case]:
    """The cases of a device by name; only the small ones with `quick`."""
    found = {case.name: case for case in (cuda_cases() if device == "cuda" else cpu_cases())}
    return {name: found[name].quick() for name in QUICK[device]} if quick else found
