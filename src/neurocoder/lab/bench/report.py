"""The page, from records only."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ..records.files import atomic_write
from .cases import AXES, BASELINES, BOTH, CONTROL, PAIR, PATHS
from .contenders import TITLES
from .gpt import BLOCKS, LENGTH
from .tables import MODES, Entry, Record, markdown, notes, ratio, short, spread, table

DEVICES = {"cpu": "CPU", "cuda": "CUDA"}
MARK = "<!-- from here `neurocoder bench --report` writes, from the records -->"
END = "<!-- to here -->"
ONE_LINE = ("eager", "compiled", "wrapped", "reduced", "graphed")
"""Modes that take one line of user code; a CUDA graph of a whole step takes several."""


class Target(NamedTuple):
    """What this project wants of its layers."""

    device: str
    case: str
    what: str
    modes: Sequence[str]
    """The fastest counts. With several, the baseline is the eager one, then that in its own fastest mode."""
    bar: float
    aim: float
    dtype: str = "float32"
    ours: Sequence[str] = ("program", "recoded", "growing")
    """The contenders that it is about."""
    direction: str = "forward+backward"
    memory: bool = False


TARGETS = (
    Target("cpu", "784x10", "784x10, batch 128", ["eager"], 15, 8),
    Target("cpu", "1024x1024", "1024x1024, batch 256", ["eager"], 2.5, 1.5),
    Target("cpu", "4096x4096", "4096x4096, batch 256", ["eager"], 1.3, 1.15),
    Target("cpu", "growing", "growing memory, 1024x1024, batch 256", ["eager"], 4, 2.5),
    Target("cpu", "core-784x10", "core layer, 784x10, batch 128", ["eager"], 4, 3, ours=["core"]),
    Target("cpu", "core-1024x1024", "core layer, 1024x1024, batch 256", ["eager"], 1.3, 1.2, ours=["core"]),
    Target("cpu", "784x10-single", "784x10, one input, one thread", ONE_LINE, 30, 15, direction="forward"),
    Target("cpu", "1024x1024-single", "1024x1024, one input, one thread", ONE_LINE, 3, 2, direction="forward"),
    Target("cuda", "784x10", "784x10, batch 128", ["graph"], 4, 2),
    Target("cuda", "1024x1024", "1024x1024, batch 4096", ONE_LINE, 2.5, 1.5),
    Target("cuda", "1024x1024", "1024x1024, batch 4096: memory", ["eager"], 0.35, 0.25, memory=True),
    Target("cuda", "4096x4096", "4096x4096, batch 4096", ONE_LINE, 1.6, 1.2),
    Target("cuda", "growing", "growing memory, 1024x1024, batch 4096", ["graph"], 4, 2.5),
    *(
        Target("cuda", case, f"{what}, 1024x1024, batch 4096", [mode], 1.3, 1.2, ours=[ours])
        for case, mode in (("core-1024x1024", "graph"), ("core-1024x1024-compiled", "reduced"))
        for what, ours in (("steered core layer", "steered"), ("core layer", "core"))
    ),
    *(
        Target("cuda", case, f"six GPT blocks, {what} MLPs, bfloat16", [mode], bar, aim, "bfloat16", [ours])
        for case, mode in (("gpt", "compiled"), ("gpt-reduced", "reduced"))
        for what, bar, aim, ours in (("steered", 1.2, 1.1, "gpt-steered"), ("core", 1.35, 1.2, "gpt-core"))
    ),
    Target("cuda", "mlp-step", "CIFAR MLP, training step", ["graph"], 2.5, 1.5, direction="step"),
)


def fastest(target: Target, entries: Sequence[Entry], contenders: Sequence[str], modes: Sequence[str]) -> Entry | None:
    """The fastest measurement of some contenders in some modes."""
    fields = {"status": "measured", "dtype": target.dtype, "direction": target.direction}
    found = (e for e in entries if e["contender"] in contenders and e["mode"] in modes and fields.items() <= e.items())
    return min(found, key=lambda entry: spread(entry).median, default=None)


def target_row(target: Target, entries: Sequence[Entry]) -> list[str]:
    """What was measured, bar and aim."""
    unit = " GB" if target.memory else "x"
    ours = fastest(target, entries, target.ours, target.modes)
    base = fastest(target, entries, BASELINES, target.modes[:1])
    best = fastest(target, entries, BASELINES, target.modes)
    mode = f"{MODES[ours['mode'] if ours else target.modes[0]]}, {target.direction}"
    head = f"{DEVICES[target.device]}, {target.what}"
    limits = [f"{target.bar:g}{unit}", f"{target.aim:g}{unit}", mode]
    if ours is None or base is None or best is None:
        return [head, "not measured", "", *limits]
    found = ratio(ours, base)
    value, text = found.median, found.shown("x")
    if target.memory:
        value = ours["peak_bytes"] / 1e9
        text = f"{value:.3g} GB"
    elif best is not base:
        text += f"; {short(ratio(ours, best).median)}x of it {MODES[best['mode']]}"
    verdict = "aim met" if value <= target.aim else "bar met" if value <= target.bar else "**bar missed**"
    return [head, text, verdict, *limits]


def about(record: Record) -> str:
    """What a record is about."""
    case, program = record["case"], record["case"]["program"]
    if "programs" in program:
        sizes = f"core layers at their defaults; steered: by a control of {CONTROL}"
    elif "rank" in program:
        sizes = f"{program['slots']} written slots of rank {program['rank']}, {program['top_k']} for each input"
    else:
        sizes = f"P={program['slots']} J={program['steps']} H={program['heads']}, LSTM {program['hidden']}"
    joined = "x".join(map(str, case["widths"]))
    kind = joined if len(case["widths"]) == 2 else f"training step, MLP {joined.replace('x', '-')}"
    if case["name"].startswith("gpt"):
        kind = f"{BLOCKS} GPT blocks of {case['widths'][0]}, sequences of {LENGTH}, up and down projections recoded"
    inputs = "one input" if case["batch"] == 1 else f"batch {case['batch']}"
    threads = f", {case['threads']} thread" if case["threads"] else ""
    return f"{kind}, {sizes}{'' if program['residual'] else ', no residual'}, {inputs}{threads}."


def origin(record: Record) -> str:
    """Where and with what a record was made."""
    parts = ["{hardware}", "Python {python}", "torch {torch}", "commit {commit:.12}", "seed {settings[seed]}"]
    parts += ["triton {triton}"] if record["device"] == "cuda" else ["{threads} threads", "load {load}"]
    return ", ".join(parts).format_map(record) + (", changed code" if record["changed"] == "yes" else "")


def made(records: Iterable[Record]) -> str:
    """Where several records were made, and the time that it took."""
    records = list(records)
    return (
        f"{'; '.join(dict.fromkeys(map(origin, records)))}; {sum(record['wall_seconds'] for record in records):.0f} s."
    )


def layers(found: Mapping[str, Record], device: str) -> list[str]:
    """What was measured of each layer, as blocks of Markdown."""
    blocks = []
    for name, record in found.items():
        if not record["case"]["axis"]:
            title, entries = f"### {name} on {DEVICES[device]}", record["measurements"]
            blocks += [title, about(record), table(entries), *notes(entries), made([record])]
    return blocks


def timed(record: Record) -> dict[tuple[str, str, str, str, int | None], Entry]:
    """What was measured, by contender, dtype, mode, direction and point."""
    entries = (entry for entry in record["measurements"] if entry["status"] == "measured")
    return {(e["contender"], e["dtype"], e["mode"], e["direction"], e["point"]): e for e in entries}


def over(entry: Entry | None, base: Entry | None) -> str:
    """Their ratio as text, if both were measured."""
    return ratio(entry, base).shown("x") if entry and base else ""


def milliseconds(entry: Entry | None) -> str:
    """The median as text, if it was measured."""
    return f"{short(spread(entry, 1e3).median)} ms" if entry else ""


def section(title: str, text: str, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Blocks of Markdown; none without rows."""
    return [f"### {title}", text, markdown(headings, rows)] if rows else []


def sizes(found: Mapping[str, Record], device: str) -> list[str]:
    """Small layers beside large ones, as blocks of Markdown."""
    lines: list[tuple[int, list[str]]] = []
    for record in found.values():
        case, entries = record["case"], timed(record)
        for point in case["points"] or [None] if case["axis"] in (None, "width") else ():
            linear, program = (
                [entries.get((name, "float32", mode, "forward+backward", point)) for mode in MODES] for name in PAIR
            )
            if linear[0] and program[0]:
                d_in, d_out = (point, point) if point else case["widths"]
                kind = "P={slots} J={steps} H={heads}".format_map(case["program"])
                cells = [f"{d_in}x{d_out}", kind, str(case["batch"]), milliseconds(linear[0])]
                lines.append((d_in * d_out, [*cells, *map(over, program, linear)]))
    return section(
        f"Small layers beside large ones on {DEVICES[device]}",
        "Forward and backward, float32: the time of `nn.Linear` in eager mode, and of `nc.Linear` over that of "
        "`nn.Linear` in each mode. A program costs nearly the same in any layer, so a small one pays most.",
        ["layer", "program", "batch", TITLES["linear"], *MODES.values()],
        [cells for _, cells in sorted(lines)],
    )


def pairs(found: Mapping[str, Record], device: str) -> list[str]:
    """An earlier version of the library in turns with this one, as blocks of Markdown."""
    rows = []
    for name, record in found.items():
        entries = timed(record)
        for (contender, dtype, mode, direction, point), entry in entries.items():
            if contender == "program" and (before := entries.get(("earlier", dtype, mode, direction, point))):
                rows.append([name, dtype, MODES[mode], direction, over(entry, before)])
    return section(
        f"Compared with an earlier version on {DEVICES[device]}",
        "`nc.Linear` now over before, in turns; below 1 it is faster now. Before: the library whose source has the "
        f"hash {', '.join({record['case']['against'][:12] for record in found.values()})} "
        f"(`neurocoder bench --against SRC`). Measured on {made(found.values())}",
        ["case", "dtype", "mode", "direction", "now / before"],
        rows,
    )


def paths(found: Mapping[str, Record]) -> list[str]:
    """The implementations of one layer side by side, as blocks of Markdown."""
    records = [record for name, record in found.items() if name.startswith("path")]
    rows = []
    for record in records:
        case, entries = record["case"], timed(record)
        layer = "{}x{}, P={slots} H={heads}".format(*case["widths"], **case["program"])
        for point in case["points"]:
            rows.append([layer, str(case["batch"]), str(point)])
            for direction in BOTH:
                slow, fast = (entries.get((path, "float32", "eager", direction, point)) for path in PATHS)
                rows[-1] += [milliseconds(slow), milliseconds(fast), over(slow, fast)]
    return section(
        "The hand-written CPU path against the torch path",
        'The same layer, eager, in turns: `nc.backend("torch")` runs its modules under autograd, `nc.backend("cpu")` '
        "the hand-written forward and backward passes. A gain above 1 means that these are faster. J is the number of "
        f"steps. Measured on {made(records)}",
        ["layer", "batch", "J", *(f"{direction}: {part}" for direction in BOTH for part in (*PATHS, "gain"))],
        rows,
    ) + notes([entry for record in records for entry in record["measurements"]])


def _panel(axis: Any, record: Record) -> None:
    """One size: a line for each contender, its quartiles shaded."""
    from ..report.style import BLACK, BLUE, VERMILION  # needs matplotlib, which measuring does not

    case = record["case"]
    lines = {"linear": (BLACK, "o"), "program": (BLUE, "s"), "materialising": (VERMILION, "^")}
    for name, (colour, marker) in lines.items():
        found = [e for e in record["measurements"] if e["contender"] == name and e["status"] == "measured"]
        points, times = [entry["point"] for entry in found], [spread(entry, 1e3) for entry in found]
        axis.plot(points, [t.median for t in times], color=colour, marker=marker, ms=4, label=TITLES[name])
        axis.fill_between(points, [t.low for t in times], [t.high for t in times], color=colour, alpha=0.2)
    axis.set_xscale("log", base=2)
    axis.set_yscale("log")
    axis.set_xticks(case["points"], [str(point) for point in case["points"]], fontsize=7)
    axis.minorticks_off()
    base = {**case["program"], "width": case["widths"][0], "batch": case["batch"]}
    axis.axvline(base[case["axis"]], color="0.6", lw=0.8, ls=":")
    axis.set_xlabel(AXES[case["axis"]])
    axis.grid(alpha=0.25)


def _draw(growth: Sequence[Record], stem: Path) -> None:
    """Time against each size, on logarithmic axes, as PNG and SVG."""
    from matplotlib.figure import Figure

    from ..report.style import save

    figure = Figure(figsize=(14, 3.4), layout="constrained")
    axes = figure.subplots(1, len(growth), sharey=True, squeeze=False)[0]
    for axis, record in zip(axes, growth, strict=True):
        _panel(axis, record)
    axes[0].set_ylabel("forward and backward, ms")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper right", ncols=len(labels), fontsize=9, frameon=False)
    figure.suptitle(f"{growth[0]['hardware']}; dotted: the base case", x=0.01, ha="left", fontsize=10)
    for kind in (".png", ".svg"):
        save(figure, stem.with_suffix(kind), dpi=130)


def growth(found: Mapping[str, Record], device: str, docs: Path) -> list[str]:
    """How the cost grows, as blocks of Markdown; draws the figure."""
    axes = [record for name, record in found.items() if name.startswith("growth")]
    if not axes:
        return []
    image, sizes = f"images/bench-{device}-growth.png", "P, J, H, width and batch"
    _draw(axes, docs / image)
    return [
        f"### Growth on {DEVICES[device]}",
        f"Forward and backward, eager, float32; each panel changes one size of the base case, {about(axes[0])}",
        f"![Time against {sizes} on {DEVICES[device]}]({image})",
        *notes([entry for record in axes for entry in record["measurements"]]),
        made(axes),
    ]


def write(found: Mapping[str, Mapping[str, Record]], paired: Mapping[str, Mapping[str, Record]], docs: Path) -> Path:
    """Write the page between its introduction and its end, and the figures; returns the page's path. `paired`: records
    of an earlier version beside this one."""
    page = docs / "BENCHMARKS.md"
    head, _, rest = (page.read_text() if page.exists() else "# Benchmarks").partition(MARK)
    entries = {(device, name): record["measurements"] for device in found for name, record in found[device].items()}
    targets = [target_row(target, entries.get((target.device, target.case), [])) for target in TARGETS]
    blocks = [head.strip(), MARK, markdown(["case", "measured", "", "bar", "aim", "mode"], targets)]
    for device, records in found.items():
        blocks += [f"## {DEVICES[device]}", *sizes(records, device), *layers(records, device), *paths(records)]
        blocks += [*growth(records, device, docs), *pairs(paired.get(device, {}), device)]
    blocks.append(f"{END}\n\n{rest.partition(END)[2].strip()}".strip())
    with atomic_write(page) as temporary:
        temporary.write_text("\n\n".join(blocks) + "\n")
    return page
