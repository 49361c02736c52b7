"""The page and the tables on the terminal, from records only."""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from ..files import replacing
from . import tables
from .cases import BASELINES, Device, cases
from .growth import AXES
from .measure import Log
from .records import Record, read_all, spread

DEVICES: dict[Device, str] = {"cpu": "CPU", "cuda": "CUDA"}
INTRODUCTION = """# Benchmarks

The cost of a program layer (`nc.Linear`) compared with `nn.Linear`, with the released code's method (build `W_t` for
every input, then multiply) and with two baselines that keep whole weights (`nc.MixtureLinear`, 2 of 10 experts
active; `nc.StoredProgramLinear`, 10 programs). `neurocoder.lab.bench` builds this page from the records under
`results/bench`:

    make bench                       # measure what has no record yet
    make bench ARGS="--again"        # measure everything on this machine
    make bench ARGS="--quick"        # only the small cases
    make bench ARGS="--report"       # build this page and its figures

**How it is measured.** Contenders take turns, repetition by repetition, in one process; a repetition makes enough
calls to last 20 ms on a CPU (host clock) or 5 ms on a GPU (events). Times are medians with quartiles in brackets; a
ratio's brackets run from lower over upper to upper over lower quartile. *forward* is in inference mode;
*forward+backward* computes gradients of all parameters and the input, set to None before each call. *compiled* is
`torch.compile(fullgraph=True)`, *compiled, C++ wrapper* the same with `options={"cpp_wrapper": True}`, and *first
call* the compilation time with an empty cache. *graphed* is
`layer = torch.cuda.make_graphed_callables(layer, (x,))`: forward and backward each replay a CUDA graph inside an eager
loop. *CUDA graph* is one graph of the whole call. Float32 on a GPU may use
TF32 (`torch.backends.cuda.matmul.allow_tf32 = True`); bfloat16 is autocast over float32 parameters. Memory is the
peak of one call above what was allocated before it, in 10^9 bytes. Inputs are random and the same in every call, so
that small ones stay in the caches, for all contenders alike. Layers are in eval mode (no noise in the mixture); K =
5, and l_I = 5.

**Only correct results are timed.** First, each contender's outputs on some inputs are compared with float64: the
program layer's, and those of building `W_t`, with the literal equations (`neurocoder.reference`), the others' with
their own built weights. Above a relative error of 1e-3 in float32 (TF32) or 3e-2 in bfloat16, no time is recorded and
the command fails. Gradients are compared with float64 autograd, at ten times these bounds.
"""


class Target(NamedTuple):
    """What this project wants of `nc.Linear`."""

    device: Device
    case: str
    what: str
    mode: str
    direction: str
    bar: float
    aim: float
    contender: str = "program"
    memory: bool = False
    one_line: bool = False
    """Take the fastest of the modes that take one line of user code, and compare with the baseline in eager mode and in
    the mode that is fastest for it."""


TARGETS = (
    Target("cpu", "784x10", "784x10, batch 128", "eager", "forward+backward", 15, 8),
    Target("cpu", "1024x1024", "1024x1024, batch 256", "eager", "forward+backward", 2.5, 1.5),
    Target("cpu", "4096x4096", "4096x4096, batch 256", "eager", "forward+backward", 1.3, 1.15),
    Target("cpu", "784x10-single", "784x10, one input, one thread", "compiled", "forward", 30, 15, one_line=True),
    Target("cpu", "1024x1024-single", "1024x1024, one input, one thread", "compiled", "forward", 3, 2, one_line=True),
    Target("cuda", "784x10", "784x10, batch 128", "graph", "forward+backward", 4, 2),
    Target("cuda", "1024x1024", "1024x1024, batch 4096", "eager", "forward+backward", 2.5, 1.5, one_line=True),
    Target("cuda", "1024x1024", "1024x1024, batch 4096: memory", "eager", "forward+backward", 0.35, 0.25, memory=True),
    Target("cuda", "4096x4096", "4096x4096, batch 4096", "eager", "forward+backward", 1.6, 1.2, one_line=True),
    Target("cuda", "mlp-step", "CIFAR MLP, training step", "graph", "step", 2.5, 1.5, contender="recoded"),
)


class Found(NamedTuple):
    """What was measured for a target."""

    mode: str
    text: str
    value: float | None = None


def measured(target: Target, record: Record | None) -> Found:
    """The number measured for a target."""
    fields = {"contender": target.contender, "dtype": "float32", "mode": target.mode, "direction": target.direction}
    entry = None if record is None else tables.find(record, **fields)
    if record is None or entry is None:
        return Found(target.mode, "not measured")
    if entry["status"] != "measured":
        return Found(target.mode, str(entry["status"]))
    if target.memory:
        peak = entry.get("peak_bytes")
        return Found(target.mode, "not measured" if peak is None else f"{peak / 1e9:.3g} GB", peak and peak / 1e9)
    if target.one_line:
        entry = tables.fastest(record, entry, [target.contender]) or entry
    base = tables.baseline(record, {**entry, "mode": "eager"} if target.one_line else entry)
    if base is None:
        return Found(entry["mode"], "baseline not measured")
    found = tables.ratio(spread(entry["seconds"]), spread(base["seconds"]))
    text = str(found)
    if target.one_line:
        quickest = tables.fastest(record, entry, BASELINES)
        assert quickest is not None  # the eager one at least
        if quickest["mode"] != "eager":
            times = spread(entry["seconds"]), spread(quickest["seconds"])
            text += f"; {tables.short(tables.ratio(*times).value)}x of it {tables.MODES[quickest['mode']]}"
    return Found(entry["mode"], text, found.value)


def verdict(target: Target, value: float | None) -> str:
    """How a number compares with its target."""
    if value is None:
        return ""
    return "aim met" if value <= target.aim else "bar met" if value <= target.bar else "**bar missed**"


def target_table(found: Sequence[Record]) -> list[list[str]]:
    """Bars, aims and what was measured."""
    by_name = {(record["device"], record["case"]): record for record in found}
    table = [["device", "case", "mode", "bar", "aim", "measured", ""]]
    for target in TARGETS:
        found_mode, text, value = measured(target, by_name.get((target.device, target.case)))
        unit = " GB" if target.memory else "x"
        mode = f"{tables.MODES[found_mode]}, {target.direction}"
        limits = (f"{target.bar:g}{unit}", f"{target.aim:g}{unit}")
        table.append([DEVICES[target.device], target.what, mode, *limits, text, verdict(target, value)])
    return table


def ordered(found: Sequence[Record], device: Device) -> tuple[list[Record], list[Record]]:
    """A device's records in the order of the cases, and of the growth axes."""
    by_name = {record["case"]: record for record in found if record["device"] == device}
    order, axes = list(cases(device)), [f"growth-{axis}" for axis in AXES]
    growth = [by_name.pop(name) for name in axes if name in by_name]
    known = [by_name.pop(name) for name in order if name in by_name]
    return known + list(by_name.values()), growth


def machines(found: Sequence[Record]) -> list[str]:
    """Where and with what the records were made; one line for all if it was the same."""
    lines: dict[str, tuple[list[str], float]] = {}
    for record in found:
        hardware, versions = record["hardware"], record["versions"]
        threads = "" if record["device"] == "cuda" else f", {hardware['threads']} threads, load {hardware['load']}"
        kernels = f", triton {versions['triton']}" if record["device"] == "cuda" else ""
        changed = {True: " with changes", False: "", None: ""}[record.get("dirty")]
        line = (
            f"{hardware['name']}{threads}, Python {versions['python']}, torch {versions['torch']}{kernels}, "
            f"commit {record['commit'][:12]}{changed}, seed {record['seed']}"
        )
        names, seconds = lines.setdefault(line, ([], 0.0))
        names.append(record["case"])
        lines[line] = (names, seconds + record["wall_seconds"])
    return [
        f"{line}; {seconds:.0f} s in all." + (f" ({', '.join(names)})" if len(lines) > 1 else "")
        for line, (names, seconds) in lines.items()
    ]


def terminal(found: Sequence[Record]) -> str:
    """Tables of one device's records."""
    parts = []
    for device in DEVICES:
        for record in ordered(found, device)[0]:
            parts += ["", tables.title(record), tables.text(tables.rows(record)), *tables.notes(record)]
    return "\n".join(parts)


def section(device: Device, found: Sequence[Record], figure: str | None) -> list[str]:
    """The page's part on one device."""
    layers, growth = ordered(found, device)
    parts = [f"## {DEVICES[device]}", *machines([*layers, *growth])]
    for record in layers:
        parts += [f"### {record['case']} on {DEVICES[device]}", f"{tables.title(record)}."]
        parts += [tables.markdown(tables.rows(record)), *(f"- {note}" for note in tables.notes(record))]
    if growth and figure is not None:
        base = growth[0]["config"]["base"]
        sizes = (
            f"P={base['slots']} J={base['steps']} H={base['heads']}, {base['width']}x{base['width']}, "
            f"batch {base['batch']}"
        )
        parts += [
            f"### Growth on {DEVICES[device]}",
            f"Forward and backward in eager mode, float32; each panel changes one size of the base case ({sizes}).",
            f"![Time against P, J, H, width and batch on {DEVICES[device]}]({figure})",
        ]
        parts += [f"- {note}" for note in dict.fromkeys(note for record in growth for note in tables.notes(record))]
    return parts


def page(found: Sequence[Record], figures: dict[Device, str]) -> str:
    """The whole page."""
    parts = [INTRODUCTION.strip(), "## Bars and aims"]
    parts.append(
        "Targets of this project for `nc.Linear` in float32: time over that of `nn.Linear` in the same mode. For one "
        "input, and for the larger layers on a GPU, the mode is the fastest that takes one line of user code, and the "
        "ratio is to `nn.Linear` in eager mode, then to `nn.Linear` in its own fastest mode."
    )
    parts.append(tables.markdown(target_table(found)))
    for device in DEVICES:
        if any(record["device"] == device for record in found):
            parts += section(device, found, figures.get(device))
    listed = [part.startswith("- ") for part in [*parts, ""]]
    ends = ["\n" if both else "\n\n" for both in map(all, pairwise(listed))]
    lines = [part + end for part, end in zip(parts, ends, strict=True)]
    return "".join(lines).rstrip() + "\n"


def build(output: Path, docs: Path, log: Log) -> int:
    """Write the page and its figures; returns the exit status."""
    found = list(read_all(output, log))
    if not found:
        log(f"no records under {output}: measure first")
        return 1
    figures: dict[Device, str] = {}
    for device in DEVICES:
        growth = ordered(found, device)[1]
        if growth:
            from .figure import draw  # needs matplotlib, which measuring does not

            figures[device] = os.path.relpath(draw(device, growth, docs / "images"), docs)
    target = docs / "BENCHMARKS.md"
    with replacing(target) as temporary:
        temporary.write_text(page(found, figures))
    log(f"{target} from {len(found)} records")
    return 0
