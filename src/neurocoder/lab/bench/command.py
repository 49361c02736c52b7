"""Benchmark program layers against plain ones, or build the report from the records."""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from unittest import mock

import torch

from ..records import environment
from . import prepare, records, report, tables
from .cases import BOTH, COMPILED, Case, cases, settings
from .measure import Log, measure_case

SKIPPABLE = ("growth", "float32", "bfloat16", *tables.MODES, *BOTH)


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse and check the command line."""
    parser = argparse.ArgumentParser(prog="neurocoder bench", description=(__doc__ or "").strip())
    add = parser.add_argument
    add("--device", choices=report.DEVICES, default="cuda" if torch.cuda.is_available() else "cpu")
    add("--quick", action="store_true", help="only small cases, less time each; to results/bench-quick")
    add("--cases", nargs="+", metavar="CASE", help="only these")
    add("--skip", nargs="+", choices=SKIPPABLE, default=[], metavar="WHAT", help=f"any of {', '.join(SKIPPABLE)}")
    add("--again", action="store_true", help="measure finished cases again")
    add("--against", metavar="SRC", help="compare with the library in this source folder; to results/bench-pairs")
    add("--output", type=Path, help="folder for the records (default: results/bench)")
    add("--report", action="store_true", help="only build the page from the records")
    add("--docs", type=Path, default=Path("docs"), help="folder for the page and its images")
    chosen = parser.parse_args(argv)
    if chosen.device == "cuda" and not (torch.cuda.is_available() or chosen.report):
        parser.error("--device must be cpu where there is no GPU, got cuda")
    known = cases(chosen.device, chosen.quick)
    for name in chosen.cases or ():
        if name not in known:
            parser.error(f"--cases must be among {', '.join(known)}, got {name}")
    if chosen.against and not Path(chosen.against, "neurocoder", "__init__.py").is_file():
        parser.error(f"--against must be a folder with the package neurocoder, got {chosen.against}")
    folder = "bench-pairs" if chosen.against else "bench-quick" if chosen.quick else "bench"
    chosen.output = chosen.output or Path("results", folder)
    return chosen


def wanted(chosen: argparse.Namespace) -> Iterator[Case]:
    """The cases to measure, without what is skipped."""
    for name, case in cases(chosen.device, chosen.quick).items():
        groups = [group for group in case.groups if not set(group[:3]) & set(chosen.skip)]
        if chosen.quick:  # compilation takes longest
            groups = [g._replace(contenders=g.contenders[:2]) if g.mode in COMPILED else g for g in groups]
        if chosen.against:
            pairs = ("linear", "program", "earlier")
            groups = [g._replace(contenders=pairs) for g in groups if "program" in g.contenders]
        skipped = case.axis and (chosen.against or "growth" in chosen.skip)
        if groups and not skipped and name in (chosen.cases or [name]):
            yield dataclasses.replace(case, groups=tuple(groups), against=chosen.against)


def measure(chosen: argparse.Namespace, log: Log) -> bool:
    """Make the missing records; returns whether every contender was correct."""
    device, file = chosen.device, chosen.output / f"{chosen.device}.jsonl"
    found, todo = records.read(file), []
    for case in wanted(chosen):
        old = found.get(case.name)
        if old is None or chosen.again or not records.covers(old, case):
            todo.append(case)
        else:
            log(f"{case.name}: finished {old['started']} on {old['hardware']}; --again repeats it")
    load = round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None
    machine = {**environment.describe(torch.device(device), [environment.running()]), "load": load}
    log("{hardware}, torch {torch}, commit {commit:.12}, load {load}".format_map(machine))
    torch.backends.cuda.matmul.allow_tf32 = True
    if device == "cuda":
        points = [case.at(point) for case in todo for point in case.points or [None]]
        log("compiling kernels")
        prepare.compile_kernels(points)
    if any(group.mode in COMPILED for case in todo for group in case.groups):  # start the compiler
        torch.compile(torch.nn.Linear(2, 2, device=device))(torch.ones(1, 2, device=device)).sum().backward()
        torch.compiler.reset()
    for case in todo:
        how = settings(device, chosen.quick, growth=case.axis is not None)
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
    print("\n\n".join(report.layers(found, device)))
    return all(records.sound(found[case.name]) for case in todo)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit status."""
    chosen = arguments(argv)
    begun = time.perf_counter()

    def log(line: str) -> None:
        print(f"[{time.perf_counter() - begun:6.1f} s] {line}", flush=True)

    if chosen.report:
        found = {device: records.read(chosen.output / f"{device}.jsonl") for device in report.DEVICES}
        if not any(found.values()):
            log(f"no records under {chosen.output}: measure first")
            return 1
        log(f"{report.write({k: v for k, v in found.items() if v}, chosen.docs)} written")
        return 0
    try:
        with (
            tempfile.TemporaryDirectory(prefix="neurocoder-bench-", ignore_cleanup_errors=True) as folder,
            mock.patch.dict(os.environ, TORCHINDUCTOR_CACHE_DIR=folder, TRITON_CACHE_DIR=folder),
        ):  # nothing is compiled yet, so that first calls are true first calls
            right = measure(chosen, log)
    except KeyboardInterrupt:
        log(f"interrupted; finished records are under {chosen.output}, and the same command continues from there")
        return 130
    log("done" if right else "a contender was wrong or failed, see above")
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
