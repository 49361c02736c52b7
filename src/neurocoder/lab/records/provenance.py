"""Where records come from: the commands that make them, the commit and the hardware that made them."""

from __future__ import annotations

import shlex
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..experiments import Experiment
from ..runner.options import format_seeds
from . import environment as environments
from .record import Record, plain


def config_overrides(config: Mapping[str, Any], preset: Mapping[str, Any]) -> list[str]:
    """Command-line options for what differs from the preset; nested ones have no prefix."""
    options: list[str] = []
    for name, value in config.items():
        option, usual = name.replace("_", "-"), preset.get(name)
        if value == usual:
            continue
        if isinstance(value, dict):
            options += config_overrides(value, usual if isinstance(usual, dict) else {})
        elif isinstance(value, bool):
            options.append(f"--{option}" if value else f"--no-{option}")
        else:
            options += [f"--{option}", *map(str, value if isinstance(value, list) else [value])]
    return options


def execution_flags(record: Record) -> list[str]:
    """Command-line options for a way of training that is not the default on that device."""
    usual = "graph" if record.device == "cuda" else "plain"
    return [
        *([] if record.precision == "32-true" else ["--precision", record.precision]),
        *([] if record.loop in (usual, "stacked") else ["--loop", record.loop]),  # seeds that an older version stacked
    ]


def commands(experiment: Experiment, preset: str, records: Sequence[Record], reference: str) -> list[str]:
    """The commands that reproduce these records: one per configuration and set of seeds. `reference` is the experiment
    as it is given to `neurocoder run`: its name, or package.module:Class."""
    known = experiment.presets.get(preset)
    usual = {} if known is None else plain(known)
    everything = [] if known is None else experiment.variants(known)
    seeds: dict[tuple[tuple[str, ...], str], set[int]] = defaultdict(set)
    for record in sorted(
        records, key=lambda r: everything.index(r.variant) if r.variant in everything else len(everything)
    ):
        config = experiment.effective(record.config, record.variant)
        seeds[tuple(config_overrides(config, usual) + execution_flags(record)), record.variant].add(record.seed)
    variants: dict[tuple[tuple[str, ...], str], list[str]] = defaultdict(list)
    for (options, variant), found in seeds.items():
        variants[options, format_seeds(found)].append(variant)
    lines = []
    for (options, numbers), names in variants.items():
        usually_all = preset not in experiment.selections and set(names) == set(everything)
        chosen = [] if usually_all else ["--variants", ",".join(names)]
        words = ["neurocoder", "run", reference, "--preset", preset, "--seeds", numbers, *chosen, *options]
        lines.append(shlex.join(words))
    return lines


def tally(values: Iterable[str]) -> str:
    """The value that all runs share, or each value with its number of runs."""
    found = Counter(values).most_common()
    if len(found) == 1:
        return found[0][0]
    return "mixed: " + ", ".join(f"{value} ({times} run{'s' * (times > 1)})" for value, times in found)


def source(record: Record) -> str:
    """The commit of a record, cut to twelve digits: with + if the package's source differed from it, with ? if that
    cannot be told."""
    commit = record.environment.get("commit", "unknown")
    return commit.rstrip("+")[:12] + {"yes": "+", "no": "", "unknown": "?"}[changed_source(record)]


def changed_source(record: Record) -> str:
    """Whether the package's source differed from the commit: yes, no or unknown. Where a run was made, git may not have
    known; here it may."""
    facts = record.environment
    made = facts.get("changed", "unknown")
    return (
        environments.source_changed(facts.get("commit", "unknown"), facts.get("source")) if made == "unknown" else made
    )


def environment(records: Iterable[Record], name: str) -> str:
    """One fact about the environment of all runs."""
    return tally(source(r) if name == "commit" else r.environment.get(name, "unknown") for r in records)


def duration(seconds: float) -> str:
    """In the largest unit that keeps two digits."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def runs(records: Sequence[Record]) -> str:
    """Their number and total time. Stacked seeds share one time."""
    times = [record.seconds for record in records if record.loop != "stacked"]
    times += [seconds for _, seconds in {(r.variant, r.seconds) for r in records if r.loop == "stacked"}]
    return f"{len(records)} run{'s' * (len(records) > 1)}, {duration(sum(times))} in all"


def warnings(preset: str, records: Sequence[Record]) -> list[str]:
    """What to know before the numbers of a preset are read."""
    lines = []
    if preset == "smoke":
        lines.append("A smoke run only checks that everything works: it hardly trains, and its numbers mean nothing.")
    if unhashed := sum("source" not in record.environment for record in records):
        lines.append(
            f"{unhashed} of these {len(records)} runs are older than the hash of the source in a record: it cannot be "
            "shown that they ran the unchanged source of their commit, which is marked with ?."
        )
    return lines


def origin(records: Sequence[Record]) -> str:
    """One line on what produced the records; says where they differ."""
    facts = {
        "commit": environment(records, "commit"),
        "hardware": environment(records, "hardware"),
        "torch": environment(records, "torch"),
        "precision": tally(record.precision for record in records),
        "loop": tally(record.loop for record in records),
    }
    if any("experiment_commit" in record.environment for record in records):
        facts = {"experiment commit": environment(records, "experiment_commit"), **facts}
    notes = [
        "A commit with + had changes on top." if "+" in facts["commit"] else "",
        "A commit with ? could not be compared with the source that ran." if "?" in facts["commit"] else "",
        "Unknown: it was not recorded." if any("unknown" in fact for fact in facts.values()) else "",
        "Not all runs have the same configuration." if any(r.config != records[0].config for r in records) else "",
    ]
    line = "; ".join([runs(records), *(f"{name} {fact}" for name, fact in facts.items())])
    return " ".join([f"{line}.", *filter(None, notes)])
