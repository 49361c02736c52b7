"""Tables and figures from records, next to the paper's numbers: on the terminal, as Markdown and as one HTML page."""

from __future__ import annotations

import shlex
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console

from ..version import __version__
from .experiments import EXPERIMENTS, Experiment, load
from .files import obstacle, replacing
from .formats import html, markdown, text
from .formats.cells import LEGEND
from .formats.chapter import Chapter, draw, slug
from .provenance import changed, commands, environment, origin, runs
from .results import Damaged, Record, plain

PAPER = Path(__file__).with_name("paper.toml")
PIPE_WIDTH = 200
"""Width of tables when the output is not a terminal."""
Groups = dict[tuple[str, str], tuple[Experiment, list[Record]]]
"""Records by experiment and preset, including any options on top of it: runs of different configurations are not
compared."""


@dataclass(frozen=True)
class Options:
    """Build tables and figures from the records, next to the paper's numbers."""

    output: Path = Path("results")
    """Folder of the records: the `--output` of `neurocoder run`."""
    target: Path = Path("docs/results")
    """Folder for the Markdown pages, the figures (in `images`) and `report.html`."""
    experiments: tuple[str, ...] = ()
    """Experiments to include; by default all built-in ones with records."""
    presets: tuple[str, ...] = ()
    """Presets to include; by default all with records."""


def paper_numbers() -> dict[str, dict[str, Any]]:
    """`paper.toml` by experiment, each with its own rows of the tables of hyper-parameters and of parameters."""
    whole = tomllib.loads(PAPER.read_text())
    shared = {name: whole.pop(name) for name in ("hyperparameters", "parameters")}
    return {
        experiment: part | {name: rows[experiment] for name, rows in shared.items() if experiment in rows}
        for experiment, part in whole.items()
    }


def gather(options: Options, warn: Callable[[str], None]) -> Groups:
    """All records that were asked for, in the order of experiments and presets; warns of invalid files."""
    experiments = [load(name) for name in options.experiments or EXPERIMENTS]
    known = list(dict.fromkeys(preset for experiment in experiments for preset in experiment.presets))
    for preset in options.presets:
        if preset not in known:
            raise ValueError(f"--presets must be among {', '.join(known)}, got {preset!r}")
    found: Groups = {}
    for experiment in experiments:
        order = {preset: place for place, preset in enumerate(experiment.presets)}
        records: list[tuple[str, str, Record]] = []
        paths = [path for path in (options.output / experiment.name).glob("*/*/seed*.json") if path.stem[4:].isdigit()]
        for path in sorted(paths, key=lambda p: (p.parts[:-1], int(p.stem[4:]))):
            preset = path.parts[-3]
            if options.presets and preset not in options.presets:
                continue
            try:
                record = Record.read_in_place(path)
                if lacking := [entry.name for entry in fields(experiment.Config) if entry.name not in record.config]:
                    raise Damaged(f"{path} lacks {', '.join(lacking)} in its config")
            except (Damaged, OSError) as error:
                warn(f"{error}; left out")
                continue
            records.append((preset, with_options(experiment, preset, record), record))
        records.sort(key=lambda entry: (order.get(entry[0], len(order)), entry[0] != entry[1]))
        for _, label, record in records:
            found.setdefault((experiment.name, label), (experiment, []))[1].append(record)
    return found


def with_options(experiment: Experiment, preset: str, record: Record) -> str:
    """The preset, and the options that turn it into the record's configuration."""
    known = experiment.presets.get(preset)
    options = [] if known is None else changed(record.config, plain(known))
    return f"{preset} with {shlex.join(options)}" if options else preset


def missing(options: Options) -> str:
    """What to do when there are no records."""
    names = options.experiments or tuple(EXPERIMENTS)
    only = f" with preset {' or '.join(options.presets)}" if options.presets else ""
    runs = " or ".join(f"`neurocoder run {name} --preset {(options.presets or ('best',))[0]}`" for name in names)
    return f"no records of {' or '.join(names)} under {options.output}{only}: make some with {runs}"


def compose(experiment: Experiment, preset: str, records: Sequence[Record], paper: Mapping[str, Any]) -> Chapter:
    """Sections with their figures drawn."""
    try:
        sections = experiment.sections(records, paper)
    except (LookupError, TypeError, AttributeError) as error:
        raise ValueError(
            f"the records of {experiment.name}, preset {preset}, lack what its tables need, {error!r}: are they from "
            f"this version? `{commands(experiment, records[0].preset, records)[0]} --again` recreates them"
        ) from error
    return Chapter(
        experiment=experiment.name,
        title=experiment.title,
        preset=preset,
        origin=origin(records),
        commands=commands(experiment, records[0].preset, records),
        sections=sections,
        pictures={
            plot.name: draw(plot, f"{slug(experiment.name, preset)}-{plot.name}")
            for section in sections
            for plot in section.plots
        },
    )


def write(target: Path, content: bytes | str) -> None:
    """Atomic write."""
    with replacing(target) as temporary:
        temporary.write_bytes(content if isinstance(content, bytes) else content.encode())


def facts(records: Sequence[Record]) -> dict[str, str]:
    """The header of the HTML page: when and from what it was built, and where that was made."""
    return {
        "built": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC by `neurocoder report`, version {__version__}",
        "from": runs(records),
        "commit": environment(records, "commit"),
        "hardware": environment(records, "hardware"),
    }


def save(chapters: Sequence[Chapter], head: dict[str, str], target: Path) -> None:
    """Figures, a Markdown page for each experiment, an index to these pages, and the HTML page."""
    for chapter in chapters:
        for picture in chapter.pictures.values():
            write(target / "images" / f"{picture.stem}.svg", picture.svg)
            write(target / "images" / f"{picture.stem}.png", picture.png)
    titles = {chapter.experiment: chapter.title for chapter in chapters}
    for name in titles:
        write(target / f"{name}.md", markdown.page([one for one in chapters if one.experiment == name], "images"))
    older = [name for name in EXPERIMENTS if name not in titles and (target / f"{name}.md").exists()]
    write(target / "README.md", markdown.index(titles | {name: load(name).title for name in older}))
    write(target / "report.html", html.page(chapters, head))


def main(options: Options) -> int:
    """Write everything under `options.target`, and print the tables; returns the exit status."""
    errors = Console(stderr=True, soft_wrap=True, markup=False, highlight=False)
    groups = gather(options, lambda line: errors.print(f"warning: {line}"))
    if not groups:
        raise FileNotFoundError(missing(options))
    if why := obstacle(options.target):
        raise ValueError(f"--target must be a folder that can be written to, got {options.target}: {why}")
    paper = paper_numbers()
    chapters = [
        compose(experiment, preset, records, paper.get(name, {}))
        for (name, preset), (experiment, records) in groups.items()
    ]
    save(chapters, facts([record for _, records in groups.values() for record in records]), options.target)
    screen = Console(markup=False, highlight=False)
    if not screen.is_terminal:
        screen.width = PIPE_WIDTH
    for chapter in chapters:
        screen.print(*text.chapter(chapter, screen), sep="\n")
    screen.print(LEGEND)
    screen.print(f"Wrote {options.target / 'report.html'}, with Markdown and figures next to it.", soft_wrap=True)
    return 0
