"""The site: its pages and reference are complete, its examples run, and it is built without warnings."""

import doctest
import inspect
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import neurocoder as nc
from neurocoder import growing
from neurocoder.lab import continual, rl
from neurocoder.surgery import registry as kinds

ROOT = Path(__file__).parents[1]
API = sorted(ROOT.glob("docs/api/*.md"))
AUTO = re.compile(r"^\.\. auto(\w+):: (neurocoder[\w.]*)$", re.MULTILINE)
SETUP = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def public(module):
    """The full names that a module offers: its `__all__`, or what it defines; those of public modules too."""
    own = [name for name, value in vars(module).items() if getattr(value, "__module__", None) == module.__name__]
    for name in getattr(module, "__all__", [name for name in own if not name.startswith("_")]):
        if isinstance(value := getattr(module, name), ModuleType):
            yield from public(value)
        else:
            yield f"{module.__name__}.{name}"


def found(name):
    """The object with this full name."""
    parts = name.split(".")
    value = nc
    for part in parts[1:]:
        value = getattr(value, part)
    return value


def documented(page):
    """The full names on a page of the reference."""
    for kind, name in AUTO.findall(page.read_text()):
        yield from public(found(name)) if kind == "module" else [name]


DOCUMENTED = [name for page in API for name in documented(page)]


def test_the_reference_has_every_public_name_once():
    known = {*public(nc), *public(continual), *public(rl)}
    known |= {name for name in public(growing) if not hasattr(nc, name.rpartition(".")[2])}
    assert sorted(DOCUMENTED) == sorted(known)


@pytest.mark.parametrize("name", DOCUMENTED)
def test_public_names_have_an_example(name):
    value = found(name)
    if inspect.isclass(value) or inspect.isroutine(value):
        assert "\n    Example:\n        >>> " in (value.__doc__ or ""), f"{name} has no example in its docstring"


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in API if page.stem != "index"], ids=lambda page: page.stem)
def test_examples_of_the_reference_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(kinds, "_registry", dict(kinds._registry))
    if page.stem == "rl":
        pytest.importorskip("gymnasium")
    runner, told = doctest.DocTestRunner(verbose=False), []
    setup = "".join(SETUP.findall((ROOT / "docs/api/index.md").read_text() + page.read_text()))
    for name in documented(page):
        if not (inspect.isclass(found(name)) or inspect.isroutine(found(name))):
            continue
        names = {"__name__": "example"}
        exec(f"{setup}\ntorch.manual_seed(0)", names)
        example = doctest.DocTestParser().get_doctest(inspect.getdoc(found(name)), names, name, None, 0)
        assert example.examples, name
        runner.run(example, out=told.append)
    assert not told, "".join(told)


def test_the_navigation_has_every_page():
    listed = re.findall(r"^:::\{toctree\}\n(.*?)^:::", (ROOT / "docs/index.md").read_text(), re.MULTILINE | re.DOTALL)
    pages = {line for block in listed for line in block.splitlines() if line and not line.startswith(":")}
    assert {path.stem for path in ROOT.glob("docs/*.md")} - {"index"} == {page for page in pages if "/" not in page}


def build(target):
    """Build the site as `make docs` does."""
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "html", ROOT / "docs", target]
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
def test_the_site_is_complete_and_needs_no_network(tmp_path):
    for module in ("sphinx", "myst_parser", "furo", "latex2mathml"):
        pytest.importorskip(module, reason="the site needs pip install 'neurocoder[docs]'")
    build(tmp_path)
    require_pages(tmp_path)
    require_local_files(tmp_path)
    browse(tmp_path)


def require_pages(site):
    """Every page is there, with the explorer, the reference and formulas, and search knows their words."""
    for source in (ROOT / "docs").rglob("*.md"):
        if "_build" not in source.parts:
            assert (site / source.relative_to(ROOT / "docs").with_suffix(".html")).is_file(), source
    assert (site / "explorer-page.html").stat().st_size > 100_000
    assert "<math" in (site / "equations.html").read_text()
    reference = "".join(page.read_text() for page in (site / "api").glob("*.html"))
    missing = [name for name in DOCUMENTED if f'id="{name}"' not in reference]
    assert not missing
    assert "sharpness" in (site / "searchindex.js").read_text()


def require_local_files(site):
    """Pages and styles load only files of the site, and these exist."""
    loads = re.compile(r"""<(?:script|img|iframe|source|link)\b[^>]*?\b(?:src|href)=["']([^"'?#]+)""")
    for page in site.rglob("*.html"):
        for address in [] if page.name == "explorer-page.html" else loads.findall(page.read_text()):
            if not address.startswith("data:"):
                assert (page.parent / address).exists(), f"{page.name} loads {address}"
    for style in site.rglob("*.css"):
        assert not re.search(r"""(?:url\(\s*["']?|@import\s+["'])(?:https?:)?//""", style.read_text()), style


def browse(site):
    """In a browser: the explorer is there, search finds, pages fit a phone, and nothing is fetched from outside."""
    path = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if path is None:
        pytest.skip("the site was built; to try it in a browser: apt-get install chromium")
    api = pytest.importorskip("playwright.sync_api", reason="to try the site in a browser: pip install playwright")
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        page, faults = browser.new_page(viewport={"width": 1280, "height": 900}), []
        page.on("console", lambda message: faults.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on("request", lambda request: faults.append(request.url) if request.url.startswith("http") else None)
        page.goto((site / "index.html").as_uri())
        page.frame_locator("iframe.explorer").locator("#pad").wait_for()
        page.fill("input[name=q]", "sharpness")
        page.press("input[name=q]", "Enter")
        page.locator("#search-results li a", has_text="ProgramConfig.sharpness").wait_for()
        page.set_viewport_size({"width": 390, "height": 844})
        for name in ("index", "equations", "BENCHMARKS", "results/split-mnist-task", "api/layers"):
            page.goto((site / f"{name}.html").as_uri())
            assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), name
        browser.close()
    assert not faults
