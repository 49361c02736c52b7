"""The command line of `neurocoder run`: its options, the experiment's settings, seeds and variants."""

from __future__ import annotations

import argparse
import dataclasses
import re
import sys
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import tyro

from ..experiments import EXPERIMENTS, Experiment, load
from ..validate import Count, NonNegative, validate
from .job import Setup

T = TypeVar("T")

MOST_NAMED = 40
"""Variants that an error names."""
MOST_SEEDS = 10_000
"""In one range, which is held in memory."""

PARTS = ("name", "title", "Config", "presets", "seeds")
"""What an experiment must have, besides its methods."""

RENAMED = {
    "run": {"--again": "--overwrite"},
    "run atari": {"--keep": "--save-agents"},
    "report": {"--output": "--records"},
    "export": {"--output": "--records"},
    "pack": {"--output": "--records", "--into": "--destination"},
    "bench": {"--again": "--overwrite"},
}
"""Former names of options, by command, which are still understood."""

INSTEAD = "--jobs does runs side by side, over the GPUs of this machine, --cluster over the machines of a Ray cluster"
"""Of several seeds or devices in one run, which are gone."""


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
    jobs: Count = 1
    """Runs in parallel, each in its own process."""
    report: bool = True
    """Tables and figures of all finished runs at the end; with --no-report, none."""
    threads: Count = 1
    """CPU threads per run; small models gain nothing from more."""
    resume: bool = False
    """Continue interrupted runs from their checkpoints."""
    overwrite: bool = False
    """Repeat finished and interrupted runs from the start."""
    checkpoint_seconds: NonNegative = 60.0
    """Seconds between checkpoints."""
    cluster: Annotated[str | None, tyro.conf.arg(metavar="ADDRESS")] = None
    """Run on a Ray cluster: its address, or auto for a running or a new local one."""
    data_root: Annotated[Path | None, tyro.conf.arg(metavar="PATH")] = None
    """Folder of data sets; else NEUROCODER_DATA, else what ships, and what is downloaded."""
    backbone: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """Weights of a frozen network, where an experiment needs one; else NEUROCODER_BACKBONE, else what is downloaded."""

    def __post_init__(self) -> None:
        validate(self, options=True)
        if self.resume and self.overwrite:
            raise ValueError("--resume continues runs, --overwrite starts them over: give one of them")
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
        able = [name for name in loops if name == "plain" or (name == "graph" and device == "cuda")]
        loop = ("graph" if "graph" in able else "plain") if self.loop == "auto" else self.loop
        if loop not in able:
            raise ValueError(f"--loop must be among {', '.join(able)} for this experiment, got {loop}")
        return Setup(
            output=self.output,
            device=device,
            precision=self.precision,
            loop=loop,
            threads=self.threads,
            resume=self.resume,
            overwrite=self.overwrite,
            interval=self.checkpoint_seconds,
            dry=self.dry_run,
        )


def parse(kind: type[T], arguments: Sequence[str], name: str, about: str) -> T:
    """Parse a command's options into a dataclass; tyro explains a wrong one, and exits with status 2."""
    former = RENAMED.get(name.partition(" ")[0], {}) | RENAMED.get(name, {})
    current = []
    for argument in arguments:
        option, equals, value = argument.partition("=")
        if option in former:
            print(f"note: {option} is now {former[option]}", file=sys.stderr)
        current.append(former.get(option, option) + equals + value)
    flags = (tyro.conf.OmitArgPrefixes, tyro.conf.FlagCreatePairsOff)
    return tyro.cli(kind, prog=f"neurocoder {name}", description=about, args=current, config=flags)


def parse_run(arguments: Sequence[str]) -> tuple[Options, Experiment, Any]:
    """What `run` was asked for: the options, the experiment, and its config."""
    if list(arguments) in (["-h"], ["--help"]):
        names = ", ".join(EXPERIMENTS)
        parse(Options, arguments, "run", f"Train an experiment: {names}. EXPERIMENT --help adds its own settings.")
    if not arguments or arguments[0].startswith("-"):
        raise ValueError("experiment must be given first: neurocoder run EXPERIMENT [options]")
    experiment = _checked(load(arguments[0]), arguments[0])
    early = argparse.ArgumentParser(add_help=False, allow_abbrev=False)  # what the other options depend on, or is gone
    early.add_argument("--preset", nargs="?", default=next(iter(experiment.presets)))
    for name in ("--loop", "--devices", "--nodes"):
        early.add_argument(name, nargs="?", const="")
    first = early.parse_known_args(list(arguments))[0]
    if first.preset not in experiment.presets:
        raise ValueError(f"--preset must be among {', '.join(experiment.presets)}, got {first.preset!r}")
    config = experiment.presets[first.preset]
    if not isinstance(config, experiment.Config):
        raise ValueError(f"presets of {arguments[0]} must be {experiment.Config.__name__} objects, got {config!r}")
    if first.loop == "stacked":
        raise ValueError(f"--loop must be auto, plain or graph, got stacked, which is gone: {INSTEAD}")
    for name in ("devices", "nodes"):
        if getattr(first, name) is not None and not hasattr(config, name):
            raise ValueError(f"--{name} is gone, a run has one device: {INSTEAD}")
    for name in (experiment.name, *experiment.variants(config)):
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9.-]*", name):  # names a folder, and patterns match it
            raise ValueError(
                f"name and variants of {arguments[0]} must use only letters, digits, - and ., got {name!r}"
            )
    about = f"{experiment.title}. Variants: {experiment.naming(config)}."
    fields: list[Any] = [("run", Options), ("training", experiment.Config, config)]
    parsed: Any = parse(dataclasses.make_dataclass("ParsedArgs", fields), arguments, f"run {arguments[0]}", about)
    return dataclasses.replace(parsed.run, preset=first.preset), experiment, parsed.training


def _checked(experiment: Experiment, reference: str) -> Experiment:
    """An experiment with all its parts, and a name of its own."""
    if lacking := [part for part in PARTS if not getattr(experiment, part, None)]:
        raise ValueError(f"experiment {reference!r} must have {', '.join(PARTS)}, lacks {', '.join(lacking)}")
    if experiment.name in EXPERIMENTS and reference not in EXPERIMENTS:
        raise ValueError(f"the name of {reference} must differ from the built-in ones, got {experiment.name!r}")
    return experiment


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


def format_seeds(seeds: Iterable[int]) -> str:
    """0, 1, 2, 5 -> `0-2,5`."""
    parts: list[list[int]] = []
    for seed in sorted(seeds):
        if parts and seed == parts[-1][-1] + 1:
            parts[-1].append(seed)
        else:
            parts.append([seed])
    return ",".join(f"{part[0]}-{part[-1]}" if len(part) > 1 else str(part[0]) for part in parts)


def match_variants(variants: Sequence[str], wanted: str) -> list[str]:
    """The variants that match the patterns, in their order."""
    patterns = [pattern.strip() for pattern in wanted.split(",")]
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in variants):
            close = get_close_matches(pattern, variants, 5, 0.3) if len(variants) > MOST_NAMED else variants
            some = f"the {len(variants)} variants, such as" if len(variants) > MOST_NAMED else "some of"
            raise ValueError(f"--variants must match {some} {', '.join(close or variants[:5])}, got {pattern!r}")
    return [name for name in variants if any(fnmatchcase(name, pattern) for pattern in patterns)]
