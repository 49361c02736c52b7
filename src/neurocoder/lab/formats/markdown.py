"""Sections as Markdown."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from ..sections import Section, Table
from .cells import LEGEND, numeric, text
from .chapter import Chapter, Picture

SPECIAL = re.compile(r"(`[^`]*`)|([\\*<~\[\]`]|(?<![^\W_])_|_(?![^\W_]))")
"""Code, which is left as it is, or a character that is Markdown syntax; `_` inside a word is not."""


def escape(words: str) -> str:
    """Plain text with `code`, escaped for Markdown."""
    return SPECIAL.sub(lambda found: found[1] or f"\\{found[2]}", words)


def grid(table: Table) -> list[str]:
    """Title, rows and caption."""

    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(escape(cell).replace("|", "\\|") for cell in cells) + " |"

    rules = ["---:" if numeric(table, column) else "---" for column in range(len(table.headings))]
    rows = [line(table.headings), f"|{'|'.join(rules)}|", *(line([text(cell) for cell in row]) for row in table.rows)]
    return [f"**{escape(table.title)}**", "\n".join(rows), *([escape(table.caption)] if table.caption else [])]


def section(content: Section, pictures: Mapping[str, Picture], images: str) -> list[str]:
    """Blocks of one section; each PNG links to its SVG."""
    blocks = [f"### {escape(content.title)}", *map(escape, content.text)]
    for table in content.tables:
        blocks += grid(table)
    for plot in content.plots:
        stem, caption = f"{images}/{pictures[plot.name].stem}", escape(plot.caption)
        blocks += [f"[![{caption}]({stem}.png)]({stem}.svg)", f"*{caption}*"]
    return blocks


def page(chapters: Sequence[Chapter], images: str) -> str:
    """One experiment's page; `images` is the folder of the figures as seen from it."""
    blocks = [f"# {escape(chapters[0].title)}", f"Built from the records by `neurocoder report`. {LEGEND}"]
    for chapter in chapters:
        blocks += [f"## Preset {escape(chapter.preset)}", escape(chapter.origin)]
        blocks.append("\n".join(["```sh", *chapter.commands, "```"]))
        for part in chapter.sections:
            blocks += section(part, chapter.pictures, images)
    return "\n\n".join(blocks) + "\n"


def index(titles: Mapping[str, str]) -> str:
    """The page that links to each experiment's, by name and title."""
    links = "\n".join(f"- [{escape(title)}]({name}.md)" for name, title in titles.items())
    return f"# Results\n\nOur results next to the paper's, built from the records by `neurocoder report`.\n\n{links}\n"
