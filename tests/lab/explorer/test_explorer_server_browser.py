"""The server's page in a real browser, wide and narrow, light and dark."""

import pytest
import torch
from explorer_helpers import WIDTHS, launched
from server_helpers import GROUPS, build, serving, study

import neurocoder as nc
from neurocoder.lab.explorer.server_model import gathered
from neurocoder.lab.explorer.server_runs import Runs
from neurocoder.lab.explorer.server_study import Study

NAMELESS = """
() => [...document.querySelectorAll("button, input, select, canvas[role=img], svg[role=img]")].filter((one) => {
  const name = one.getAttribute("aria-label") || one.textContent.trim()
    || [...(one.labels || [])].map((label) => label.textContent).join("");
  return !name && !one.closest("button");
}).map((one) => one.outerHTML)
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


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_layers_groups_inputs_growth_and_drift(browser, server, width, scheme):
    page, faults, requests = opened(browser, server, width, scheme)
    assert page.inner_text("h1") == "The programs of own:build"
    assert page.locator(".layer b").all_inner_texts() == ["1", "3"]
    assert "2 coded layers" in page.inner_text("#facts")
    assert page.locator("#usage tbody tr").count() == GROUPS
    assert page.locator("#clusters .group").count() == GROUPS
    assert not page.locator("#growth").is_visible()

    page.locator(".group .thumb").nth(1).click()
    index = page.locator("#first").input_value()
    page.wait_for_function("(index) => document.querySelector('.what b').textContent === `Input ${index}`", arg=index)
    heat = "() => [...document.querySelectorAll('#input .heat td')].map((cell) => cell.ariaLabel).join()"
    alone = page.evaluate(heat)
    other = (int(index) + 1) % 30
    page.fill("#second", str(other))
    page.press("#second", "Enter")
    page.fill("#way", "100")
    page.wait_for_function(f"(alone) => ({heat})() !== alone", arg=alone)
    assert f"mixed with {other}" in page.inner_text(".what b")
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
