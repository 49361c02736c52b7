"""Tables and figures from records, next to the paper's numbers: on the terminal, as Markdown and as one HTML page."""

from __future__ import annotations

import os
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.console import Console

from neurocoder import __version__

from ..experiments import EXPERIMENTS, Experiment, load
from ..records import store
from ..records.files import atomic_write, require_writable
from ..records.provenance import commands, environment, origin, runs, warnings
from ..records.record import Record, plain
from . import claims, html, markdown, text
from . import compare as comparison
from .cells import LEGEND
from .chapter import Chapter, draw, slug
from .compare import Effective, configurations, label
from .sections import Section, UndrawableError

PAPER = Path(__file__).with_name("paper.toml")
PIPE_WIDTH = 200
"""Width of tables when the output is not a terminal."""
Group = tuple[str, Experiment, str, list[Record]]
"""An experiment as the user named it, itself, a preset, and its records."""

TITLES = {"results": "Results", "selection": "How settings were chosen, on validation data"}
"""Of an index, by the name of its folder."""


@dataclass(frozen=True)
class Options:
    """Build tables and figures from the records, next to the paper's numbers."""

    records: Path = Path("results")
    """Folder of the records: the `--output` of `neurocoder run`, or a folder of several of these."""
    target: Annotated[Path | None, tyro.conf.arg(metavar="PATH")] = None
    """Folder for the Markdown pages, the figures (in `images`) and `report.html`; by default `report` in the folder of
    the records, and docs/results for those in results, docs/results/selection for those in results/selection."""
    experiments: tuple[str, ...] = ()
    """Experiments to include; by default all built-in ones with records."""
    presets: tuple[str, ...] = ()
    """Presets to include; by default all with records."""
    data_root: Annotated[Path | None, tyro.conf.arg(metavar="PATH")] = None
    """Folder of data sets, for figures that show images; by default NEUROCODER_DATA."""

    @property
    def folder(self) -> Path:
        """The target."""
        published = self.records.parts[:1] == ("results",)
        return self.target or (Path("docs") / self.records if published else self.records / "report")


def paper_numbers() -> dict[str, dict[str, Any]]:
    """`paper.toml` by experiment, each with its own rows of the tables of hyper-parameters and of parameters."""
    whole = tomllib.loads(PAPER.read_text())
    shared = {name: whole.pop(name) for name in ("hyperparameters", "parameters")}
    return {
        experiment: part | {name: rows[experiment] for name, rows in shared.items() if experiment in rows}
        for experiment, part in whole.items()
    }


def gather(options: Options, warn: Callable[[str], None]) -> list[Group]:
    """All records that were asked for, in the order of experiments and presets; warns of invalid ones.

    The records have a folder for each experiment, or else folders that do.
    """
    experiments = {reference: load(reference) for reference in options.experiments or EXPERIMENTS}
    known = list(dict.fromkeys(preset for experiment in experiments.values() for preset in experiment.presets))
    for preset in options.presets:
        if preset not in known:
            raise ValueError(f"--presets must be among {', '.join(known)}, got {preset!r}")
    groups: list[Group] = []
    for reference, experiment in experiments.items():
        whole = (options.records / experiment.name).is_dir()
        by_key: dict[Any, Record] = {}
        for folder in [options.records] if whole else sorted(options.records.glob("*/")):
            for record in store.records(folder, experiment.name, lambda line: warn(f"{line}; left out")):
                if by_key.setdefault(store.key(record), record) is not record:
                    warn(f"{folder} repeats {record.variant} seed {record.seed} of another folder; left out")
        records = deduplicate([by_key[key] for key in sorted(by_key)], experiment.effective, warn)
        presets = dict.fromkeys([*experiment.presets, *(record.preset for record in records)])
        for preset in options.presets or presets:
            if chosen := [record for record in records if record.preset == preset]:
                groups.append((reference, experiment, preset, chosen))
    return groups


def deduplicate(records: Sequence[Record], effective: Effective, warn: Callable[[str], None]) -> list[Record]:
    """The records without repetitions of a run by another loop or on another device: a seed counts once."""
    kept: dict[Any, list[Record]] = {}
    for record in records:
        config = repr(effective(record.config, record.variant))
        key = (record.preset, record.variant, record.seed, config, record.precision)
        same = next((r for r in kept.get(key, ()) if None in (r.model, record.model) or r.model == record.model), None)
        if same is None:
            kept.setdefault(key, []).append(record)
        else:
            ways = " and ".join(f"{run.loop} on {run.device}" for run in (same, record))
            warn(f"{record.variant} seed {record.seed} is there twice, {ways}; the first counts")
    return [record for alike in kept.values() for record in alike]


def chapters(group: Group, paper: Mapping[str, Any], warn: Callable[[str], None]) -> Iterator[Chapter]:
    """What the preset's own configuration gave, and any other one whose variants ran with no other settings. The rest
    is compared in a table."""
    reference, experiment, preset, records = group
    known = experiment.presets.get(preset)
    usual = records[0].config if known is None else plain(known)
    rows = configurations(records, usual, experiment.effective)
    if len(rows) > 1 and all(record.config == records[0].config for record in records):
        rows = configurations(records, usual)  # one command made them, so they stay together

    def chapter(name: str, chosen: Sequence[Record], sections: Sequence[Section]) -> Chapter:
        stem = slug(experiment.name, name)
        pictures, undrawn = {}, []
        for plot in (plot for part in sections for plot in part.plots):
            try:
                pictures[plot.name] = draw(plot, f"{stem}-{plot.name}")
            except UndrawableError as error:
                undrawn.append(f"{stem}-{plot.name}")
                warn(f"{experiment.name}, preset {name}: no figure {plot.name}: {error}")
        sections = [replace(part, plots=[plot for plot in part.plots if plot.name in pictures]) for part in sections]
        return Chapter(
            experiment=experiment.name,
            title=experiment.title,
            preset=name,
            origin=origin(chosen),
            commands=commands(experiment, preset, chosen, reference),
            sections=sections,
            pictures=pictures,
            undrawn=undrawn,
            warnings=warnings(preset, chosen),
        )

    def complete(settings: Mapping[str, Any], chosen: Sequence[Record]) -> Chapter:
        try:
            sections = experiment.sections(chosen, paper)
        except Exception as error:
            again = f"{commands(experiment, preset, chosen, reference)[0]} --overwrite"
            raise ValueError(
                f"the records of {experiment.name}, preset {preset}, lack what its tables need, {error!r}: are "
                f"they from this version? `{again}` recreates them"
            ) from error
        return chapter(", ".join(filter(None, (preset, label(settings)))), chosen, sections)

    times = Counter(variant for _, chosen in rows for variant in {run.variant for run in chosen})
    compared = []
    for settings, chosen in rows:
        if settings and any(times[run.variant] > 1 for run in chosen):
            compared += [run.variant for run in chosen]
        else:
            yield complete(settings, chosen)
    if compared:
        records = [record for record in records if record.variant in compared]
        rows = [
            (settings, kept)
            for settings, chosen in rows
            if (kept := [run for run in chosen if run.variant in compared])
        ]
        metric = experiment.metric or next(iter(records[0].metrics))
        order = compared if known is None else experiment.variants(known)
        variants = sorted(set(compared), key=lambda name: order.index(name) if name in order else len(order))
        table = comparison.section(rows, usual, variants, metric)
        section = replace(table, plots=experiment.compared(rows))
        yield chapter(f"{preset}, {len(rows)} configurations", records, [section])


def claimed(records: Path, paper: Mapping[str, Any]) -> list[str]:
    """What became of the paper's claims, if the folder of the records lists them."""
    if not (records / claims.NAME).is_file():
        return []
    return claims.Claims(records, paper, {experiment.name: experiment for experiment in map(load, EXPERIMENTS)}).page()


def write(target: Path, content: bytes | str) -> None:
    """Atomic write."""
    with atomic_write(target) as temporary:
        temporary.write_bytes(content if isinstance(content, bytes) else content.encode())


def facts(records: Sequence[Record]) -> dict[str, str]:
    """About the HTML page: when and from what it was built, and where that was made."""
    return {
        "built": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC by `neurocoder report`, version {__version__}",
        "from": runs(records),
        "neurocoder commit": environment(records, "commit"),
        "hardware": environment(records, "hardware"),
    }


def save(chapters: Sequence[Chapter], head: dict[str, str], target: Path, verdicts: Sequence[str] = ()) -> None:
    """Figures, a Markdown page for each experiment, an index to these pages after the verdicts, and the HTML page.

    Figures that only the earlier pages showed are removed, but not those that cannot be drawn here.
    """
    undrawn = {target / "images" / f"{stem}.png" for chapter in chapters for stem in chapter.undrawn}
    figures = {
        target / "images" / f"{picture.stem}.png": picture.png
        for chapter in chapters
        for picture in chapter.pictures.values()
    }
    for path, png in figures.items():
        write(path, png)
    for name in {chapter.experiment for chapter in chapters}:
        made = markdown.pages([chapter for chapter in chapters if chapter.experiment == name])
        earlier = [page for page in (target / f"{name}.md",) if page.is_file()]
        earlier += [target / part for page in earlier for part in markdown.parts(page.read_text())]
        for page in filter(Path.is_file, earlier):
            for figure in markdown.figures(page.read_text()):
                if target / figure not in figures.keys() | undrawn:
                    (target / figure).unlink(missing_ok=True)
            if page.stem not in made:
                page.unlink()
        for key, shown in made.items():
            write(target / f"{key}.md", shown)
    texts = {page: page.read_text() for page in sorted([*target.glob("*.md"), *target.glob("*/README.md")])}
    parts = {page.parent / part for page, shown in texts.items() for part in markdown.parts(shown)}
    links = {page.relative_to(target): shown.partition("\n")[0] for page, shown in texts.items() if page not in parts}
    links.pop(Path("README.md"), None)
    title = TITLES.get(target.name, f"Results: {target.name}")
    write(target / "README.md", markdown.index(title, links, verdicts))
    write(target / "report.html", html.page(chapters, head))


def main(options: Options) -> int:
    """Write everything under the target, and print the tables; returns the exit status."""
    if options.data_root is not None:
        if not options.data_root.is_dir():
            raise ValueError(f"--data-root must be a folder, got {options.data_root}")
        os.environ["NEUROCODER_DATA"] = str(options.data_root.resolve())
    errors = Console(stderr=True, soft_wrap=True, markup=False, highlight=False)

    def warn(line: str) -> None:
        errors.print(f"warning: {line}")

    groups = gather(options, warn)
    if not groups:
        names = options.experiments or tuple(EXPERIMENTS)
        some, make = " or ".join(names), " or ".join(f"`neurocoder run {name}`" for name in names)
        there = sorted({folder.name for folder in store.experiments(options.records)} - set(names))
        others = f" (there are some of {', '.join(there)}: name it by --experiments)" if there else ""
        raise FileNotFoundError(f"no records of {some} under {options.records}{others}: make some with {make}")
    require_writable("--target", options.folder)
    paper = paper_numbers()
    shown = [chapter for group in groups for chapter in chapters(group, paper.get(group[1].name, {}), warn)]
    verdicts = [] if options.target else claimed(options.records, paper)  # its links are those of the default folder
    save(shown, facts([record for group in groups for record in group[-1]]), options.folder, verdicts)
    screen = Console(markup=False, highlight=False)
    if not screen.is_terminal:
        screen.width = PIPE_WIDTH
    for chapter in shown:
        screen.print(*text.chapter(chapter, screen), sep="\n")
    screen.print(LEGEND)
    screen.print(f"Wrote {options.folder / 'report.html'}, with Markdown and figures next to it.", soft_wrap=True)
    return 0
