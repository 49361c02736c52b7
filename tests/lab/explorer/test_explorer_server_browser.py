"""The server's page in a real browser, wide and narrow, light and dark."""

import pytest
import torch
from explorer_helpers import WIDTHS, launched
from server_helpers import GROUPS, build, serving, study

import neurocoder as nc
from neurocoder.lab.explorer.server.inputs import gathered
from neurocoder.lab.explorer.server.runs import Runs
from neurocoder.lab.explorer.server.study import Study
from neurocoder.surgery import registry
from test_new_kind import GatedConfig, GatedLinear

NAMELESS = """
() => [...document.querySelectorAll("button, input, select, canvas[role], svg[role=img]")].filter((one) => {
  const name = one.getAttribute("aria-label") || one.textContent.trim()
    || [...(one.labels || [])].map((label) => label.textContent).join("");
  return !name && !one.closest("button");
}).map((one) => one.outerHTML)
"""

SMALL = """
() => [...document.querySelectorAll("button, input[type=number], input[type=range], select, .choice label")]
  .filter((one) => one.checkVisibility() && one.getBoundingClientRect().height < 24).map((one) => one.outerHTML)
"""


@pytest.fixture(scope="module")
def browser():
    with launched() as found:
        yield found


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    for step in range(2):
        nc.save(build(), folder / f"step-{step}")
    found = study()
    with serving(found, Runs(folder, found)) as running:
        yield running


def opened(browser, server, width, scheme="light"):
    """The page in a window, what was logged as a fault, and the addresses that were asked for."""
    size = {"width": width, "height": WIDTHS[width]}
    page = browser.new_context(viewport=size, color_scheme=scheme, reduced_motion="reduce").new_page()
    faults, requests = [], []
    page.on("console", lambda message: faults.append(message.text) if message.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.on("request", lambda request: requests.append(request.url))
    page.goto(server.address)
    page.wait_for_selector("html[data-ready]")
    assert page.evaluate("() => document.documentElement.dataset.ready") == "yes"
    return page, faults, requests


def spoken(page, text):
    """Waits until a screen reader was told this."""
    page.wait_for_function("(text) => document.querySelector('#spoken').textContent.includes(text)", arg=text)


def focused(page):
    return page.evaluate("() => document.activeElement.textContent || document.activeElement.tagName")


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_layers_groups_inputs_growth_and_drift(browser, server, width, scheme):
    page, faults, requests = opened(browser, server, width, scheme)
    assert page.inner_text("h1") == "The programs of own:build"
    assert page.locator(".layer b").all_inner_texts() == ["1", "3"]
    assert "2 coded layers" in page.inner_text("#facts")
    assert page.locator("#usage tbody tr").count() == GROUPS
    assert page.locator("#clusters .group").count() == GROUPS
    assert page.locator("#clusters .slot-bars rect[height='10']").count() == GROUPS, "a full bar in each group"
    assert not page.locator("#growth").is_visible()

    page.locator(".group .thumb").nth(1).click()
    index = page.locator("#first").input_value()
    page.wait_for_function("(index) => document.querySelector('.what h3').textContent === `Input ${index}`", arg=index)
    heat = "() => [...document.querySelectorAll('#input .heat td')].map((cell) => cell.ariaLabel).join()"
    alone = page.evaluate(heat)
    other = (int(index) + 1) % 30
    page.fill("#second", str(other))
    page.press("#second", "Enter")
    page.fill("#way", "100")
    page.wait_for_function(f"(alone) => ({heat})() !== alone", arg=alone)
    assert f"mixed with {other}" in page.inner_text(".what h3")
    page.locator("#usage label", has_text="V").first.click()
    assert "adds to its output" in page.inner_text("#usage")

    page.locator(".layer").nth(1).click()
    page.wait_for_selector("#growth:not([hidden]) .slots-table")
    assert page.locator(".slots-table tbody th").all_inner_texts() == ["1", "2"]
    assert "2 of 4 slots are written (50%)" in page.inner_text("#growth")
    page.locator("#growth label", has_text="newest").click()
    assert page.locator(".slots-table tbody th").all_inner_texts() == ["2", "1"]
    assert page.locator("#drift h3").all_inner_texts() == ["1", "3"]
    assert "step-0 and step-1: 0%" in page.inner_text("#drift")

    assert page.evaluate("() => document.documentElement.scrollWidth") == width, "nothing is wider than the screen"
    assert page.evaluate(NAMELESS) == []
    assert page.evaluate(SMALL) == []
    assert faults == []
    assert all(url.startswith((server.address, "data:")) for url in requests)
    page.context.close()


def test_layers_without_programs_and_inputs_without_images_or_labels(browser):
    model = torch.nn.Sequential(torch.nn.Linear(6, 60), torch.nn.Linear(60, 2), nc.GrowingLinear(2, 2))
    nc.recode(model, "0", nc.ProgramConfig(slots=50, steps=1, heads=1, least_used=1, hidden=4))
    nc.recode(model, "1", nc.HyperConfig(hidden=4))
    with serving(Study(model, gathered(torch.randn(20, 6), 20))) as server:
        page, faults, _ = opened(browser, server, 390)
        assert "All inputs have the same program" in page.inner_text("#clusters")
        assert page.locator(".group .index").count() == 12
        assert page.locator("#input canvas").count() == 3, "many slots are drawn as images"
        page.locator(".layer").nth(1).click()
        page.wait_for_selector("#problem:not([hidden])")
        assert page.inner_text("#problem") == "1: this kind of layer keeps no programs to look at."
        assert not page.locator("#usage").is_visible()
        page.locator(".layer").nth(2).click()
        page.wait_for_selector("#growth:not([hidden])")
        assert "No slot is written yet" in page.inner_text("#usage")
        assert page.evaluate("() => document.documentElement.scrollWidth") == 390
        assert faults == []
        page.context.close()


def test_the_keyboard_stays_at_the_result_and_a_screen_reader_hears_it(browser, server):
    page, faults, _ = opened(browser, server, 1280)
    spoken(page, "Layer 1. Input 0. Label 0. Nearest group: ")
    for where in (".one-input .thumb", ".group .thumb >> nth=3", ".one-input .thumb"):
        button = page.locator(where).first
        index = button.get_attribute("title").removeprefix("input ").split(",")[0]
        button.focus()
        page.keyboard.press("Enter")
        spoken(page, f"Input {index}. Label {int(index) % GROUPS}. Nearest group: ")
        assert focused(page) == f"Input {index}"
    assert "The model says " in page.inner_text("#spoken")
    page.fill("#second", "7")
    page.press("#second", "Enter")
    spoken(page, f"Input {index}, mixed with 7 by 0%.")
    assert page.evaluate("() => document.activeElement.id") == "second"
    page.locator(".layer").nth(1).click()
    spoken(page, f"Layer 3. Input {index}, mixed with 7")
    assert faults == []
    page.context.close()


def test_numbers_that_name_no_input_are_told(browser, server):
    page, faults, _ = opened(browser, server, 390)
    for name, number in (("first", "9999"), ("first", "2.5"), ("first", ""), ("second", "30"), ("second", "-1")):
        box, problem = page.locator(f"#{name}"), page.locator(f"#{name}-problem")
        box.fill(number)
        box.press("Enter")
        spoken(page, "must be a whole number from 0 to 29")
        assert box.get_attribute("aria-invalid") == "true"
        assert box.get_attribute("aria-describedby") == f"{name}-problem"
        assert "a whole number from 0 to 29" in problem.inner_text()
        assert "Input 0 is still shown" in problem.inner_text()
        assert page.inner_text(".what h3") == "Input 0"
        box.fill("0" if name == "first" else "")
        assert (box.get_attribute("aria-invalid"), problem.inner_text()) == ("false", "")
        box.press("Enter")
        spoken(page, "Input 0. Label 0.")
    page.fill("#first", "30")
    page.press("#first", "Enter")
    page.locator(".one-input .thumb").first.click()
    page.wait_for_selector("#first[aria-invalid=false]")
    assert faults == []
    page.context.close()


def test_values_of_many_slots_are_read_with_arrow_keys(browser):
    model = torch.nn.Sequential(torch.nn.Linear(6, 600))
    nc.recode(model, "0", nc.ProgramConfig(slots=500, steps=2, heads=2, least_used=1, hidden=4))
    with serving(Study(model, gathered(torch.randn(20, 6), 20))) as server:
        page, faults, _ = opened(browser, server, 390)
        assert "Full colour: 0.0" in page.inner_text("#input")
        assert "colour: 0.00." not in page.inner_text("#input")
        canvas = page.locator("#input .wide-heat canvas").first
        assert "4 rows, 500 slots. Arrow keys read the values." in canvas.get_attribute("aria-label")
        assert page.locator(".cell-cursor:visible").count() == 0
        page.locator("#way").focus()
        page.keyboard.press("Tab")
        shown = page.locator("#input .value-at").first
        values = {}
        for keys, cell in (
            ((), "step·head 1·1, slot 1: "),
            (("ArrowRight", "ArrowRight", "ArrowLeft"), "step·head 1·1, slot 2: "),
            (("ArrowUp", "ArrowDown", "ArrowDown"), "step·head 2·1, slot 2: "),
            (("PageDown",), "step·head 2·1, slot 52: "),
            (("End", "ArrowRight"), "step·head 2·1, slot 500: "),
        ):
            for key in keys:
                page.keyboard.press(key)
            spoken(page, cell)
            assert shown.inner_text() == page.inner_text("#spoken")
            values[cell] = float(shown.inner_text().removeprefix(cell))
        assert all(0 < value < 1 for value in values.values())
        assert page.locator(".cell-cursor:visible").count() == 1
        page.keyboard.press("Tab")
        assert shown.inner_text().strip() == "", "nothing is shown once the keyboard is elsewhere"
        assert page.evaluate("() => document.documentElement.scrollWidth") == 390
        assert faults == []
        page.context.close()


def test_a_kind_of_ones_own_is_shown_by_what_it_says_of_itself(browser, monkeypatch):
    monkeypatch.setattr(registry, "_registry", dict(registry._registry))
    nc.register(torch.nn.Linear, GatedLinear)
    model = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Linear(5, 3))
    nc.recode(model, "0", GatedConfig(slots=4, residual=False))
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter)
    x = torch.randn(20, 6)
    decides = ", ".join(f"{round(value, 5):.3g}" for value in model[0].programs(x[:1]).matrix.flatten().tolist())
    with serving(Study(model, gathered((x, torch.arange(20) % 2), 20))) as server:
        page, faults, _ = opened(browser, server, 390)
        assert page.locator(".layer .note").all_inner_texts()[1] == "slots=4 residual=false"
        assert "4 rows carry 80% of what is read" in page.inner_text("#usage-about")
        assert page.locator("#usage .choice span").all_inner_texts() == ["U", "V"]
        assert "rows of U it reads" in page.inner_text("#clusters")
        captions = page.locator("#input caption").all_inner_texts()
        assert captions == ["How much each row of U is read", "How much each row of V is read"]
        assert page.locator("#input .heat >> nth=0").locator("tbody th").all_inner_texts() == ["1", "2", "3", "4"]
        assert page.locator("#input .sigma-bars").count() == 0
        assert f"What decides the program: {decides}." in page.inner_text("#input")
        assert not any(word in page.inner_text("main") for word in ("undefined", "NaN", "null"))
        assert page.evaluate("() => document.documentElement.scrollWidth") == 390
        assert faults == []
        page.context.close()


class Tokens(torch.nn.Module):
    """Reads token ids; its first coded layer is never called."""

    def __init__(self):
        super().__init__()
        self.idle = nc.Linear(4, 2)
        self.embedding = torch.nn.Embedding(9, 4)
        self.head = nc.Linear(4, 2)

    def forward(self, ids):
        return self.head(self.embedding(ids).mean(1))


def test_a_layer_that_is_never_called_inputs_without_a_mixture_and_a_server_that_stopped(browser):
    with serving(Study(Tokens(), gathered(torch.randint(9, (12, 5)), 12))) as server:
        page, faults, _ = opened(browser, server, 390)
        assert page.locator(".layer[aria-pressed=true] b").inner_text() == "head"
        assert faults == [], "nothing is asked about the layer that was never called"
        page.fill("#second", "3")
        page.press("#second", "Enter")
        spoken(page, "There is no way between these inputs: they must be numbers of the same shape. Input 0.")
        assert not page.locator("#second, #way, #mixing-about").locator("visible=true").count()
        assert page.evaluate("() => document.activeElement.id") == "first"
        assert page.inner_text(".what h3") == "Input 0"
        page.fill("#first", "4")
        page.press("#first", "Enter")
        spoken(page, "Input 4.")
        assert "no way between" not in page.inner_text("#input")
    page.locator(".one-input .thumb").first.focus()
    page.keyboard.press("Enter")
    stopped = "The server has stopped: start `neurocoder explore` again."
    spoken(page, stopped)
    assert focused(page) == page.inner_text(".one-input") == stopped
    page.locator(".layer").first.click()
    page.wait_for_selector("#problem:not([hidden])")
    assert page.inner_text("#problem") == stopped
    page.context.close()


def test_a_name_that_looks_like_code_stays_text(browser):
    model = torch.nn.ModuleDict({"<img src=x onerror=alert(1)>": nc.Linear(4, 2)})
    model.forward = lambda x: next(iter(model.values()))(x)
    with serving(Study(model, gathered(torch.randn(5, 4), 5), "<b>:x")) as server:
        page, faults, _ = opened(browser, server, 390)
        assert page.inner_text("h1") == "The programs of <b>:x"
        assert page.inner_text(".layer b") == "<img src=x onerror=alert(1)>"
        assert page.locator("img").count() == 0
        assert faults == []
        page.context.close()
