"""The documentation runs: every snippet, every printed result, every name and link."""

import contextlib
import inspect
import io
import re
from pathlib import Path

import pytest
import torch

import neurocoder as nc
from neurocoder.program import start as initialisation
from neurocoder.surgery import registry as kinds

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted(ROOT.glob("docs/*.md"))]
PROSE = [*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def snippets(text):
    """The python blocks of a page: first line, code, and the text block that follows directly, or None."""
    blocks = list(FENCE.finditer(text))
    for block, after in zip(blocks, [*blocks[1:], None], strict=True):
        if block[1] == "python":
            printed = after is not None and after[1] == "text" and not text[block.end() : after.start()].strip()
            yield text.count("\n", 0, block.start(2)), block[2], after[2] if printed else None


def title(page):
    return str(page.relative_to(ROOT))


@pytest.fixture
def own_registry():
    """Kinds that a page registers end with the page."""
    before = dict(kinds._registry)
    yield
    kinds._registry.clear()
    kinds._registry.update(before)
    torch.compiler.reset()


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in PAGES if "```python" in page.read_text()], ids=title)
def test_snippets_run_and_print_what_the_page_says(page, tmp_path, monkeypatch, own_registry):
    monkeypatch.chdir(tmp_path)
    namespace = {"__name__": "page"}
    for line, code, expected in snippets(page.read_text()):
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(compile("\n" * line + code, str(page), "exec"), namespace)
        if expected is not None:
            assert printed.getvalue() == expected, f"{title(page)}, line {line}"


def test_snippets_are_found_with_their_lines_and_results():
    text = "a\n```python\nx\n```\n\n```text\n1\n```\n```python\ny\n```\nb\n```text\n2\n```\n"
    assert list(snippets(text)) == [(2, "x\n", "1\n"), (9, "y\n", None)]


@pytest.mark.parametrize("name", ["README.md", "docs/quickstart.md"])
def test_pages_for_users_have_snippets(name):
    assert any(snippets((ROOT / name).read_text()))


@pytest.mark.parametrize("page", PROSE, ids=title)
def test_fences_are_closed(page):
    assert len(re.findall(r"^```", page.read_text(), re.MULTILINE)) == 2 * len(FENCE.findall(page.read_text()))


@pytest.mark.parametrize("page", PROSE, ids=title)
def test_links_lead_somewhere(page):
    text = FENCE.sub("", page.read_text())
    for target, anchor in re.findall(r"\]\((?!\w+:)([^)#\s]*)(?:#([^)\s]*))?\)", text):
        file = page.parent / target if target else page
        assert file.exists(), f"{title(page)} links to {target}"
        if anchor:
            assert anchor in anchors(file), f"{title(page)} links to {target}#{anchor}"


def anchors(page):
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", FENCE.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("name", nc.__all__)
def test_public_functions_and_classes_have_a_docstring(name):
    value = getattr(nc, name)
    if inspect.isfunction(value) or inspect.isclass(value):
        own = value.__doc__ if inspect.isfunction(value) else value.__dict__.get("__doc__")
        # A dataclass without a docstring gets its signature for one.
        assert own, f"{name} has no docstring"
        assert not own.startswith(f"{name}("), f"{name} has only its signature for a docstring"


def public_functions(module):
    return [name for name, value in vars(module).items() if inspect.isfunction(value) and not name.startswith("_")]


EQUATIONS = (ROOT / "docs/equations.md").read_text()


@pytest.mark.parametrize("module", [nc.functional, nc.reference, initialisation], ids=lambda module: module.__name__)
def test_functions_named_beside_the_equations_exist(module):
    short = module.__name__.rpartition(".")[2]
    named = set(re.findall(rf"`{short}\.(\w+)`", EQUATIONS))
    assert named
    assert named <= set(public_functions(module))


@pytest.mark.parametrize("name", public_functions(nc.functional))
def test_every_equation_in_code_is_beside_the_equations(name):
    assert f"`functional.{name}`" in EQUATIONS


def test_methods_named_beside_the_equations_exist():
    named = set(re.findall(r"`([A-Z]\w+)\.(\w+)`", EQUATIONS))
    assert named
    for owner, method in named:
        assert callable(getattr(getattr(nc, owner), method))
