"""Timing: the contenders of a group take turns, so that disturbances of the machine affect all alike."""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from .cases import BASELINES, COMPILED, Case, Group, Settings
from .check import Refused
from .contenders import TITLES, Contenders, Skip
from .records import median
from .runs import LayerRun, Run, StepRun

PAIR = ("program", "earlier")
Log = Callable[[str], None]
Measurement = dict[str, Any]


def synchronize(device: str) -> None:
    """Wait for the device."""
    if device == "cuda":
        torch.cuda.synchronize()


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
    for _ in range(4):
        if estimate > 0.1:
            break
        estimate = min(estimate, seconds_per_call(run, 3))
    run.clear()
    return max(estimate, 1e-7)


def plan(estimate: float, settings: Settings) -> tuple[int, int]:
    """How many calls make a repetition, and how many repetitions to do."""
    calls = max(1, math.ceil(settings.repetition / estimate))
    repetitions = max(settings.minimum, math.ceil(settings.seconds / (calls * estimate)))
    if repetitions * calls * estimate > max(settings.slow, settings.seconds):
        repetitions = max(3, int(settings.slow / (calls * estimate)))
    return calls, repetitions


def interleave(runs: Sequence[Run], settings: Settings) -> dict[str, tuple[int, list[float]]]:
    """For each run, its calls per repetition and the seconds per call of every repetition."""
    plans = {run.name: plan(warm_up(run), settings) for run in runs}
    times: dict[str, list[float]] = {run.name: [] for run in runs}
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
                times[run.name].append(round(seconds_per_call(run, calls), 9))
                run.clear()
    finally:
        gc.enable()
    return {name: (plans[name][0], seconds) for name, seconds in times.items()}


def peak_bytes(run: Run) -> int | None:
    """Peak memory of one call above what was allocated before; only known on a GPU."""
    if run.device != "cuda" or run.group.mode in ("graph", "graphed"):  # graphs have memory of their own
        return None
    run.clear()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    run()
    torch.cuda.synchronize()
    peak = torch.cuda.max_memory_allocated() - before
    run.clear()
    return peak


def ready(name: str, make: Callable[[], Run], entry: Measurement) -> Run | None:
    """Build, call once and check; the entry records the result."""
    try:
        run = make()
        before = time.perf_counter()
        run.prepare()
        run()
        synchronize(run.device)
        if run.group.mode in COMPILED:
            entry["first_call_seconds"] = round(time.perf_counter() - before, 3)
        entry["errors"] = {what: float(f"{value:.3g}") for what, value in run.check().items()}
        entry["peak_bytes"] = peak_bytes(run)
        return run
    except Skip as reason:
        entry.update(status="skipped", reason=str(reason))
    except (torch.OutOfMemoryError, MemoryError):
        entry.update(status="skipped", reason="out of memory")
    except Refused as reason:
        entry.update(status="refused", reason=str(reason))
    except Exception as exception:  # one broken contender must not cost the others their measurement
        lines = str(exception).strip().splitlines() or [""]
        entry.update(status="failed", reason=f"{type(exception).__name__}: {lines[0][:300]}")
    return None


def free(group: Group, device: str) -> None:
    """Drop compiled code and release graph pools and caches."""
    if group.mode in COMPILED:
        torch.compiler.reset()
    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()


def measure_group(
    makers: Mapping[str, Callable[[], Run]], group: Group, settings: Settings, point: int | None = None
) -> list[Measurement]:
    """Check, then time, the contenders of a group."""
    entries: dict[str, Measurement] = {}
    runs: list[Run] = []
    for name, make in makers.items():
        entries[name] = {
            "contender": name,
            "dtype": group.dtype,
            "mode": group.mode,
            "direction": group.direction,
            "point": point,
            "status": "measured",
        }
        run = ready(name, make, entries[name])
        if run is not None:
            runs.append(run)
    for name, (calls, seconds) in interleave(runs, settings).items():
        entries[name].update(calls=calls, seconds=seconds)
    del runs
    free(group, settings.device)
    return list(entries.values())


def summary(entries: Sequence[Measurement]) -> str:
    """One line: the baseline's time, then ratios to it."""
    base = next((entry for entry in entries if entry["contender"] in BASELINES and "seconds" in entry), None)
    parts = []
    for entry in entries:
        title = TITLES[entry["contender"]]
        if "seconds" not in entry:
            parts.append(f"{title} {entry['status']} ({entry['reason']})")
        elif base is None or entry is base:
            parts.append(f"{title} {1e3 * median(entry['seconds']):.4g} ms")
        else:
            parts.append(f"{title} {median(entry['seconds']) / median(base['seconds']):.3g}x")
    now, before = (next((e["seconds"] for e in entries if e["contender"] == n and "seconds" in e), None) for n in PAIR)
    if now and before:
        parts.append(f"now / before {median([b / a for a, b in zip(before, now, strict=False)]):.3f}")
    return ", ".join(parts)


@contextmanager
def threads(count: int | None) -> Iterator[None]:
    """Set the number of CPU threads inside the block."""
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def makers(case: Case, group: Group, settings: Settings, contenders: Contenders | None) -> dict[str, Callable[[], Run]]:
    """How to build the runs of a group."""
    if contenders is None:
        return {name: lambda name=name: StepRun(name, case, group, settings) for name in group.contenders}  # type: ignore[misc]

    def layer(name: str) -> Run:
        return LayerRun(contenders.subject(name), contenders.x, contenders.grad, group, settings.device)

    return {name: lambda name=name: layer(name) for name in group.contenders}  # type: ignore[misc]


def measure_case(case: Case, settings: Settings, log: Log) -> list[Measurement]:
    """All groups of a case."""
    found: list[Measurement] = []
    with threads(case.threads):
        contenders = None if case.is_step else Contenders(case, settings)
        for group in case.groups:
            entries = measure_group(makers(case, group, settings, contenders), group, settings, case.point)
            label = case.name if case.point is None else f"{case.name} {case.point}"
            log(f"{label}, {group.title()}: {summary(entries)}")
            found += entries
    return found
