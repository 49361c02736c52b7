"""A real browser for the explorer's page."""

import contextlib
import shutil

import pytest

WIDTHS = {1280: 900, 390: 844}
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
MISSING = "needs a browser: apt-get install chromium (or Google Chrome), and pip install playwright"


@contextlib.contextmanager
def launched():
    """Headless Chromium; tests that need it are skipped where it is missing."""
    playwright = pytest.importorskip("playwright.sync_api", reason=MISSING)
    if CHROMIUM is None:
        pytest.skip(MISSING)
    with playwright.sync_playwright() as tools:
        browser = tools.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()


@contextlib.contextmanager
def opened(browser, file, width=1280, **options):
    """The page in a window; afterwards, nothing was logged as an error and no request left the page."""
    context = browser.new_context(
        viewport={"width": width, "height": WIDTHS[width]}, reduced_motion="reduce", **options
    )
    page, faults, requests = context.new_page(), [], []
    page.on("console", lambda message: faults.append(message.text) if message.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.on("request", lambda request: requests.append(request.url))
    page.goto(file.as_uri())
    page.wait_for_selector("html[data-ready=yes]")
    yield page
    context.close()
    assert faults == []
    assert [url for url in requests if not url.startswith("data:")] == [file.as_uri()]


def draw(page, *strokes, steps=1):
    """Strokes in the unit square, by mouse, with so many events from point to point."""
    pad = page.locator("#pad")
    pad.scroll_into_view_if_needed()
    box = pad.bounding_box()
    for stroke in strokes:
        first, *rest = [(box["x"] + x * box["width"], box["y"] + y * box["height"]) for x, y in stroke]
        page.mouse.move(*first)
        page.mouse.down()
        for point in rest:
            page.mouse.move(*point, steps=steps)
        page.mouse.up()
    page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
