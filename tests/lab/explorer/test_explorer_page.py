"""The explorer's page as a file, its model, and the command that writes it."""

import re
import tomllib
from pathlib import Path

import pytest
import torch

import neurocoder as nc
from conftest import unboxed
from neurocoder.lab.cli import main
from neurocoder.lab.data import mnist
from neurocoder.lab.explorer import train
from neurocoder.lab.explorer.page import build as export
from neurocoder.lab.explorer.page import demo_model as model


@pytest.fixture(scope="module")
def demo():
    return model.load()


@pytest.fixture(scope="module")
def text(demo):
    return export.page(demo)


def test_the_command_writes_one_small_file_and_says_so(tmp_path, capsys, text):
    target = tmp_path / "page.html"
    assert main(["explore", "--export", str(target)]) == 0
    size = target.stat().st_size
    assert size < 2_000_000
    assert capsys.readouterr().out == (
        f"Wrote {target}: {size / 1e6:.2f} MB. Open it in a browser; it needs no network.\n"
    )
    assert target.read_text("utf-8") == text, "the same model makes the same page"
    assert [path.name for path in target.parent.iterdir()] == ["page.html"]


def test_nothing_is_loaded_from_elsewhere(text):
    code = text.replace("http://www.w3.org/2000/svg", "")  # a name, not an address
    assert not re.search(r"https?://|@import|\bfetch\(|XMLHttpRequest|WebSocket|\bimport\(", code)
    assert re.findall(r"(?:src|href)=\"(?!#)([^\"]*)\"", text) == ["data:,"]
    assert "default-src 'none'" in text


def test_the_page_carries_the_notice_of_its_digits(text):
    flat = " ".join(text.split())
    assert "MNIST by Yann LeCun and Corinna Cortes" in flat
    assert "Creative Commons Attribution-Share Alike 3.0" in flat


def test_every_asset_is_in_the_page_and_in_the_package(text):
    assets = {path.name for path in export.ASSETS.iterdir()}
    assert assets == {f"{name}.js" for name in export.SCRIPTS} | {"page.html", "page.css"}
    pattern = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["tool"]["setuptools"]
    assert {"lab/explorer/page/assets/*", "lab/explorer/page/*.safetensors"} <= set(
        pattern["package-data"]["neurocoder"]
    )
    assert not any(mark in text for mark in ("/* style */", "/* scripts */", "{ data }"))


def test_the_demo_model_is_small_and_its_figures_are_right(demo):
    assert nc.count_parameters(demo.layer)["total"] < 10_000
    test = mnist.load(False)
    again = model.measured(demo.layer, *test, demo.centres, {})
    assert demo.facts["error"] == again.facts["error"] < 4
    torch.testing.assert_close(again.average, demo.average)
    assert torch.equal(again.paths, demo.paths)
    assert demo.paths.sum(1).tolist() == test.labels.bincount().tolist()


def test_pooling_is_the_mean_of_four_pixels():
    images = torch.randint(0, 256, (3, 28, 28), dtype=torch.uint8)
    read = model.pooled(images).view(3, 14, 14) * 0.3081 + 0.1307
    torch.testing.assert_close(read[1, 2, 5], images[1, 4:6, 10:12].float().mean() / 255)


def test_a_path_is_the_nearest_pattern_in_each_component():
    centres = torch.tensor([[[0.0, 0.0], [1.0, 1.0]], [[0.0, 1.0], [1.0, 0.0]]])
    attention = torch.tensor([[[0.1, 0.0], [0.9, 0.1], [5.0, 5.0]], [[0.8, 0.9], [0.0, 0.7], [5.0, 5.0]]])
    assert model.follow(attention, centres).tolist() == [0b01, 0b10]


def test_training_again_writes_a_model_that_loads(tmp_path):
    digits = mnist.load(False)
    images, labels = digits.images[:600], digits.labels[:600]
    options = train.Options(epochs=1, batch=60, target=tmp_path / "demo.safetensors")
    layer = train.train(options, images, labels)
    written = model.measured(layer, images, labels, train.centres(layer, images, labels), {"seed": 0})
    model.write(written, options.target)
    found = model.load(options.target)
    assert found.facts == written.facts
    assert torch.equal(found.paths, written.paths)
    assert torch.equal(found.layer(model.pooled(images)), layer(model.pooled(images)))
    assert len(export.page(found)) < 2_000_000


def test_a_file_that_is_no_model_is_refused(tmp_path):
    (tmp_path / "demo.safetensors").write_bytes(b"something else")
    with pytest.raises(ValueError, match=r"demo.safetensors is no demo model of the explorer"):
        model.load(tmp_path / "demo.safetensors")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--export", "{folder}"], "--export must be a file to write, such as page.html, got the folder {folder}"),
        (
            ["--export", "{folder}/taken/page.html"],
            "--export must be a file in a folder that exists, got {folder}/taken/",
        ),
        (["--export", "{folder}/new/page.html"], "--export must be a file in a folder that exists, got {folder}/new/"),
        (["--export", "/proc/page.html"], "/proc/page.html cannot be written: "),
        (["--export", ""], "--export must have a value, got ''"),
    ],
)
def test_wrong_input_gets_one_clear_line(tmp_path, capsys, words, message):
    (tmp_path / "taken").write_text("a file")
    assert main(["explore", *(word.format(folder=tmp_path) for word in words)]) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ")
    assert message.format(folder=tmp_path) in said
    assert said.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "give either --export FILE, or --model PACKAGE:NAME and --data PACKAGE:NAME"),
        (["--exprt", "page.html"], "Unrecognized options: --exprt, page.html Perhaps you meant: --export FILE"),
    ],
)
def test_wrong_options_are_explained(capsys, words, message):
    assert main(["explore", *words]) == 2
    assert message in unboxed(capsys.readouterr().err)
