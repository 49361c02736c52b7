"""Sections as Markdown."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from .cells import LEGEND, excludes_zero, numeric, text
from .chapter import Chapter, Picture
from .sections import Cell, Section, Table

SPECIAL = re.compile(r"(`[^`]*`)|([\\*<~\[\]`]|(?<![^\W_])_|_(?![^\W_]))")
"""Code, which is left as it is, or a character that is Markdown syntax; `_` inside a word is not."""

PARTS = "By part, each with the presets that were run:"
"""Stands before the links to pages of parts."""


def escape(words: str) -> str:
    """Plain text with `code`, escaped for Markdown."""
    return SPECIAL.sub(lambda found: found[1] or f"\\{found[2]}", words)


def box(cell: Cell) -> str:
    """A cell; bold if it is a difference whose interval excludes zero."""
    shown = escape(text(cell)).replace("|", "\\|")
    return f"**{shown}**" if excludes_zero(cell) else shown


def grid(table: Table) -> list[str]:
    """Title, rows and caption."""
    rules = ["---:" if numeric(table, column) else "---" for column in range(len(table.headings))]
    rows = [f"| {' | '.join(map(box, row))} |" for row in (table.headings, *table.rows)]
    rows.insert(1, f"|{'|'.join(rules)}|")
    return [f"**{escape(table.title)}**", "\n".join(rows), *([escape(table.caption)] if table.caption else [])]


def section(content: Section, pictures: Mapping[str, Picture]) -> list[str]:
    """Blocks of one section: its first table, which has the result, then figures, then what explains it.

    Figures are PNG here; the HTML page has them as SVG, which take as much again.
    """
    blocks = [] if content.page else [f"### {escape(content.title)}"]
    blocks += map(escape, content.text)
    for table in content.tables[:1]:
        blocks += grid(table)
    for plot in content.plots:
        stem, caption = f"images/{pictures[plot.name].stem}", escape(plot.caption)
        blocks += [f"![{caption}]({stem}.png)", f"*{caption}*"]
    for table in content.tables[1:]:
        blocks += grid(table)
    return blocks


def page(title: str, chapters: Sequence[Chapter], links: Sequence[str] = ()) -> str:
    """One page: links to others, then what each preset gave."""
    blocks = [f"# {escape(title)}", f"Built from the records by `neurocoder report`. {LEGEND}"]
    blocks += ["\n".join(links)] if links else []
    for chapter in chapters:
        blocks.append(f"## Preset {escape(chapter.preset)}")
        blocks += [f"**Note.** {escape(line)}" for line in chapter.warnings]
        for part in chapter.sections:
            blocks += section(part, chapter.pictures)
        apart = any(part.page for part in chapter.sections)
        blocks.append("### To reproduce, with the other parts" if apart else "### To reproduce")
        blocks += [escape(chapter.origin), "\n".join(["```sh", *chapter.commands, "```"])]
    return "\n\n".join(blocks) + "\n"


def pages(chapters: Sequence[Chapter]) -> dict[str, str]:
    """An experiment's pages by name: its own, which links to the others, and one for each part that has its own."""
    name, title = chapters[0].experiment, chapters[0].title
    apart: dict[str, list[Chapter]] = {}
    for chapter in chapters:
        for part in chapter.sections:
            if part.page:
                apart.setdefault(f"{name}-{part.page}", []).append(replace(chapter, sections=[part]))
    whole = [
        replace(chapter, sections=rest)
        for chapter in chapters
        if (rest := [part for part in chapter.sections if not part.page])
    ]
    titles = {key: own[0].sections[0].title for key, own in apart.items()}
    links = [
        f"- [{escape(titles[key])}]({key}.md): {', '.join(escape(chapter.preset) for chapter in own)}"
        for key, own in apart.items()
    ]
    shown = [f"{PARTS}\n", *links] if links else []
    return {name: page(title, whole, shown), **{key: page(titles[key], own) for key, own in apart.items()}}


def figures(shown: str) -> list[str]:
    """The figures that a page shows, as paths from its folder."""
    return re.findall(r"\]\((images/[\w.-]+\.png)\)", shown)


def parts(shown: str) -> list[str]:
    """The pages of its parts that a page links to, by file name."""
    listed = shown.partition(f"\n{PARTS}\n\n")[2].partition("\n\n")[0]
    return re.findall(r"^- \[.*\]\(([\w.-]+\.md)\)", listed, re.MULTILINE)


def index(title: str, pages: Mapping[Path, str], claims: Sequence[str] = ()) -> str:
    """The page that links to others, by path and first line, after what became of the paper's claims."""
    links = "\n".join(f"- [{line.removeprefix('# ')}]({path.as_posix()})" for path, line in pages.items())
    what = "Our results next to the paper's, built" if claims else "Built"
    head = [f"# {title}", f"{what} from the records by `neurocoder report`."]
    return "\n\n".join([*head, *claims, *(["## Tables and figures"] if claims else []), links]) + "\n"
