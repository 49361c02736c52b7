"""`neurocoder bench`: benchmark program layers against plain ones, or build the report from the records."""

from __future__ import annotations

import dataclasses
import os
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Literal
from unittest import mock

import torch
import tyro

from ..records import environment
from . import records, report
from .cases import BOTH, COMPILED, Case, cases, settings
from .measure import Log, compile_kernels, measure_case
from .tables import MODES

BUSY = 0.5
"""Load of the machine, over its cores, beyond which times are unsteady."""
SKIPPABLE = ("growth", "path", "float32", "bfloat16", *MODES, *BOTH)


@dataclasses.dataclass(frozen=True)
class Options:
    """Benchmark program layers against plain ones, or build the report from the records."""

    device: Literal["cpu", "cuda"] = "cuda" if torch.cuda.is_available() else "cpu"
    """Device to measure on."""
    quick: bool = False
    """Only small cases, less time each; to results/bench-quick."""
    cases: Annotated[tuple[str, ...], tyro.conf.arg(metavar="CASE ...", help_behavior_hint="(default: all)")] = ()
    """Only these."""
    skip: Annotated[
        tuple[str, ...],
        tyro.conf.arg(metavar="WHAT ...", help=f"Any of {', '.join(SKIPPABLE)}.", help_behavior_hint="(default: none)"),
    ] = ()
    overwrite: bool = False
    """Measure finished cases again."""
    against: Annotated[Path | None, tyro.conf.arg(metavar="SRC")] = None
    """Compare with the library in this source folder; to results/bench-pairs."""
    output: Annotated[Path | None, tyro.conf.arg(help_behavior_hint="(default: results/bench)")] = None
    """Folder for the records."""
    report: bool = False
    """Only build the page from the records."""
    docs: Path = Path("docs")
    """Folder for the page and its images."""

    def __post_init__(self) -> None:
        if self.device == "cuda" and not (torch.cuda.is_available() or self.report):
            raise ValueError("--device must be cpu where there is no GPU, got cuda")
        for option, given, known in (
            ("--cases", self.cases, tuple(cases(self.device, self.quick))),
            ("--skip", self.skip, SKIPPABLE),
        ):
            if unknown := [name for name in given if name not in known]:
                raise ValueError(f"{option} must be among {', '.join(known)}, got {unknown[0]}")
        if self.against and not (self.against / "neurocoder" / "__init__.py").is_file():
            raise ValueError(f"--against must be a folder with the package neurocoder, got {self.against}")

    @property
    def records(self) -> Path:
        """The folder for the records."""
        folder = "bench-pairs" if self.against else "bench-quick" if self.quick else "bench"
        return self.output or Path("results", folder)


def wanted(options: Options) -> Iterator[Case]:
    """The cases to measure, without what is skipped."""
    for name, case in cases(options.device, options.quick).items():
        groups = [group for group in case.groups if not set(group[:3]) & set(options.skip)]
        if options.quick:  # compilation takes longest
            groups = [g._replace(contenders=g.contenders[:2]) if g.mode in COMPILED else g for g in groups]
        if options.against:
            pairs = ("linear", "program", "earlier")
            groups = [g._replace(contenders=pairs) for g in groups if "program" in g.contenders and not case.axis]
        if groups and case.family not in options.skip and name in (options.cases or [name]):
            against = str(options.against) if options.against else None
            yield dataclasses.replace(case, groups=tuple(groups), against=against)


def measure(options: Options, log: Log) -> bool:
    """Make the missing records; returns whether every contender was correct."""
    device, file = options.device, options.records / f"{options.device}.jsonl"
    found, todo = records.read(file), []
    for case in wanted(options):
        old = found.get(case.name)
        if old is None or options.overwrite or not records.is_complete(old, case):
            todo.append(case)
        else:
            log(f"{case.name}: finished {old['started']} on {old['hardware']}; --overwrite repeats it")
    load = round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None
    machine = {**environment.describe(torch.device(device), [environment.running()]), "load": load}
    log("{hardware}, torch {torch}, commit {commit:.12}, load {load}".format_map(machine))
    if load is not None and load > BUSY * (cores := os.cpu_count() or 1):
        log(f"warning: the load is {load} on {cores} cores: other programs disturb the times, so stop them first")
    torch.backends.cuda.matmul.allow_tf32 = True
    if device == "cuda":
        log("compiling kernels")
        compile_kernels([case.at(point) for case in todo for point in case.points or [None]])
    if any(group.mode in COMPILED for case in todo for group in case.groups):  # start the compiler
        torch.compile(torch.nn.Linear(2, 2, device=device))(torch.ones(1, 2, device=device)).sum().backward()
        torch.compiler.reset()
    for case in todo:
        how = settings(device, options.quick, growth=case.family == "growth")
        begun, started = time.perf_counter(), datetime.now(UTC)
        found[case.name] = {
            "device": device,
            "case": case.config(),
            "settings": {**dataclasses.asdict(how), "tf32": device == "cuda"},
            **machine,
            "started": started.isoformat(timespec="seconds"),
            "measurements": measure_case(case, how, log),
            "wall_seconds": round(time.perf_counter() - begun, 3),
        }
        records.write(file, found)
    print("\n\n".join([*report.sizes(found, device), *report.layers(found, device), *report.paths(found)]))
    return all(records.all_passed(found[case.name]) for case in todo)


def main(options: Options) -> int:
    """Run the command; returns the exit status."""
    begun = time.perf_counter()

    def log(line: str) -> None:
        print(f"[{time.perf_counter() - begun:6.1f} s] {line}", flush=True)

    if options.report:
        folders = options.records, options.records.with_name(f"{options.records.name}-pairs")
        found, paired = ({name: records.read(place / f"{name}.jsonl") for name in report.DEVICES} for place in folders)
        if not any(found.values()):
            log(f"no records under {options.records}: measure first")
            return 1
        log(f"{report.write({k: v for k, v in found.items() if v}, paired, options.docs)} written")
        return 0
    try:
        with (
            tempfile.TemporaryDirectory(prefix="neurocoder-bench-", ignore_cleanup_errors=True) as folder,
            mock.patch.dict(os.environ, TORCHINDUCTOR_CACHE_DIR=folder, TRITON_CACHE_DIR=folder),
        ):  # nothing is compiled yet, so that first calls are true first calls
            right = measure(options, log)
    except KeyboardInterrupt:
        log(f"interrupted; finished records are under {options.records}, and the same command continues from there")
        return 130
    log("done" if right else "a contender was wrong or failed, see above")
    return 0 if right else 1
