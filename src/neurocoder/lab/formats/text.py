"""Sections for the terminal."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType
from rich.rule import Rule
from rich.table import Table as Grid
from rich.text import Text

from ..sections import Table
from .cells import numeric, text
from .chapter import Chapter


def grid(table: Table) -> Grid:
    """A table."""
    caption = Text(table.caption) if table.caption else None
    made = Grid(title=Text(table.title), caption=caption, title_justify="left", caption_justify="left")
    for column, heading in enumerate(table.headings):
        made.add_column(Text(heading), justify="right" if numeric(table, column) else "left", overflow="fold")
    for row in table.rows:
        made.add_row(*(Text(text(cell)) for cell in row))
    return made


def chapter(content: Chapter) -> Iterator[RenderableType]:
    """What to print, piece by piece."""
    yield Rule(Text(f"{content.title}, preset {content.preset}"))
    yield Text(content.origin)
    yield from (Text(f"  {command}") for command in content.commands)
    for section in content.sections:
        yield Text(f"\n{section.title}", style="bold")
        yield from (Text(paragraph) for paragraph in section.text)
        for table in section.tables:
            yield from (Text(), grid(table))
