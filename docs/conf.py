"""The site: every page of this folder, the reference from the docstrings, and the explorer. Build it: `make docs`."""

from __future__ import annotations

import contextlib
import inspect
import io
import os
import re
from pathlib import Path
from xml.sax.saxutils import quoteattr

from docutils import nodes
from latex2mathml.converter import convert
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError
from sphinx.ext.napoleon import Config, GoogleDocstring
from sphinx.util import logging

from neurocoder.lab import cli
from neurocoder.lab.report import markdown
from neurocoder.version import __version__

project = "neurocoder"
author = "The neurocoder maintainers"
project_copyright = author
version = release = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc"]
exclude_patterns = ["_build"]
suppress_warnings = ["myst.header"]  # a page that `neurocoder report` wrote may skip a level
nitpicky = True
# Types of other libraries, and of this one's internals, in signatures: there is no page to link to.
nitpick_ignore_regex = [(r"py:.*", r".*")]

myst_enable_extensions = ["dollarmath", "colon_fence", "html_image"]
myst_fence_as_directive = {"math"}  # as Git hosts write it
myst_heading_anchors = 4
myst_dmath_double_inline = True

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_default_options = {"members": True, "show-inheritance": True}
autodoc_preserve_defaults = True
python_maximum_signature_line_length = 88
default_role = "code"

html_theme = "furo"
pygments_dark_style = "github-dark"
html_title = f"neurocoder {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_js_files = ["site.js"]
html_math_renderer = "latex2mathml"
html_copy_source = False
html_show_sphinx = False
html_show_search_summary = False  # it is fetched, which browsers forbid where a page is opened as a file
html_theme_options = {
    "light_css_variables": {
        "color-brand-primary": "#1f5fa8",
        "color-brand-content": "#1f5fa8",
        "figure-brightness": "1",
    },
    "dark_css_variables": {
        "color-brand-primary": "#7db4f0",
        "color-brand-content": "#7db4f0",
        "figure-brightness": "0.82",
    },
}

ROOT = Path(__file__).parents[1]
COPIES = {"contributing": "CONTRIBUTING.md", "changelog": "CHANGELOG.md"}
"""Pages of the site that stand for files of the repository's root."""
LINK = re.compile(r"\[([^\]]*)\]\((?!\w+:)([^)#\s]+)(#[^)\s]*)?\)")


def mathml(latex: str, display: str) -> str:
    """A formula as MathML, which browsers draw without any script or font of ours."""
    formula = convert(latex.strip(), display=display)
    if unknown := re.search(r">[^<]*(\\\w+)", formula):
        logging.getLogger(__name__).warning("latex2mathml does not know %s in: %s", unknown[1], latex.strip())
    return formula


def visit_inline(translator: nodes.NodeVisitor, node: nodes.Element) -> None:
    """A formula within a line."""
    translator.body.append(mathml(node.astext(), "inline"))
    raise nodes.SkipNode


def visit_block(translator: nodes.NodeVisitor, node: nodes.Element) -> None:
    """A formula on its own; the source stays beside it for those who look for it."""
    formula = mathml(node.astext(), "block")
    translator.body.append(f'<div class="formula" title={quoteattr(node.astext())}>{formula}</div>\n')
    raise nodes.SkipNode


def plain_text(line: str) -> str:
    """A line of a docstring, which is plain text with `code` in it, as reStructuredText."""
    parts = re.split(r"(`[^`]+`|\*\w+\*)", line)  # and *emphasis*, at the odd places
    parts[::2] = [re.sub(r"([*|\\]|_\b|\b_(?=\W|$))", r"\\\1", text) for text in parts[::2]]
    return "".join(f"`{part}`" if part.startswith("`") else part for part in parts)


def read_docstring(app: Sphinx, what: str, name: str, value: object, options: object, lines: list[str]) -> None:
    """Docstrings are written for people: escape what reStructuredText would read into them; blocks are literal."""
    section, result, literal = False, [], False
    for line in lines:
        if re.fullmatch(r"(Args|Returns|Example|Yields|Raises):", line):
            section = True
        elif line and not line.startswith(" "):
            section = False
        indented = line.startswith("    ") and not section
        if indented and not literal and not (result and result[-1]):
            result += ["::", ""]
        literal = indented or (literal and not line)
        result.append(line if literal or line.lstrip().startswith((">>>", "...")) else plain_text(line))
    if what not in ("attribute", "data", "property"):  # whose text would be read as `type: description`
        result = GoogleDocstring(result, Config(napoleon_use_rtype=False), app, what, name, value).lines()
    lines[:] = result


def skip_member(app: Sphinx, what: str, name: str, value: object, skip: bool, options: object) -> bool | None:
    """Leave out what a class only borrows from another library."""
    borrowed = inspect.isroutine(value) and not str(getattr(value, "__module__", "")).startswith("neurocoder")
    return True if borrowed else None


def read_page(app: Sphinx, page: str, source: list[str]) -> None:
    """Copies get their text; links to and from the repository's root are made those of the site."""
    here = (Path(app.srcdir) / page).parent
    folder, there = here, {ROOT / "README.md": "index.md", **{ROOT / name: f"{key}.md" for key, name in COPIES.items()}}
    if page in COPIES:
        app.env.note_dependency(str(ROOT / COPIES[page]))
        folder, source[0] = ROOT, (ROOT / COPIES[page]).read_text("utf-8")

    def moved(link: re.Match[str]) -> str:
        text, target, anchor = link[1], (folder / link[2]).resolve(), link[3] or ""
        if text == link[2] and target.suffix == ".md":  # the name of a page's file: on the site its title says more
            text = target.read_text("utf-8").partition("\n")[0].removeprefix("# ")
        if target.is_dir():
            return text  # the site has no listing of folders
        if target in there:
            target = Path(app.srcdir) / there[target]
        return f"[{text}]({os.path.relpath(target, here)}{anchor})"

    source[0] = LINK.sub(moved, source[0])
    below = [Path(part).stem for part in markdown.parts(source[0])]
    if Path(page).name == "README":  # as `neurocoder report` wrote it: the pages beside it go below it
        texts = {path.stem: path.read_text("utf-8") for path in sorted(here.glob("*.md"))}
        parts = {Path(part).stem for text in texts.values() for part in markdown.parts(text)}
        below = [name for name in texts if name != "README" and name not in parts]
        below += sorted(f"{path.parent.name}/README" for path in here.glob("*/README.md"))
    if below:
        source[0] += "\n".join(["", ":::{toctree}", ":hidden:", "", *below, ":::", ""])


def add_explorer(app: Sphinx, failure: Exception | None) -> None:
    """Write the explorer's page, which the front page shows."""
    if failure is None and app.builder.format == "html":
        target = Path(app.outdir) / "explorer-page.html"
        with contextlib.redirect_stdout(io.StringIO()):
            if cli.main(["explore", "--export", str(target)]) != 0:
                raise ExtensionError("neurocoder explore --export failed")


def setup(app: Sphinx) -> dict[str, bool]:
    """Called by Sphinx."""
    app.add_html_math_renderer("latex2mathml", (visit_inline, None), (visit_block, None))
    app.connect("autodoc-process-docstring", read_docstring)
    app.connect("autodoc-skip-member", skip_member)
    app.connect("source-read", read_page)
    app.connect("build-finished", add_explorer)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
