"""Watch it learn: the browser's training steps against torch, a run on the page, and the recorded episode."""

import base64

import numpy as np
import pytest
import torch
from explorer_helpers import launched, opened
from torch.nn.functional import avg_pool2d, cross_entropy

import neurocoder as nc
from neurocoder.lab.explorer.page import build as export
from neurocoder.lab.explorer.page import demo_model as model
from neurocoder.lab.explorer.page import episode, learn

STEPS, BATCH = 20, 16
TRAIN = """
([start, batches, probes]) => {
  const { learning } = NC.app.views.learn, given = NC.app.given.learn;
  const [samples, asked] = ["train", "test"].map((kind) => given.tasks.flatMap((_, n) => learning.samples(kind, n)));
  const inputs = given.side ** 2, outputs = 2, rate = given.settings.rate;
  const growing = NC.layers.growing({ ...given.growing, ...start.growing }, { inputs, outputs, rate, U: start.U });
  const plain = NC.layers.plain({ rate, ...start.plain });
  const chosen = batches.map((places) => {
    const batch = places.map((place) => samples[place]);
    plain.learn(batch);
    return growing.learn(batch);
  });
  const list = (rows) => Array.from(rows, (row) => Array.from(row));
  return {
    chosen,
    x: list(probes.map((place) => asked[place].x)),
    z: list(probes.map((place) => asked[place].z)),
    labels: probes.map((place) => asked[place].label),
    growing: list(probes.map((place) => growing.outputs(asked[place]))),
    plain: list(probes.map((place) => plain.outputs(asked[place]))),
    keys: list(growing.keys),
    visits: Array.from(growing.visits),
    U: Array.from(growing.U),
    V: Array.from(growing.V),
    parameters: list(plain.parameters),
    size: [plain.size(), growing.size()],
  };
}
"""

STATE = "() => { const { step, keys, done } = NC.app.views.learn.run(); return [step, keys.length, done]; }"


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    target = tmp_path_factory.mktemp("page") / "page.html"
    export.write(model.load(), target)
    return target


@pytest.fixture(scope="module")
def browser():
    with launched() as found:
        yield found


def controls(x):
    """What keys are made of: blurred once, and centred."""
    z = avg_pool2d(x.view(-1, 1, model.SIDE, model.SIDE), 3, 1, 1).flatten(1)
    return z - z.mean(1, keepdim=True)


def near(found, wanted, name):
    torch.testing.assert_close(torch.tensor(found).view_as(wanted), wanted.detach(), rtol=0, atol=1e-4, msg=name)


@pytest.mark.filterwarnings("ignore:.*full")
def test_twenty_steps_agree_with_torch(browser, file):
    """The same start and the same batches of two tasks; few slots, so that the memory is full before the end."""
    torch.manual_seed(3)
    config = nc.GrowingConfig.from_dict({**learn.GROWING.to_dict(), "slots": 14, "max_slots": 14, "consolidation": 5.0})
    growing = nc.GrowingLinear(196, 2, False, config, control_dim=196)
    plain = torch.nn.Sequential(torch.nn.Linear(196, learn.HIDDEN), torch.nn.ReLU(), torch.nn.Linear(learn.HIDDEN, 2))
    W1, b1, W2, b2 = (parameter.flatten().tolist() for parameter in plain.parameters())
    U = growing.memory.U.flatten().tolist()
    start = {"growing": config.to_dict(), "U": U, "plain": {"W1": W1, "b1": b1, "W2": W2, "b2": b2}}
    batches = torch.randint(0, 4 * learn.TRAIN_EACH, (STEPS, BATCH))
    probes = torch.arange(0, 10 * learn.TEST_EACH, 7)

    train, test = ((it.levels.float() / 15, it.labels % 2) for it in (learn.digits(True), learn.digits(False)))
    optimisers = [torch.optim.Adagrad(one.parameters(), lr=learn.RATE) for one in (growing, plain)]
    nc.grow(growing, optimisers[0])
    written = []
    for places in batches:
        x, y = train[0][places], train[1][places]
        before = int(growing.memory.written)
        for optimiser, outputs in zip(optimisers, (growing(x, control=controls(x)), plain(x)), strict=True):
            optimiser.zero_grad()
            cross_entropy(outputs, y).backward()
            optimiser.step()
        written.append(int(growing.memory.written) > before)

    with opened(browser, file) as page:
        found = page.evaluate(TRAIN, [start, batches.tolist(), probes.tolist()])
    x = test[0][probes]
    near(found["x"], x, "images")
    near(found["z"], controls(x), "controls")
    assert found["labels"] == test[1][probes].tolist()
    assert [place >= 0 for place in found["chosen"]] == written, "slots are written at the same steps"
    assert 5 < sum(written) == len(found["keys"]) == config.slots < STEPS
    near(found["keys"], growing.memory.keys, "keys")
    near(found["visits"], growing.memory.visits, "visits")
    near(found["U"], growing.memory.U, "U")
    near(found["V"], growing.memory.V, "V")
    near(found["growing"], growing(x, control=controls(x)), "outputs of the growing layer")
    near(found["plain"], plain(x), "outputs of the plain network")
    for values, parameter in zip(found["parameters"], plain.parameters(), strict=True):
        near(values, parameter, "parameters of the plain network")
    written_numbers = growing.memory.U.numel() + growing.memory.V.numel() + growing.memory.keys.numel()
    assert found["size"] == [sum(parameter.numel() for parameter in plain.parameters()), written_numbers]


def test_images_are_packed_in_four_bits():
    assert base64.b64decode(learn.packed(torch.tensor([[1, 2], [15, 0]], dtype=torch.uint8))) == b"\x12\xf0"
    given = learn.data()
    for kind, each in given["each"].items():
        found = learn.digits(kind == "train")
        assert found.labels.tolist() == [digit for digit in range(10) for _ in range(each)]
        assert len(base64.b64decode(given[kind])) == 10 * each * model.SIDE**2 // 2
        assert int(found.levels.max()) == 15
    assert [digit for task in given["tasks"] for digit in task] == list(range(10))


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_a_run_on_the_page(browser, file, width, scheme):
    with opened(browser, file, width, color_scheme=scheme) as page:
        assert page.evaluate(STATE) == [0, 0, False]
        page.focus("#learn-step")
        page.keyboard.press("Enter")
        assert page.evaluate(STATE) == [1, 1, False]
        assert "Step 1 of 500." in page.inner_text("#learn-told")
        assert page.locator("#learn .keys canvas").count() == 1
        page.click("#learn-play")
        page.wait_for_function("() => NC.app.views.learn.run().step > 6")
        page.click("#learn-play")
        at = page.evaluate(STATE)
        page.wait_for_timeout(100)
        assert page.evaluate(STATE) == at, "a pause is a pause"
        assert page.inner_text("#learn-play") == "Play on"
        page.click("#learn-restart")
        assert page.evaluate(STATE) == [0, 0, False]
        assert page.locator("#learn .keys canvas").count() == 0
        assert page.evaluate("() => document.documentElement.scrollWidth") == width


@pytest.mark.long  # a busy machine may be slower
def test_the_page_stays_responsive_while_it_learns(browser, file):
    with opened(browser, file) as page:
        page.locator("#learn label", has_text="fast").click()
        page.click("#learn-play")
        page.wait_for_function("() => NC.app.views.learn.run().step > 20")
        late = page.evaluate(
            """() => new Promise((done) => {
                const gaps = [];
                let before = performance.now();
                requestAnimationFrame(function frame(now) {
                    gaps.push(now - before);
                    before = now;
                    if (gaps.length < 20) requestAnimationFrame(frame);
                    else done(gaps.sort((a, b) => a - b)[10]);
                });
            })"""
        )
        assert late < 100


def test_the_plain_network_forgets_and_the_growing_layer_does_not(browser, file):
    with opened(browser, file) as page:
        page.locator("#learn label", has_text="fast").click()
        page.click("#learn-play")
        page.evaluate("() => { const run = NC.app.views.learn.run(); while (run.step < 480) run.work.next(); }")
        page.wait_for_function("() => NC.app.views.learn.run().done", timeout=60_000)
        plain, growing, slots = page.evaluate(
            """() => {
                const { matrices, keys } = NC.app.views.learn.run();
                return [matrices.plain, matrices.growing, keys.map((key) => key.task)];
            }"""
        )
        assert [len(row) for row in plain] == [len(row) for row in growing] == [1, 2, 3, 4, 5]
        assert np.mean(plain[-1]) < 0.75
        assert np.mean(growing[-1]) > 0.85
        assert np.mean([row[-1] for row in plain]) > 0.9, "each task was learned"
        assert slots == sorted(slots)
        assert set(slots) == set(range(5))
        assert page.locator("#learn .keys canvas").count() == len(slots)
        shown = page.locator("#learn .net").nth(1).locator("tbody tr").last.locator("td").all_inner_texts()
        assert shown == [str(int(100 * value + 0.5)) for value in growing[-1]]
        assert f"{100 * np.mean(growing[-1]):.1f}%" in page.inner_text("#learn-end")
        assert "96.6%" in page.inner_text("#learn"), "the experiment's figures are cited as text"
        assert "the growing layer odd" in page.inner_text("#learn-mine"), "of the 7 that the page starts with"
        page.click("#learn-play")
        page.wait_for_function("() => NC.app.views.learn.run().step > 0 && !NC.app.views.learn.run().done")


def test_the_episode_is_played_and_searched(browser, file):
    with opened(browser, file) as page:
        played = episode.load()
        last = len(played.actions) - 1
        page.fill("#episode-step", str(last - 2))
        page.click("#episode-play")
        page.wait_for_function(f"() => document.getElementById('episode-step').value === '{last}'")
        assert page.inner_text("#episode-play") == "Play again"
        page.focus("#episode-step")
        page.keyboard.press("Home")
        assert "Step 1 of" in page.inner_text("#episode")
        top = page.evaluate("() => [...document.querySelectorAll('#episode .policy li')].map((one) => one.className)")
        assert top.index("top") == int(played.actions[0])


def test_the_episode_is_small_and_its_figures_fit_together(tmp_path):
    played = episode.load()
    assert len(str(episode.data(played))) < 60_000
    assert torch.allclose(played.policy.sum(1), torch.ones(len(played.policy)))
    first, both = played.angles[:, 0], played.angles.sum(1)
    heights = -first.cos() - both.cos()
    assert heights.max() <= 1, "the episode ends when the end of the links passes the line"
    scale = torch.tensor([2.0, 2.0, 2.0, 2.0, 0.6, 0.3])
    angles = [value for angle in played.angles.T for value in (angle.cos(), angle.sin())]
    state = torch.stack([*angles, *played.speeds.T], 1) * scale
    logits = torch.einsum("ti,tio->to", state, played.weights)
    spread = (logits.log_softmax(1) - played.policy.log()).std(0)
    assert spread.max() < 0.2, "the weights give the policy, up to the bias"
    episode.write(played, tmp_path / "again.safetensors")
    again = episode.load(tmp_path / "again.safetensors")
    assert all(torch.equal(one, two) for one, two in zip(played[:-1], again[:-1], strict=True))
    assert again.facts == played.facts
    (tmp_path / "other.safetensors").write_bytes(b"something else")
    with pytest.raises(ValueError, match=r"other.safetensors is no recorded episode"):
        episode.load(tmp_path / "other.safetensors")


def test_another_episode_can_be_recorded(tmp_path, capsys):
    pytest.importorskip("gymnasium")
    from neurocoder.lab.explorer import record

    target = tmp_path / "episode.safetensors"
    threads = torch.get_num_threads()
    record.main(record.Options(steps=640, episodes=2, target=target))
    torch.set_num_threads(threads)
    played = episode.load(target)
    assert f"{len(played.actions)} steps; mean score {played.facts['score']} over 2" in capsys.readouterr().out
    assert played.attention.shape == (len(played.actions), 2, record.PROGRAM.heads, record.PROGRAM.slots)
    assert played.weights.shape[1:] == (record.INPUTS, record.ACTIONS)
