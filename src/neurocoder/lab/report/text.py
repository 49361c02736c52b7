"""Sections for the terminal."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console, RenderableType
from rich.rule import Rule
from rich.table import Table as Grid
from rich.text import Text

from .cells import excludes_zero, numeric, ours, text
from .chapter import Chapter
from .sections import Estimate, Table


def grid(table: Table, intervals: bool = True) -> Grid:
    """A table; without intervals it is narrower."""
    caption = Text(table.caption) if table.caption else None
    made = Grid(title=Text(table.title), caption=caption, title_justify="left", caption_justify="left")
    for column, heading in enumerate(table.headings):
        made.add_column(Text(heading), justify="right" if numeric(table, column) else "left", overflow="fold")
    for row in table.rows:
        words = (text(cell) if intervals or not isinstance(cell, Estimate) else ours(cell)[0] for cell in row)
        made.add_row(
            *(Text(word, "bold" if excludes_zero(cell) else "") for word, cell in zip(words, row, strict=True))
        )
    return made


def fitting(table: Table, console: Console) -> Grid:
    """Without intervals if the console is too narrow for them."""
    whole, unbounded = grid(table), console.options.update(max_width=1000)
    fits = console.measure(whole, options=unbounded).maximum <= console.width
    return whole if fits else grid(table, intervals=False)


def chapter(content: Chapter, console: Console) -> Iterator[RenderableType]:
    """What to print on the console, piece by piece."""
    yield Rule(Text(f"{content.title}, preset {content.preset}"))
    yield from (Text(f"Note. {line}", style="bold") for line in content.warnings)
    for section in content.sections:
        yield Text(f"\n{section.title}", style="bold")
        yield from map(Text, section.text)
        for table in section.tables:
            yield from (Text(), fitting(table, console))
    yield Text(f"\n{content.origin}")
    yield from (Text(f"  {command}") for command in content.commands)
