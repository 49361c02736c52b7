"""MNIST from the package or from a folder of the user's."""

import gzip
import shutil

import pytest
import torch

from neurocoder.lab.data import mnist


@pytest.fixture(autouse=True)
def no_folder(monkeypatch):
    monkeypatch.delenv("NEUROCODER_DATA", raising=False)


def test_the_packaged_digits():
    digits = mnist.load(False)
    assert digits.images.shape == (10_000, 28, 28)
    assert digits.labels[:5].tolist() == [7, 2, 1, 0, 4]
    assert torch.bincount(digits.labels).tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]


@pytest.mark.parametrize("layout", ["mnist", "MNIST/raw", "."])
@pytest.mark.parametrize("packed", [True, False])
def test_digits_from_a_folder(tmp_path, monkeypatch, layout, packed):
    folder = tmp_path / layout
    folder.mkdir(parents=True, exist_ok=True)
    for file in mnist.PACKAGED.glob("t10k*.gz"):
        if packed:
            shutil.copy(file, folder)
        else:
            (folder / file.stem).write_bytes(gzip.decompress(file.read_bytes()))
    monkeypatch.setenv("NEUROCODER_DATA", str(tmp_path))
    assert mnist.folder() == folder
    assert torch.equal(mnist.load(False).images, mnist._read(mnist.PACKAGED, "t10k-images-idx3-ubyte"))
    with pytest.raises(FileNotFoundError, match="there is no train-images-idx3-ubyte"):
        mnist.load(True)


def test_folders_without_digits_are_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("NEUROCODER_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(FileNotFoundError, match="must be a folder of data sets, got "):
        mnist.load(False)
    monkeypatch.setenv("NEUROCODER_DATA", str(tmp_path))
    with pytest.raises(FileNotFoundError, match="there is no MNIST in"):
        mnist.load(False)


@pytest.mark.parametrize(
    "damage", [lambda packed: packed[:-9], lambda packed: gzip.compress(b"no digits"), lambda _: b""]
)
def test_damaged_files_are_refused(tmp_path, monkeypatch, damage):
    for file in mnist.PACKAGED.glob("t10k*.gz"):
        (tmp_path / file.name).write_bytes(damage(file.read_bytes()))
    monkeypatch.setenv("NEUROCODER_DATA", str(tmp_path))
    with pytest.raises(ValueError, match=r"t10k-images-idx3-ubyte.gz is damaged"):
        mnist.load(False)
