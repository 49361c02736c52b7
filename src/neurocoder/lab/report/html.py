"""One self-contained page: tables, figures and style."""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path

from .cells import LEGEND, excludes_zero, numeric, ours, text
from .chapter import Chapter, Picture, slug
from .sections import Cell, Estimate, Section, Table

TITLE = "Neurocoder: our results and the paper's"
STYLE = Path(__file__).with_name("report.css").read_text()


def words(plain: str) -> str:
    """Plain text with `code` as HTML."""
    return re.sub("`([^`]+)`", r"<code>\1</code>", escape(plain))


def box(content: Cell, kind: str) -> str:
    """A cell, its interval below the number."""
    number, rest = ours(content) if isinstance(content, Estimate) else (text(content), "")
    shown = f"<strong>{words(number)}</strong>" if excludes_zero(content) else words(number)
    return f"<td{kind}>{shown}" + (f'<span class="interval">{rest}</span>' if rest else "") + "</td>"


def grid(table: Table) -> str:
    """A table that scrolls sideways if it is too wide."""
    columns = range(len(table.headings))
    kinds = [' class="number"' if numeric(table, column) else "" for column in columns]
    heads = "".join(f'<th scope="col"{kinds[column]}>{words(table.headings[column])}</th>' for column in columns)
    rows = ""
    for row in table.rows:
        others = "".join(box(row[column], kinds[column]) for column in columns[1:])
        rows += f'<tr><th scope="row">{words(text(row[0]))}</th>{others}</tr>\n'
    note = f'\n<p class="note">{words(table.caption)}</p>' if table.caption else ""
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(table.title)}"><table>'
        f"<caption>{words(table.title)}</caption>\n"
        f"<thead><tr>{heads}</tr></thead>\n<tbody>\n{rows}</tbody></table></div>{note}"
    )


def figure(picture: Picture, caption: str) -> str:
    """A figure inside the page."""
    source = f"data:image/svg+xml;base64,{b64encode(picture.svg).decode()}"
    image = f'<img alt="{escape(caption)}" src="{source}">'
    return f'<figure><div class="scroll" tabindex="0">{image}</div><figcaption>{words(caption)}</figcaption></figure>'


def anchor(chapter: Chapter, section: int | None = None) -> str:
    """The anchor of a chapter or section."""
    return slug(chapter.experiment, chapter.preset) + ("" if section is None else f"-{section + 1}")


def contents(chapters: Sequence[Chapter]) -> Iterator[str]:
    """Links to every chapter and section."""
    for chapter in chapters:
        titles = enumerate(section.title for section in chapter.sections)
        parts = "".join(f'<li><a href="#{anchor(chapter, i)}">{words(title)}</a></li>' for i, title in titles)
        head = f"{words(chapter.title)}, preset {words(chapter.preset)}"
        yield f'<li><a href="#{anchor(chapter)}">{head}</a><ul>{parts}</ul></li>'


def part(section: Section, chapter: Chapter, place: str) -> Iterator[str]:
    """One section."""
    yield f'<h3 id="{place}">{words(section.title)}</h3>'
    yield from (f"<p>{words(paragraph)}</p>" for paragraph in section.text)
    yield from map(grid, section.tables[:1])
    yield from (figure(chapter.pictures[plot.name], plot.caption) for plot in section.plots)
    yield from map(grid, section.tables[1:])


def page(chapters: Sequence[Chapter], facts: dict[str, str]) -> str:
    """The whole page; `facts` go to its end."""
    body = [f"<h1>{TITLE}</h1>", f"<p>{words(LEGEND)}</p>"]
    body += ['<nav aria-label="Contents"><ul>', *contents(chapters), "</ul></nav>", "<main>"]
    for chapter in chapters:
        body.append(f'<h2 id="{anchor(chapter)}">{words(chapter.title)}, preset {words(chapter.preset)}</h2>')
        body += [f'<p class="warning">{words(line)}</p>' for line in chapter.warnings]
        for number, section in enumerate(chapter.sections):
            body += part(section, chapter, anchor(chapter, number))
        body.append(f"<details><summary>To reproduce</summary><p>{words(chapter.origin)}</p>")
        body.append(f'<pre tabindex="0">{escape(chr(10).join(chapter.commands))}</pre></details>')
    body += ["</main>", "<footer><h2>About this page</h2><dl>"]
    body += [f"<dt>{words(name)}</dt><dd>{words(fact)}</dd>" for name, fact in facts.items()]
    body.append("</dl></footer>")
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{TITLE}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n"
        + "\n".join(body)
        + "\n</body>\n</html>\n"
    )
