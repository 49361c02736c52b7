"""Timing: the contenders of a group take turns, so that disturbances of the machine affect all alike."""

from __future__ import annotations

import gc
import math
import multiprocessing
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, wait
from itertools import pairwise

import torch
from torch import nn

import neurocoder as nc

from .cases import COMPILED, GPT, Case, Group, Settings
from .contender_run import BlocksRun, LayerRun, Run, StepRun, WrongResult
from .contenders import TITLES, Contenders, Skip
from .tables import Entry, baseline, cell, ratio

Log = Callable[[str], None]


def _compile(case: Case) -> None:
    """One forward and backward of the case's program layers in each dtype."""
    torch.backends.cuda.matmul.allow_tf32 = True
    for d_in, d_out in pairwise(case.widths):
        layer = nc.recode(nn.Sequential(nn.Linear(d_in, d_out, device="cuda")), "*", case.program)
        for dtype in sorted({group.dtype for group in case.groups}):
            x = torch.randn(case.batch, d_in, device="cuda", dtype=getattr(torch, dtype), requires_grad=True)
            with torch.autocast("cuda", torch.bfloat16, enabled=dtype == "bfloat16"):
                with torch.inference_mode():
                    layer(x)
                y = layer(x)
            y.sum().backward()
    torch.cuda.synchronize()


def compile_kernels(cases: Iterable[Case]) -> None:
    """Compile the GPU kernels in parallel: one after the other they take two minutes.

    They stay in Triton's cache on disk; a case that fails here compiles when it is measured.
    """
    distinct = list({(case.program, case.widths, case.batch): case for case in cases}.values())
    with ProcessPoolExecutor(os.cpu_count(), multiprocessing.get_context("spawn")) as pool:
        wait([pool.submit(_compile, case) for case in distinct])


def seconds_per_call(run: Run, calls: int) -> float:
    """The mean over some calls: host clock on a CPU, events on a GPU."""
    if run.device == "cuda":
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda.synchronize()
        start.record()
        for _ in range(calls):
            run()
        end.record()
        torch.cuda.synchronize()
        return start.elapsed_time(end) / 1e3 / calls
    before = time.perf_counter()
    for _ in range(calls):
        run()
    return (time.perf_counter() - before) / calls


def warm_up(run: Run) -> float:
    """Warm up, and estimate the time per call."""
    estimate = seconds_per_call(run, 1)
    if estimate < 0.1:
        estimate = min(seconds_per_call(run, 3) for _ in range(4))
    run.clear()
    return estimate


def plan(estimate: float, settings: Settings) -> tuple[int, int]:
    """How many calls make a repetition, and how many repetitions to do."""
    calls = max(1, math.ceil(settings.repetition / estimate))
    repetitions = max(settings.minimum, math.ceil(settings.seconds / (calls * estimate)))
    if repetitions * calls * estimate > max(settings.slow, settings.seconds):
        repetitions = max(3, int(settings.slow / (calls * estimate)))
    return calls, repetitions


def interleave(runs: Sequence[Run], settings: Settings, entries: Mapping[str, Entry]) -> None:
    """Adds to each run's entry its calls per repetition and the seconds per call of every repetition."""
    plans = {run.name: plan(warm_up(run), settings) for run in runs}
    for name, (calls, _) in plans.items():
        entries[name].update(calls=calls, seconds=[])
    rounds = max((repetitions for _, repetitions in plans.values()), default=0)
    gc.disable()
    try:
        for index in range(rounds):
            first = index % len(runs)
            for run in [*runs[first:], *runs[:first]]:
                calls, repetitions = plans[run.name]
                if (index + 1) * repetitions // rounds == index * repetitions // rounds:
                    continue  # fewer repetitions than rounds: spread over them
                if calls > 1:
                    run()  # bring its data back into the caches
                entries[run.name]["seconds"].append(round(seconds_per_call(run, calls), 9))
                run.clear()
    finally:
        gc.enable()


def peak_bytes(run: Run) -> int | None:
    """Peak memory of one call above what was allocated before; only known on a GPU."""
    if run.device != "cuda" or run.group.mode in ("graph", "graphed"):  # graphs have memory of their own
        return None
    run.clear()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    run()
    return torch.cuda.max_memory_allocated() - before


def ready(name: str, group: Group, contenders: Contenders, entry: Entry) -> Run | None:
    """Build, call once and check; the entry records the result."""
    try:
        kind = BlocksRun if name in GPT else StepRun if group.direction == "step" else LayerRun
        run: Run = kind(name, group, contenders)
        before = time.perf_counter()
        if group.mode == "graph":
            run.capture()
        run()
        if run.device == "cuda":
            torch.cuda.synchronize()
        if group.mode in COMPILED:
            entry["first_call_seconds"] = round(time.perf_counter() - before, 3)
        entry["errors"] = {what: float(f"{value:.3g}") for what, value in run.check().items()}
        entry["peak_bytes"] = peak_bytes(run)
        return run
    except Skip as reason:
        entry.update(status="skipped", reason=str(reason))
    except (torch.OutOfMemoryError, MemoryError):
        entry.update(status="skipped", reason="out of memory")
    except WrongResult as reason:
        entry.update(status="refused", reason=str(reason))
    except Exception as exception:  # one broken contender must not cost the others their measurement
        lines = str(exception).strip().splitlines() or [""]
        entry.update(status="failed", reason=f"{type(exception).__name__}: {lines[0][:300]}")
    return None


def measure_group(group: Group, point: int | None, contenders: Contenders) -> list[Entry]:
    """Check, then time, the contenders of a group."""
    fields = {"dtype": group.dtype, "mode": group.mode, "direction": group.direction, "point": point}
    entries: dict[str, Entry] = {name: {"contender": name, **fields, "status": "measured"} for name in group.contenders}
    made = [ready(name, group, contenders, entry) for name, entry in entries.items()]
    runs = [run for run in made if run is not None]
    interleave(runs, contenders.settings, entries)
    del made, runs  # compiled code, graph pools and caches
    if group.mode in COMPILED:
        torch.compiler.reset()
    gc.collect()
    if contenders.settings.device == "cuda":
        torch.cuda.empty_cache()
    return list(entries.values())


def summary(entries: Sequence[Entry]) -> str:
    """One line: the baseline's time, then ratios to it; with an earlier library, the paired ratio to that."""
    shown = [f"{TITLES[entry['contender']]} {cell(entry, baseline(entries, entry))}" for entry in entries]
    parts = [f"{text} ({e['reason']})" if "reason" in e else text for text, e in zip(shown, entries, strict=True)]
    timed = {entry["contender"]: entry for entry in entries if "seconds" in entry}
    if {"program", "earlier"} <= set(timed):
        parts.append(f"now / before {ratio(timed['program'], timed['earlier']).median:.3f}")
    return ", ".join(parts)


def measure_case(case: Case, settings: Settings, log: Log) -> list[Entry]:
    """All groups of a case, at each point of its axis."""
    found: list[Entry] = []
    threads = torch.get_num_threads()
    torch.set_num_threads(case.threads or threads)
    try:
        for point in case.points or [None]:
            contenders = Contenders(case.at(point), settings)
            for group in case.groups:
                entries = measure_group(group, point, contenders)
                label = case.name if point is None else f"{case.name} {point}"
                log(f"{label}, {' '.join(group[:3])}: {summary(entries)}")
                found += entries
    finally:
        torch.set_num_threads(threads)
    return found
