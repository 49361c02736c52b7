"""The steered picture on the explorer's page: its model, its equations in JavaScript, and dragging in a browser."""

import pytest
import torch
from explorer_helpers import launched, opened

from neurocoder.lab.data import mnist
from neurocoder.lab.explorer import train_picture
from neurocoder.lab.explorer.page import build as export
from neurocoder.lab.explorer.page import demo_model, picture

TIMES = """() => Array.from({ length: 60 }, (_, n) => {
    const pad = document.getElementById("latent"), box = pad.getBoundingClientRect(), start = performance.now();
    const x = 0.5 + 0.4 * Math.sin(n / 9), y = n / 60;
    const at = { clientX: box.left + x * box.width, clientY: box.top + y * box.height };
    pad.setPointerCapture = () => {};
    for (const name of n ? ["pointermove"] : ["pointerdown", "pointermove"])
        pad.dispatchEvent(new PointerEvent(name, { pointerId: 5, bubbles: true, ...at }));
    document.body.offsetHeight;  // layout too
    return performance.now() - start;
})"""
STATE = "() => { const { place, blend, side } = NC.app.picture.state(); return [place, Array.from(blend), side]; }"
INK = "() => document.querySelector('.drawn canvas').toDataURL()"


@pytest.fixture(scope="module")
def packaged():
    return picture.load()


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    target = tmp_path_factory.mktemp("page") / "page.html"
    export.write(demo_model.load(), target)
    return target


@pytest.fixture(scope="module")
def browser():
    with launched() as found:
        yield found


@torch.no_grad()
def test_the_packaged_network_draws_its_digits(packaged):
    digits = mnist.load(True)
    places = torch.cat([(digits.labels == digit).nonzero()[: packaged.facts["each"], 0] for digit in range(10)])
    assert torch.equal(packaged.images, digits.images[places])
    assert torch.equal(packaged.labels.long(), digits.labels[places])
    assert packaged.latents.abs().max() <= 1
    drawn = picture.drawn(packaged.steered, packaged.latents)
    psnr = -10 * (drawn - packaged.images.flatten(1) / 255).square().mean().log10()
    assert packaged.facts["psnr"] == pytest.approx(psnr.item(), abs=0.06)
    assert psnr > 24


def test_training_again_writes_a_network_that_loads(tmp_path, packaged):
    options = train_picture.Options(steps=30, target=tmp_path / "picture.safetensors")
    trained = train_picture.train(options, packaged.images[::4], packaged.labels[::4])
    picture.write(trained, options.target)
    found = picture.load(options.target)
    assert found.facts == trained.facts
    assert torch.equal(found.labels, packaged.labels[::4])
    torch.testing.assert_close(
        picture.drawn(found.steered, found.latents), picture.drawn(trained.steered, trained.latents)
    )
    with pytest.raises(ValueError, match="is no steered picture"):
        picture.load(demo_model.FILE)


@torch.no_grad()
def test_javascript_draws_what_python_does(browser, file, packaged):
    places = torch.cat([torch.rand(12, 2) * 2 - 1, packaged.latents[::10]]).double()
    double = picture.load().steered.double()
    with opened(browser, file) as page:
        found = page.evaluate(
            """(places) => places.map((place) => {
                const { blend, draw } = NC.app.picture, h = blend(place), part = h.map((v, k) => k % 3 ? v : 0);
                return [[...h], [...draw(h, 28)], [...draw(part, 9)]];
            })""",
            places.tolist(),
        )
    blends, drawn, part = (torch.tensor(rows, dtype=torch.float64) for rows in zip(*found, strict=True))
    assert (blends - double.controller(places)).abs().max() < 1e-5
    assert (drawn / 255 - picture.drawn(double, places)).abs().max() < 1e-5
    float32 = picture.drawn(packaged.steered, places.float())
    torch.testing.assert_close(drawn.float() / 255, float32, rtol=0, atol=1e-4)  # float32's own rounding
    kept = torch.tensor([0.0, 1, 1, 0, 1, 1, 0, 1], dtype=torch.float64)
    double.controller[2].weight.mul_(kept.unsqueeze(1))
    double.controller[2].bias.mul_(kept)
    assert (part / 255 - picture.drawn(double, places, 9)).abs().max() < 1e-5


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_a_drag_draws_another_picture(browser, file, width, scheme):
    with opened(browser, file, width, color_scheme=scheme, has_touch=width < 400) as page:
        assert not page.is_visible("#latent")
        page.locator("#tabs label", has_text="Steer a picture").click()
        assert not page.is_visible("#pad")
        assert page.evaluate("() => document.documentElement.scrollWidth") == width, "nothing is wider than the screen"
        page.locator("#latent").scroll_into_view_if_needed()
        box = page.locator("#latent").bounding_box()
        at = [(box["x"] + share * box["width"], box["y"] + 0.5 * box["height"]) for share in (0.2, 0.5, 0.8)]
        page.mouse.move(*at[0])
        page.mouse.down()
        seen = []
        for point in at:
            page.mouse.move(*point)
            seen.append((page.evaluate(INK), *page.evaluate(STATE)))
        page.mouse.up()
        assert len({ink for ink, *_ in seen}) == 3
        assert [place[0] for _, place, *_ in seen] == pytest.approx([-0.65, 0, 0.65], abs=0.02)
        assert {side for *_, side in seen} == {28}
        page.wait_for_function("() => NC.app.picture.state().side === 112")
        ring = page.locator(".ring").bounding_box()
        assert ring["x"] + ring["width"] / 2 == pytest.approx(at[2][0], abs=1.5)
        page.locator("#latent").focus()
        page.keyboard.press("ArrowUp")
        assert page.evaluate(STATE)[0][1] == pytest.approx(seen[2][1][1] - 0.04)
        page.locator(".blend input").nth(2).uncheck()
        assert page.evaluate(STATE)[1][2] == 0
        page.locator("#tabs label", has_text="Read a digit").click()
        assert page.is_visible("#pad")


def test_an_address_opens_the_tab(browser, file, tmp_path):
    page = browser.new_page()
    page.goto(f"{file.as_uri()}#picture")
    page.wait_for_selector("html[data-ready=yes]")
    assert page.is_visible("#latent")
    page.close()


@pytest.mark.long  # a busy machine may be slower
def test_a_drag_changes_the_picture_within_16_ms(browser, file):
    for width in (1280, 390):
        with opened(browser, file, width) as page:
            page.locator("#tabs label", has_text="Steer a picture").click()
            medians = []
            while not medians or (min(medians) >= 16 and len(medians) < 5):  # others may use the machine too
                times = page.evaluate(TIMES)
                medians.append(sorted(times)[len(times) // 2])
            assert min(medians) < 16, medians
