"""The commands of the lab: they parse the command line and call the rest."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import importlib
import io
import os
import re
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, cast

import torch
import tyro
from rich.console import Console
from rich.table import Table

from ..experiments import EXPERIMENTS, Experiment, load
from ..records import environment
from . import launch, runs
from .progress import display
from .runs import Setup, Unit, format_seeds

T = TypeVar("T")

PRESETS = {
    "quick": "the default: our settings, cut down to minutes",
    "best": "our settings, chosen on validation data",
    "paper": "the paper's hyper-parameters",
    "smoke": "a check that everything works",
}

NUMBERS = {
    r"invalid literal for int\(\) with base 10": "a whole number",
    "could not convert string to float": "a number",
}
"""Python's message for a word that is not a number, and what was expected."""

MOST_NAMED = 40
"""Variants that an error names."""
MOST_SEEDS = 10_000
"""In one range, which is held in memory."""

INSTEAD = "--jobs does runs side by side, over the GPUs of this machine, --cluster over the machines of a Ray cluster"
"""Of runs with several seeds or on several devices."""

PARTS = ("name", "title", "Config", "presets", "seeds")
"""What an experiment must have, besides its methods."""


@dataclasses.dataclass(frozen=True)
class Options:
    """How to run. The defaults suit one machine."""

    experiment: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="EXPERIMENT")]
    """Its name (see `neurocoder list`), or package.module:Class for your own."""
    preset: Annotated[str | None, tyro.conf.arg(metavar="PRESET", help_behavior_hint="(default: the first)")] = None
    """Defaults of the settings below, see `neurocoder list`."""
    seeds: Annotated[str | None, tyro.conf.arg(metavar="SEEDS", help_behavior_hint="(default: the preset's)")] = None
    """Seeds to run, such as 0-9 or 0,3,5."""
    variants: Annotated[str | None, tyro.conf.arg(metavar="NAMES", help_behavior_hint="(default: the preset's)")] = None
    """Comma-separated names or patterns; '*' for all."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Device to train on."""
    precision: Literal["32-true", "bf16-mixed"] = "32-true"
    """Precision of the computation; parameters stay in float32."""
    loop: Literal["auto", "plain", "graph"] = "auto"
    """plain: eager; graph: one CUDA graph per step (auto, on a GPU)."""
    output: Path = Path("runs")
    """Folder for the records."""
    dry_run: bool = False
    """Only print what would be run."""
    jobs: int = 1
    """Runs in parallel, each in its own process."""
    threads: int = 1
    """CPU threads per run; small models gain nothing from more."""
    resume: bool = False
    """Continue interrupted runs from their checkpoints."""
    again: bool = False
    """Repeat finished and interrupted runs from the start."""
    checkpoint_seconds: float = 60.0
    """Seconds between checkpoints."""
    cluster: Annotated[str | None, tyro.conf.arg(metavar="ADDRESS")] = None
    """Run on a Ray cluster: its address, or auto for a running or a new local one."""
    data_root: Annotated[Path | None, tyro.conf.arg(metavar="PATH")] = None
    """Folder of the data sets; else NEUROCODER_DATA, else the packaged data."""

    backbone: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """Weights of a frozen network, where an experiment needs one; else NEUROCODER_BACKBONE."""

    def __post_init__(self) -> None:
        for name in ("jobs", "threads"):
            if getattr(self, name) < 1:
                raise ValueError(f"--{name} must be at least 1, got {getattr(self, name)}")
        if not self.checkpoint_seconds >= 0:
            raise ValueError(f"--checkpoint-seconds must be at least 0, got {self.checkpoint_seconds}")
        if self.resume and self.again:
            raise ValueError("--resume continues runs, --again starts them over: give one of them")
        if self.data_root is not None and not self.data_root.is_dir():
            raise ValueError(f"--data-root must be a folder, got {self.data_root}")
        if self.backbone is not None and not self.backbone.is_file():
            raise ValueError(f"--backbone must be a file, got {self.backbone}")
        if self.jobs > 1 and self.cluster:
            raise ValueError("--jobs and --cluster cannot be combined")

    def setup(self, gpu: bool, loops: Sequence[str]) -> Setup:
        """The setup with every `auto` resolved."""
        device = ("cuda" if gpu else "cpu") if self.device == "auto" else self.device
        if device == "cuda" and not gpu:
            raise ValueError("--device must be cpu where there is no GPU, got cuda")
        if device == "cpu" and self.loop == "graph":
            raise ValueError("--loop graph needs a GPU, got --device cpu")
        graph = device == "cuda" and "graph" in loops
        loop = ("graph" if graph else "plain") if self.loop == "auto" else self.loop
        if loop not in loops:
            able = [name for name in loops if name == "plain" or (name == "graph" and device == "cuda")]
            raise ValueError(f"--loop must be among {', '.join(able)} for this experiment, got {loop}")
        return Setup(
            output=self.output,
            device=device,
            precision=self.precision,
            loop=loop,
            threads=self.threads,
            resume=self.resume,
            again=self.again,
            interval=self.checkpoint_seconds,
        )


def parse(kind: type[T], arguments: Sequence[str], name: str, about: str) -> T:
    """Parse the command line into a dataclass; errors become a one-line `ValueError`."""
    told = io.StringIO()
    try:
        with contextlib.redirect_stderr(told):
            flags = (tyro.conf.OmitArgPrefixes, tyro.conf.FlagCreatePairsOff)
            return tyro.cli(kind, prog=f"neurocoder {name}", description=about, args=list(arguments), config=flags)
    except SystemExit as end:
        if not end.code:
            raise
    raise ValueError(f"{_message(told.getvalue())} (neurocoder {name} --help)")


def _message(box: str) -> str:
    """The text in tyro's error box between its title and the next rule."""
    rows = [line.strip("│| ") for line in re.sub(r"\x1b\[[0-9;]*m", "", box).splitlines()]
    rules = [index for index, row in enumerate(rows) if row.startswith("╭") or (row and set(row) <= set("─-╰╯+"))]
    message = " ".join(rows[rules[0] + 1 : rules[1]]) if len(rules) > 1 else " ".join(rows)
    message = re.sub(r"^Error parsing (run|training|Options)[\w.]*: ", "", message)
    for told, meant in NUMBERS.items():
        message = re.sub(rf"^Error parsing (\S+): {told}: ", rf"\1 must be {meant}, got ", message)
    similar = re.search(r"Perhaps you meant:\s+(--[\w-]+)", " ".join(rows))
    return message.strip() + (f"; perhaps you meant {similar[1]}" if similar else "")


def parse_seeds(text: str) -> list[int]:
    """`0-2,5` -> 0, 1, 2, 5."""
    seeds: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()) or int(last or first) < int(first):
            raise ValueError(f"--seeds must be like 0-9 or 0,3,5, got {text!r}")
        if int(last or first) >= 2**32 or int(last or first) - int(first) >= MOST_SEEDS:
            raise ValueError(f"--seeds must be below {2**32}, and at most {MOST_SEEDS:,}, got {text!r}")
        seeds += range(int(first), int(last or first) + 1)
    return sorted(set(seeds))


def choose(variants: Sequence[str], wish: str) -> list[str]:
    """The variants that match the patterns, in their order."""
    patterns = [pattern.strip() for pattern in wish.split(",")]
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in variants):
            close = get_close_matches(pattern, variants, 5, 0.3) if len(variants) > MOST_NAMED else variants
            some = f"the {len(variants)} variants, such as" if len(variants) > MOST_NAMED else "some of"
            raise ValueError(f"--variants must match {some} {', '.join(close or variants[:5])}, got {pattern!r}")
    return [name for name in variants if any(fnmatchcase(name, pattern) for pattern in patterns)]


def options(arguments: Sequence[str]) -> tuple[Options, Experiment, Any]:
    """What `run` was asked for: the options, the experiment, and its config."""
    if list(arguments) in (["-h"], ["--help"]):
        names = ", ".join(EXPERIMENTS)
        parse(Options, arguments, "run", f"Train an experiment: {names}. EXPERIMENT --help adds its own settings.")
    if not arguments or arguments[0].startswith("-"):
        raise ValueError("experiment must be given first: neurocoder run EXPERIMENT [options]")
    experiment = load(arguments[0])
    if lacking := [part for part in PARTS if not getattr(experiment, part, None)]:
        raise ValueError(f"experiment {arguments[0]!r} must have {', '.join(PARTS)}, lacks {', '.join(lacking)}")
    if experiment.name in EXPERIMENTS and arguments[0] not in EXPERIMENTS:
        raise ValueError(f"the name of {arguments[0]} must differ from the built-in ones, got {experiment.name!r}")
    early = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    early.add_argument("--preset", nargs="?", default=next(iter(experiment.presets)))
    for name in ("--loop", "--devices", "--nodes"):
        early.add_argument(name, nargs="?", const="")
    first = early.parse_known_args(list(arguments))[0]
    if first.loop == "stacked":
        raise ValueError(f"--loop must be auto, plain or graph, got stacked, which is gone: {INSTEAD}")
    preset = first.preset
    if preset not in experiment.presets:
        raise ValueError(f"--preset must be among {', '.join(experiment.presets)}, got {preset!r}")
    config = experiment.presets[preset]
    if not isinstance(config, experiment.Config):
        raise ValueError(f"presets of {arguments[0]} must be {experiment.Config.__name__} objects, got {config!r}")
    for name in ("devices", "nodes"):
        if getattr(first, name) is not None and not hasattr(config, name):
            raise ValueError(f"--{name} is gone, a run has one device: {INSTEAD}")
    fields: list[Any] = [("run", Options), ("training", experiment.Config, config)]
    variants = experiment.variants(config)
    for name in (experiment.name, *variants):
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9.-]*", name):  # names a folder, and patterns match it
            raise ValueError(
                f"name and variants of {arguments[0]} must use only letters, digits, - and ., got {name!r}"
            )
    about = f"{experiment.title}. Variants: {experiment.naming(config)}."
    wish: Any = parse(dataclasses.make_dataclass("Wish", fields), arguments, f"run {arguments[0]}", about)
    return dataclasses.replace(wish.run, preset=preset), experiment, wish.training


def run(arguments: Sequence[str]) -> int:
    """`neurocoder run`; returns the exit status."""
    chosen, experiment, config = options(arguments)
    if chosen.data_root is not None:
        os.environ["NEUROCODER_DATA"] = str(chosen.data_root.resolve())
    if chosen.backbone is not None:
        os.environ["NEUROCODER_BACKBONE"] = str(chosen.backbone.resolve())
    root = os.environ.get("NEUROCODER_DATA")
    if root and not Path(root).is_dir():
        raise ValueError(f"NEUROCODER_DATA must be a folder of data sets, got {root}")
    assert chosen.preset is not None
    seeds = list(experiment.seeds.get(chosen.preset, ())) if chosen.seeds is None else parse_seeds(chosen.seeds)
    if not seeds:
        raise ValueError(f"--seeds must be given: experiment {experiment.name!r} has none for preset {chosen.preset}")
    wanted = chosen.variants or experiment.selections.get(chosen.preset, "*")
    gpu = launch.connect(chosen.cluster) if chosen.cluster and not chosen.dry_run else torch.cuda.is_available()
    setup = chosen.setup(gpu, experiment.loops)
    units = [
        Unit(chosen.experiment, experiment.name, chosen.preset, config, variant, seed)
        for variant in choose(experiment.variants(config), wanted)
        for seed in seeds
    ]
    return _plan(units, setup) if chosen.dry_run else _sweep(units, setup, chosen)


def _plan(units: Sequence[Unit], setup: Setup) -> int:
    """Print what would be run; returns the exit status."""
    todo = runs.pending(units, dataclasses.replace(setup, dry=True), _note)
    for unit in todo:
        print(unit)
    place = units[0].folder(setup).parent
    print(f"{len(todo)} of {len(units)} runs to do, on {setup.device}, loop {setup.loop}, into {place}")
    return 0


def _sweep(units: Sequence[Unit], setup: Setup, chosen: Options) -> int:
    """Run the unfinished units as chosen, and report; returns the exit status."""
    os.environ["NEUROCODER_COMMIT"] = environment.commit()  # of the running code, whatever is committed meanwhile
    environment.running()
    todo = runs.pending(units, setup, _note)
    with display(len(todo), len(units) - len(todo)) as shown:
        if chosen.cluster:
            signal = launch.cluster(todo, setup, shown)
        elif chosen.jobs > 1:
            signal = launch.processes(todo, setup, chosen.jobs, shown)
        else:
            signal = launch.here(todo, setup, shown)
    print(f"{shown.conclude()}; records in {units[0].folder(setup).parent}", flush=True)
    if signal:
        instead = " instead of --again" if setup.again else ""
        print(f"interrupted: the same command with --resume{instead} continues from here", file=sys.stderr)
        return 128 + signal
    if shown.finished or shown.skipped:
        _report(units[0], setup)
    return 1 if shown.failures else 0


def _report(unit: Unit, setup: Setup) -> None:
    """Tables and figures of the sweep that this unit is of."""
    from ..report import build as reports

    names = reports.Options(setup.output, None, (unit.experiment,), (unit.preset,))
    try:
        reports.main(names)
    except (ValueError, OSError) as error:  # the runs themselves are done
        _note(f"no report: {error}")


def _note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


@dataclasses.dataclass(frozen=True)
class ListOptions:
    """No options."""


def table(arguments: Sequence[str]) -> int:
    """`neurocoder list`; returns the exit status."""
    parse(ListOptions, arguments, "list", "List experiments and presets.")
    rows = Table("experiment", "preset", "variants", "seeds", "runs", "2 cores", "1 GPU")
    for column in rows.columns[2:]:
        column.justify = "right"
    for name in EXPERIMENTS:
        experiment = load(name)
        for preset, config in experiment.presets.items():
            variants = choose(experiment.variants(config), experiment.selections.get(preset, "*"))
            seeds = experiment.seeds[preset]
            times = (f"{minutes:,.0f} min" for minutes in experiment.minutes[preset])
            counts = str(len(variants)), format_seeds(seeds), str(len(variants) * len(seeds))
            rows.add_row(name, preset, *counts, *times)
        rows.add_section()
    screen = Console(highlight=False)
    screen.print(rows)
    for preset, purpose in PRESETS.items():
        screen.print(f"{preset:6} {purpose}")
    screen.print("\nTimes are rough: --jobs 2 on two CPU cores, and one H200 with MPS and --jobs 16.")
    screen.print("neurocoder run EXPERIMENT --help lists its variants and settings.")
    return 0


def forward(name: str, module: str, arguments: Sequence[str]) -> int:
    """A command that is a module with `Options` and `main`, such as `neurocoder export`."""
    found = importlib.import_module(f"neurocoder.lab.{module}")
    return cast(int, found.main(parse(found.Options, arguments, name, found.Options.__doc__)))
