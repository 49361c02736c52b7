"""The commands of the lab: they parse the command line and call the rest."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import torch
from rich.console import Console
from rich.table import Table

from ..experiments import EXPERIMENTS, load
from ..records import environment
from . import executors
from .job import Job, Setup
from .options import Options, format_seeds, match_variants, parse, parse_run, parse_seeds
from .progress import display
from .sweep import check_folder, pending

PRESETS = {
    "quick": "the default: our settings, cut down to minutes",
    "equal": "contenders of one size, each at its own best rates",
    "best": "our settings, chosen on validation data",
    "best-224": "as best, on images of 224 x 224 pixels",
    "paper": "the paper's hyper-parameters",
    "paper-224": "as paper, on images of 224 x 224 pixels",
    "stream": "a single pass over each task",
    "rates": "a search for rates, on validation data",
    "large": "sequences with large values, as the paper's curves suggest",
    "small": "a small learning rate, as the paper's curves suggest",
    "smoke": "a check that everything works; its numbers mean nothing",
}


def run(arguments: Sequence[str]) -> int:
    """`neurocoder run`; returns the exit status."""
    options, experiment, config = parse_run(arguments)
    if options.data_root is not None:
        os.environ["NEUROCODER_DATA"] = str(options.data_root.resolve())
    if options.backbone is not None:
        os.environ["NEUROCODER_BACKBONE"] = str(options.backbone.resolve())
    root = os.environ.get("NEUROCODER_DATA")
    if root and not Path(root).is_dir():
        raise ValueError(f"NEUROCODER_DATA must be a folder of data sets, got {root}")
    assert options.preset is not None
    seeds = list(experiment.seeds.get(options.preset, ())) if options.seeds is None else parse_seeds(options.seeds)
    if not seeds:
        raise ValueError(f"--seeds must be given: experiment {experiment.name!r} has none for preset {options.preset}")
    variants = options.variants or experiment.selections.get(options.preset, "*")
    jobs = [
        Job(options.experiment, experiment.name, options.preset, config, variant, seed)
        for variant in match_variants(experiment.variants(config), variants)
        for seed in seeds
    ]
    if options.cluster and not options.dry_run:
        from . import cluster

        gpu = cluster.connect(options.cluster)
    else:
        gpu = torch.cuda.is_available()
    setup = options.setup(gpu, experiment.loops)
    os.environ["NEUROCODER_COMMIT"] = environment.commit()  # of the running code, whatever is committed meanwhile
    environment.running()
    todo, place = pending(jobs, setup, _note), jobs[0].folder(setup).parent
    if setup.dry:
        print(*todo, sep="\n", end="\n" * bool(todo))
        print(f"{len(todo)} of {len(jobs)} runs to do, on {setup.device}, loop {setup.loop}, into {place}")
        return 0
    if todo and not options.cluster:  # whose machines may have what this one lacks
        experiment.prepare(config, list(dict.fromkeys(job.variant for job in todo)))
    check_folder(todo, setup, _note)
    return _sweep(jobs, todo, setup, options)


def _sweep(jobs: Sequence[Job], todo: Sequence[Job], setup: Setup, options: Options) -> int:
    """Do the unfinished jobs, and report; returns the exit status."""
    with display(len(todo), len(jobs) - len(todo)) as shown:
        signal = executors.run_jobs(todo, setup, shown, processes=options.jobs, cluster=bool(options.cluster))
    print(f"{shown.conclude()}; records in {jobs[0].folder(setup).parent}", flush=True)
    if signal:
        instead = " instead of --overwrite" if setup.overwrite else ""
        print(f"interrupted: the same command with --resume{instead} continues from here", file=sys.stderr)
        return 128 + signal
    reported = not (options.report and (shown.finished or shown.skipped)) or _report(jobs[0], setup)
    return 0 if reported and not shown.failures else 1


def _report(job: Job, setup: Setup) -> bool:
    """Tables and figures of the sweep that this job is of; returns whether there are."""
    from ..report import build as reports

    try:
        return reports.main(reports.Options(setup.output, None, (job.experiment,), (job.preset,))) == 0
    except (ValueError, OSError) as error:  # the runs themselves are done
        _note(f"no report: {error}")
        return False


def _note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


@dataclass(frozen=True)
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
            variants = match_variants(experiment.variants(config), experiment.selections.get(preset, "*"))
            seeds = experiment.seeds[preset]
            times = (f"{minutes:,.0f} min" for minutes in experiment.minutes[preset])
            counts = str(len(variants)), format_seeds(seeds), str(len(variants) * len(seeds))
            rows.add_row(name, preset, *counts, *times)
        rows.add_section()
    screen = Console(highlight=False)
    screen.print(rows)
    for preset, purpose in PRESETS.items():
        screen.print(f"{preset:10}{purpose}")
    screen.print("\nTimes are rough: --jobs 2 on two CPU cores, and one H200 with MPS and --jobs 16.")
    screen.print("neurocoder run EXPERIMENT --help lists its variants and settings.")
    return 0


def forward(name: str, module: str, arguments: Sequence[str]) -> int:
    """A command that is a module with `Options` and `main`, such as `neurocoder export`."""
    found = importlib.import_module(f"neurocoder.lab.{module}")
    return cast(int, found.main(parse(found.Options, arguments, name, found.Options.__doc__)))
