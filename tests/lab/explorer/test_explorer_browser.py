"""The explorer's page in a real browser: a newcomer draws, reads, switches, takes the tour."""

import math
from pathlib import Path

import pytest
from explorer_helpers import WIDTHS, draw, launched, opened

from neurocoder.lab.explorer.page import build as export
from neurocoder.lab.explorer.page import demo_model as model

SEVEN = [(0.25, 0.22), (0.75, 0.22), (0.45, 0.85)]
ZERO = [(0.5 + 0.24 * math.sin(a / 4), 0.5 - 0.33 * math.cos(a / 4)) for a in range(26)]
NAMELESS = """
() => [...document.querySelectorAll("button, input, canvas[role=img], svg[role=img], [role=dialog]")].filter((one) => {
  const labelled = one.getAttribute("aria-labelledby");
  const name = one.getAttribute("aria-label") || (labelled && document.getElementById(labelled)?.textContent)
    || one.textContent.trim() || [...(one.labels || [])].map((label) => label.textContent).join("");
  return !name && !one.closest("button");
}).map((one) => one.outerHTML)
"""


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    target = tmp_path_factory.mktemp("page") / "page.html"
    export.write(model.load(), target)
    return target


@pytest.fixture(scope="module")
def browser():
    with launched() as found:
        yield found


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_draw_read_switch_a_slot_off_and_take_the_tour(browser, file, width, scheme):
    with opened(browser, file, width, color_scheme=scheme) as page:
        page.click("#clear")
        assert page.inner_text("#class") == "?"
        draw(page, ZERO)
        assert page.inner_text("#class") == "0"
        page.click("#clear")
        draw(page, SEVEN, steps=6)
        assert page.inner_text("#class") == "7"
        assert page.inner_text("#why-title") == "Why did it say 7?"
        assert "Next: " in page.inner_text("#said")

        slot = page.evaluate(
            """() => {
                const { without, order, y } = NC.app.result;
                const [first] = order, drops = without.map((slots) => slots.map((one) => one.p[first]));
                const low = drops.map((kind) => Math.min(...kind)), kind = low.indexOf(Math.min(...low));
                return "UVS"[kind] + (drops[kind].indexOf(low[kind]) + 1);
            }"""
        )
        before = page.evaluate("() => Array.from(NC.app.result.p)")
        page.locator(f"#slot-{slot} label", has_text="off").click()
        after = page.evaluate("() => Array.from(NC.app.result.p)")
        assert max(abs(a - b) for a, b in zip(before, after, strict=True)) > 1e-3
        assert "1 slot changed" in page.inner_text("#said")
        assert page.inner_text(f"#slot-{slot} .effect") == "switched off"
        page.click("#reset")
        assert page.evaluate("() => Array.from(NC.app.result.p)") == before

        page.click("#tour-open")
        tour, titles = page.locator("#tour"), []
        while tour.is_visible():
            titles.append(page.inner_text("#tour-title"))
            lit = page.locator(".lit").bounding_box()
            assert lit["y"] < WIDTHS[width], "the part that the card speaks of is on the screen"
            page.click("#tour-next")
        assert "What is a slot?" in titles
        assert len(titles) == len(set(titles)) > 8
        page.click("#tour-open")
        page.keyboard.press("Escape")
        assert not tour.is_visible()
        assert page.evaluate("() => document.activeElement.id") == "tour-open"

        assert page.evaluate("() => document.documentElement.scrollWidth") == width, "nothing is wider than the screen"
        assert page.evaluate(NAMELESS) == []


def test_the_keyboard_draws_picks_and_switches(browser, file):
    with opened(browser, file) as page:
        page.click("#clear")
        page.focus("#pad")
        page.keyboard.press(" ")
        for _ in range(14):
            page.keyboard.press("ArrowDown")
        page.keyboard.press(" ")
        page.keyboard.press("ArrowLeft")
        assert page.inner_text("#class") == "1"
        page.wait_for_function("() => document.getElementById('spoken').textContent.startsWith('It says 1.')")
        page.focus("input[name=slot-U1]:checked")
        page.keyboard.press("ArrowLeft")
        assert page.evaluate("() => [NC.app.factors[0][0], NC.app.changes()]") == [0, 1]
        page.focus("input[name=pick][value='7']")
        page.keyboard.press("ArrowRight")
        page.locator("#picker-root .thumb").first.focus()
        page.keyboard.press("Enter")
        assert page.evaluate("() => NC.app.result.digit.label") == 8


GESTURE = """
([points, pointerType, others]) => {
  const pad = document.getElementById("pad"), box = pad.getBoundingClientRect();
  pad.setPointerCapture = () => {};  // there is no such pointer
  const send = (name, [x, y], pointerId) => pad.dispatchEvent(new PointerEvent(name, {
    pointerId, pointerType, bubbles: true, cancelable: true,
    clientX: box.left + x * box.width, clientY: box.top + y * box.height }));
  send("pointerdown", points[0], 5);
  if (others) send("pointerdown", [0.1, 0.9], 6);
  for (const point of points) {
    send("pointermove", point, 5);
    if (others) send("pointermove", [0.1, 0.9], 6);
  }
  if (others) send("pointerup", [0.1, 0.9], 6);
  send("pointerup", points.at(-1), 5);
  return new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))
    .then(() => Array.from(NC.app.result.pixels));
}
"""


@pytest.mark.parametrize("kind", ["touch", "pen"])
def test_touch_and_pen_draw_with_one_pointer_at_a_time(browser, file, kind):
    with opened(browser, file, 390, has_touch=True) as page:
        page.click("#clear")
        alone = page.evaluate(GESTURE, [ZERO, kind, False])
        assert page.inner_text("#class") == "0"
        page.click("#clear")
        assert page.evaluate(GESTURE, [ZERO, kind, True]) == alone
        assert page.evaluate("() => getComputedStyle(document.getElementById('pad')).touchAction") == "none"


def test_parts_can_be_chosen_and_drawings_compared(browser, file):
    with opened(browser, file) as page:
        for name in ("content c", "least-used l", "gate g", "attention w"):
            page.locator("#attention label", has_text=name).click()
        page.get_by_role("button", name="step 2, head 1: show the parts").nth(2).click()
        assert page.inner_text(".parts caption") == "How step 2, head 1 weighs the slots of S"
        gaps = page.evaluate(
            """() => {
                const cells = [...document.querySelectorAll(".parts tbody tr")].slice(1).map((row) => (
                    [...row.querySelectorAll("td")].map((cell) => Number(cell.textContent))));
                const [c, g, l, w] = cells;
                return w.map((_, i) => Math.abs(g[i] * c[i] + (1 - g[i]) * l[i] - w[i]));
            }"""
        )
        assert max(gaps) < 0.02, "w = g c + (1 - g) l, as printed"

        page.locator("#similar .thumb").first.click()
        page.click("#keep-A")
        page.locator("#picker-root label", has_text="0").click()
        page.locator("#picker-root .thumb").first.click()
        page.click("#keep-B")
        assert "then 0." in page.inner_text("#between-told")
        page.fill("#way", "100")
        assert page.locator(".between figcaption").nth(1).inner_text().startswith("says 0")


SITE = """<!doctype html><body data-theme="auto"><script src="site.js"></script>
<iframe class="explorer" src="page.html"></iframe><a href="page.html">alone</a>"""
COLOUR = "() => [getComputedStyle(document.body).backgroundColor, getComputedStyle(document.body).colorScheme]"
LIGHT, DARK = ["rgb(246, 246, 243)", "light"], ["rgb(16, 19, 23)", "dark"]


@pytest.mark.parametrize("system", ["light", "dark"])
def test_the_theme_of_the_site_is_that_of_the_explorer(browser, file, tmp_path, system):
    (tmp_path / "page.html").symlink_to(file)
    (tmp_path / "site.js").write_text((Path(__file__).parents[3] / "docs/_static/site.js").read_text())
    (tmp_path / "index.html").write_text(SITE)
    page = browser.new_context(color_scheme=system).new_page()
    page.goto((tmp_path / "index.html").as_uri())
    page.frame_locator("iframe").locator("html[data-ready=yes]").wait_for()
    expected = {"auto": LIGHT if system == "light" else DARK, "light": LIGHT, "dark": DARK}
    for theme in ("light", "dark", "auto", "dark"):
        page.evaluate("(theme) => { document.body.dataset.theme = theme; }", theme)
        frame = page.frames[1]
        frame.wait_for_function(f"(expected) => String(({COLOUR})()) === String(expected)", arg=expected[theme])
        pixel = "() => [...document.querySelector('#bar-image').getContext('2d').getImageData(0, 0, 1, 1).data]"
        assert frame.evaluate(pixel)[0] == (250 if expected[theme] == LIGHT else 24), "what is painted too"
    page.click("a")
    page.wait_for_selector("html[data-ready=yes]")
    assert page.evaluate(COLOUR) == DARK, "on a page of its own too"
    page.context.close()


@pytest.mark.long  # a busy machine may be slower
def test_a_drawing_is_answered_within_16_ms(browser, file):
    with opened(browser, file) as page:
        medians = []
        while not medians or (min(medians) >= 16 and len(medians) < 5):  # others may use the machine too
            times = page.evaluate(
                """() => NC.app.digits.slice(0, 60).map((digit) => {
                    const start = performance.now();
                    NC.app.pick(digit);
                    document.body.offsetHeight;  // layout too
                    return performance.now() - start;
                })"""
            )
            medians.append(sorted(times)[len(times) // 2])
        assert min(medians) < 16, medians


def test_drawings_are_made_like_the_digits_of_mnist(browser, file):
    with opened(browser, file) as page:
        for strokes in ([SEVEN], [[(0.1, 0.1), (0.3, 0.1), (0.18, 0.35)]], [[(0.5, 0.5)]]):
            size, x, y = page.evaluate(
                """(strokes) => {
                    const pixels = NC.image.fromStrokes(strokes), mass = pixels.reduce((a, b) => a + b);
                    const mean = (of) => pixels.reduce((sum, ink, at) => sum + ink * of(at), 0) / mass;
                    return [pixels.length, mean((at) => (at % 28) + 0.5), mean((at) => Math.floor(at / 28) + 0.5)];
                }""",
                strokes,
            )
            assert size == 784
            assert (x, y) == (pytest.approx(14, abs=0.5), pytest.approx(14, abs=0.5))
