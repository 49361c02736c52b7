"""The equations in JavaScript against the layer, on 1,000 test digits, in a browser."""

import base64
import re
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
from explorer_helpers import launched, opened

from neurocoder.lab.data import mnist
from neurocoder.lab.explorer.page import build as export
from neurocoder.lab.explorer.page import demo_model as model

COUNT = 1_000
COMPUTE = """
([text, factors]) => {
  const bytes = NC.data.bytes(text), { views, factors: usual } = NC.app;
  const kept = ["attention", "content", "leastUsed", "gate"];
  NC.app.factors = factors.map((values) => Float64Array.from(values));
  const found = Object.fromEntries([...kept, "sigma", "W", "y", "factored", "path"].map((name) => [name, []]));
  for (let at = 0; at < bytes.length; at += 784) {
    const pixels = bytes.subarray(at, at + 784);
    const { attended, parts, W, y } = NC.app.examine(pixels);
    for (const name of kept) found[name].push(...attended[name].flat());
    found.sigma.push(parts.sigma);
    found.W.push(W);
    found.y.push(y);
    found.factored.push(NC.app.compose(pixels).y);
    found.path.push(views.tree.follow(attended.attention[0]));
  }
  NC.app.factors = usual;
  return Object.fromEntries(Object.entries(found).map(([name, rows]) => {
    const all = new Float64Array(rows.length * rows[0].length);
    rows.forEach((row, i) => all.set(row, i * row.length));
    const raw = new Uint8Array(all.buffer);
    let letters = "";
    for (let i = 0; i < raw.length; i += 8192) letters += String.fromCharCode.apply(null, raw.subarray(i, i + 8192));
    return [name, btoa(letters)];
  }));
}
"""


@pytest.fixture(scope="module")
def digits():
    return mnist.load(False).images[5_000 : 5_000 + COUNT]


@pytest.fixture(scope="module")
def layer():
    return model.load().layer


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    file = tmp_path_factory.mktemp("page") / "page.html"
    export.write(model.load(), file)
    with launched() as browser, opened(browser, file) as page:
        yield page


@pytest.fixture(scope="module")
def javascript(page, digits):
    """A function: factors of the slots (3, P) -> what the page computes for the digits, by name."""
    text = base64.b64encode(digits.numpy().tobytes()).decode()

    def compute(factors, count=COUNT):
        part = text if count == COUNT else base64.b64encode(digits[:count].numpy().tobytes()).decode()
        found = page.evaluate(COMPUTE, [part, factors.tolist()])
        return {
            name: torch.from_numpy(np.frombuffer(base64.b64decode(rows), "<f8").copy()).view(count, -1)
            for name, rows in found.items()
        }

    return compute


def expected(layer, x, factors):
    """The same from the layer, with the content of slots multiplied by factors (3, P)."""
    programs = layer.programs(x)
    kept = [weights * factor for weights, factor in zip((programs.u, programs.v, programs.s), factors, strict=True)]
    steps = torch.nn.functional.softplus(kept[2] @ layer.memory.S).squeeze(-1)
    sigma = steps.flip(-1).cumsum(-1).flip(-1)
    u, v = kept[0] @ layer.memory.U, kept[1] @ layer.memory.V
    W = torch.einsum("nr,nri,nro->nio", sigma, u, v)
    attention = torch.stack([programs.u, programs.v, programs.s], 1)
    parts = {"content": programs.content, "leastUsed": programs.least_used, "gate": programs.interpolation}
    y = torch.einsum("ni,nio->no", x, W) + layer.bias
    return {"attention": attention, **parts, "sigma": sigma, "W": W, "y": y, "factored": y}


@torch.no_grad()
def test_a_thousand_digits_agree_with_python(javascript, layer, digits):
    ones = torch.ones(3, layer.config.slots)
    found, x = javascript(ones), model.pooled(digits)
    y = layer(x)
    double = model.load().layer.double()
    assert torch.equal(found["y"].argmax(1), double(x.double()).argmax(1)), "the same class"
    for name, value in expected(double, x.double(), ones.double()).items():
        assert (found[name] - value.flatten(1)).abs().max() < 1e-5, name
    torch.testing.assert_close(found["y"].float(), y, rtol=1e-4, atol=1e-3)  # float32's own rounding, on any CPU
    torch.testing.assert_close(found["sigma"].float(), layer.programs(x).sigma, rtol=1e-4, atol=0)
    torch.testing.assert_close(found["W"].float().view(-1, 196, 10), layer.materialize(x), rtol=1e-4, atol=1e-4)
    choices = found["path"].long() @ torch.tensor([4, 2, 1])
    assert torch.equal(choices, model.follow(double.programs(x.double()).u, model.load().centres.double()))


@torch.no_grad()
def test_switched_and_boosted_slots_agree_with_python(javascript, layer, digits):
    factors = torch.tensor([0.0, 1.0, 2.0])[torch.randint(0, 3, (3, layer.config.slots))]
    found = javascript(factors, 50)
    double = model.load().layer.double()
    for name, value in expected(double, model.pooled(digits[:50]).double(), factors.double()).items():
        assert (found[name] - value.flatten(1)).abs().max() < 1e-5, name


@torch.no_grad()
def test_slots_that_matter_are_those_that_change_the_answer_the_most(page, layer):
    """Over all classes: switched off, they move the most probability, also where a third class gets it."""
    double, slots = model.load().layer.double(), layer.config.slots
    images = mnist.load(False).images
    for choice in range(0, 200, 20):
        place = page.evaluate("(n) => { NC.app.pick(NC.app.digits[n]); return NC.app.digits[n].place; }", choice)
        x = model.pooled(images[place : place + 1]).double()
        before, moved = double(x).softmax(1), {}
        for kind, slot in product(range(3), range(slots)):
            factors = torch.ones(3, slots, dtype=torch.float64)
            factors[kind, slot] = 0
            after = expected(double, x, factors)["y"].softmax(1)
            moved[f"{'UVS'[kind]}{slot + 1}"] = float((after - before).abs().sum() / 2)
        shown = [text.split()[1].rstrip(":") for text in page.locator(".decisive-slots span").all_inner_texts()]
        assert shown == sorted(moved, key=moved.get, reverse=True)[:4]


@torch.no_grad()
def test_the_documentation_counts_the_slots_that_decide():
    """Over the digits of the page: cases in which one slot decides, and those that the list of four shows."""
    double, slots = model.load().layer.double(), range(model.load().layer.config.slots)
    x = model.pooled(mnist.load(False).images[export.test_digits()["places"]]).double()
    p, answers = double(x).softmax(1), []
    for kind, slot in product(range(3), slots):
        factors = torch.ones(3, len(slots), dtype=torch.float64)
        factors[kind, slot] = 0
        answers.append(expected(double, x, factors)["y"])
    y = torch.stack(answers)  # (3 P, N, 10)
    said, best, second = y.argmax(2), p.argmax(1), p.argsort(1)[:, -2]
    decides = said != best
    n = torch.arange(len(x))
    total = ((y.softmax(2) - p).abs().sum(2) / 2).argsort(0, descending=True)
    lead = (y[:, n, best] - y[:, n, second]).argsort(0)
    counts = {
        "cases": decides.sum(),
        "elsewhere": (decides & (said != second)).sum(),
        "shown": decides.gather(0, total[:4]).sum(),
        "by the lead": decides.gather(0, lead[:4]).sum(),
        "missed": (lead[:4] != total[0]).all(0).sum(),
    }
    text = (Path(__file__).parents[3] / "docs" / "explorer.md").read_text()
    paragraph = next(part for part in text.split("\n\n") if part.startswith("**Slots that matter**"))
    assert [int(number) for number in re.findall(r"\b\d{2,}\b", paragraph)] == [len(x), *map(int, counts.values())]
