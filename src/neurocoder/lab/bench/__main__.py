"""Benchmark program layers against plain ones, or build the report from the records."""

from __future__ import annotations

import argparse
import dataclasses
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from . import against, growth, prepare, records, report
from .cases import COMPILED, Case, Device, Settings, cases, settings
from .measure import Log, Measurement, measure_case

SKIPPABLE = ("eager", "compiled", "wrapped", "graphed", "graph", "float32", "bfloat16", "forward", "forward+backward")


class Job(NamedTuple):
    """One record to make."""

    name: str
    config: dict[str, Any]
    settings: Settings
    cases: list[Case]
    measure: Callable[[Log], list[Measurement]]


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse and check the command line."""
    parser = argparse.ArgumentParser(prog="neurocoder bench", description=(__doc__ or "").strip())
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--quick", action="store_true", help="only small cases, less time each; to results/bench-quick")
    parser.add_argument("--cases", nargs="+", metavar="CASE", help="only these, and no growth unless --growth is given")
    parser.add_argument(
        "--growth", action=argparse.BooleanOptionalAction, help="measure how cost grows; off with --quick"
    )
    parser.add_argument(
        "--skip", nargs="+", choices=SKIPPABLE, default=[], metavar="WHAT", help=f"any of {', '.join(SKIPPABLE)}"
    )
    parser.add_argument("--again", action="store_true", help="measure finished cases again")
    parser.add_argument(
        "--against", metavar="SRC", help="compare with the library in this source folder; to results/bench-pairs"
    )
    parser.add_argument("--output", type=Path, help="folder for the records (default: results/bench)")
    parser.add_argument("--commit", help="commit to record if the code is not in a git repository")
    parser.add_argument("--report", action="store_true", help="only build the page from the records")
    parser.add_argument("--docs", type=Path, default=Path("docs"), help="folder for the page and its images")
    chosen = parser.parse_args(argv)
    if chosen.device == "cuda" and not (torch.cuda.is_available() or chosen.report):
        parser.error("--device must be cpu where there is no GPU, got cuda")
    known = cases(chosen.device, chosen.quick)
    for name in chosen.cases or ():
        if name not in known:
            parser.error(f"--cases must be among {', '.join(known)}, got {name}")
    if chosen.against is not None:
        try:
            against.package(chosen.against)
        except ValueError as error:
            parser.error(str(error))
    if chosen.growth is None:
        chosen.growth = not (chosen.quick or chosen.cases or chosen.against)
    folder = "bench-pairs" if chosen.against else "bench-quick" if chosen.quick else "bench"
    chosen.output = chosen.output or Path("results", folder)
    return chosen


def jobs(chosen: argparse.Namespace, how: Settings) -> list[Job]:
    """What to measure, in order."""
    device: Device = chosen.device
    found = []
    for name, case in cases(device, chosen.quick).items():
        if chosen.cases is None or name in chosen.cases:
            case = case.without(chosen.skip)
            if chosen.against:
                if case.is_step:
                    continue
                case = case.against()
            found.append(Job(name, case.config(), how, [case], lambda log, case=case: measure_case(case, how, log)))  # type: ignore[misc]
    for axis in growth.AXES if chosen.growth else ():
        found.append(
            Job(
                f"growth-{axis}",
                growth.config(device, axis),
                growth.settings(how),
                growth.axis_cases(device, axis),
                lambda log, axis=axis: growth.measure_axis(device, axis, growth.settings(how), log),  # type: ignore[misc]
            )
        )
    return found


def pending(chosen: argparse.Namespace, how: Settings, log: Log) -> list[Job]:
    """The jobs without a finished record."""
    wanted = []
    for job in jobs(chosen, how):
        old = records.read(chosen.output / chosen.device / f"{job.name}.json", log)
        if chosen.again or old is None or not records.covers(old, job.config):
            wanted.append(job)
        else:
            log(f"{job.name}: finished {old['started']} on {old['hardware']['name']}; --again repeats it")
    return wanted


def measure(chosen: argparse.Namespace, log: Log) -> bool:
    """Make the missing records; returns whether every contender was correct."""
    device, how = chosen.device, settings(chosen.device, chosen.quick)
    how = dataclasses.replace(how, against=chosen.against)
    todo = pending(chosen, how, log)
    if not todo:
        return True
    machine = records.describe(device, chosen.commit)
    log(f"{machine['hardware']['name']}, torch {machine['versions']['torch']}, commit {machine['commit'][:12]}")
    if device == "cpu" and (machine["hardware"]["load"] or 0) > 0.5:
        log(f"other programs keep this machine busy (load {machine['hardware']['load']}): times will be noisy")
    all_cases = [case for job in todo for case in job.cases]
    if device == "cuda":
        torch.backends.cuda.matmul.allow_tf32 = True
        log("compiling kernels")
        failed = prepare.compile_kernels(all_cases)
        log(f"kernels compiled{f', {failed} cases failed' if failed else ''}")
    if any(group.mode in COMPILED for case in all_cases for group in case.groups):
        prepare.start_compiler(device)
    right = True
    for job in todo:
        started, before = records.now(), time.perf_counter()
        entries = job.measure(log)
        record = {
            "schema": records.SCHEMA,
            "device": device,
            "case": job.name,
            "config": job.config,
            "settings": {
                **dataclasses.asdict(job.settings),
                "against": chosen.against and against.digest(chosen.against),
                "quick": chosen.quick,
                "tf32": device == "cuda",
            },
            "seed": job.settings.seed,
            **machine,
            "started": started,
            "wall_seconds": round(time.perf_counter() - before, 3),
            "measurements": entries,
        }
        records.write(chosen.output / device / f"{job.name}.json", record)
        right = right and records.sound(record)
    return right


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit status."""
    chosen = arguments(argv)
    begun = time.perf_counter()

    def log(line: str) -> None:
        print(f"[{time.perf_counter() - begun:6.1f} s] {line}", flush=True)

    if chosen.report:
        return report.build(chosen.output, chosen.docs, log)
    try:
        with prepare.empty_compile_cache():
            right = measure(chosen, log)
    except KeyboardInterrupt:
        log(f"interrupted; finished records are under {chosen.output}, and the same command continues from there")
        return 130
    print(
        report.terminal([found for found in records.read_all(chosen.output, log) if found["device"] == chosen.device])
    )
    log("done" if right else "a contender was wrong or failed, see above")
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
