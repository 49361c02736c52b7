"""CIFAR-10 and CIFAR-100 from a folder of the user's, on tiny files in the published format."""

import re

import numpy as np
import pytest
import torch

from neurocoder.lab.data import cifar

LAYOUTS = ("cifar10", "cifar-10-batches-bin", "cifar10/cifar-10-batches-bin", ".")


@pytest.fixture(autouse=True)
def small(monkeypatch, tmp_path):
    """100 training and 20 test images of CIFAR-10."""
    monkeypatch.setattr(cifar, "TRAIN", 100)
    monkeypatch.setattr(cifar, "TEST", 20)
    monkeypatch.setenv("NEUROCODER_DATA", str(tmp_path))


def write(folder, files, labels, seed=0):
    """Files of equal size, one record a row of `labels`; returns the images (N, 3072)."""
    folder.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (len(labels), 3072), np.uint8)
    records = np.concatenate([np.array(labels, np.uint8), pixels], 1)
    for file, part in zip(files, np.split(records, len(files)), strict=True):
        (folder / file).write_bytes(part.tobytes())
    return torch.from_numpy(pixels)


def write_cifar10(folder):
    train = write(folder, [f"data_batch_{part}.bin" for part in (1, 2, 3, 4, 5)], [[i * 3 % 10] for i in range(100)])
    test = write(folder, ["test_batch.bin"], [[i % 10] for i in range(20)], seed=1)
    return train, test


@pytest.mark.parametrize("layout", LAYOUTS)
def test_cifar10_from_a_folder(tmp_path, layout):
    train, test = write_cifar10(tmp_path / layout)
    assert cifar.folder("cifar10") == tmp_path / layout
    images, labels = cifar.load("cifar10", True)
    assert (images.shape, images.dtype, labels.dtype) == ((100, 3, 32, 32), torch.uint8, torch.int64)
    assert torch.equal(images.flatten(1), train)
    assert labels.tolist() == [i * 3 % 10 for i in range(100)]
    images, labels = cifar.load("cifar10", False)
    assert images[7, 2, 3, 4] == test[7, 2 * 1024 + 3 * 32 + 4]  # channel, row, column
    assert labels.tolist() == [i % 10 for i in range(20)]


def test_the_labels_of_cifar100_are_the_fine_ones(tmp_path, monkeypatch):
    monkeypatch.setattr(cifar, "TEST", 100)
    expected = write(tmp_path / "cifar-100-binary", ["test.bin"], [[7, 99 - i] for i in range(100)])
    images, labels = cifar.load("cifar100", False)
    assert labels.tolist() == [99 - i for i in range(100)]
    assert torch.equal(images.flatten(1), expected)


def test_files_are_read_once_per_folder(tmp_path, monkeypatch):
    _, test = write_cifar10(tmp_path / "one" / "cifar10")
    write(tmp_path / "two" / "cifar10", ["test_batch.bin"], [[i % 10] for i in range(20)], seed=2)
    monkeypatch.setenv("NEUROCODER_DATA", str(tmp_path / "one"))
    first = cifar.load("cifar10", False)
    assert cifar.load("cifar10", False) is first
    monkeypatch.setenv("NEUROCODER_DATA", str(tmp_path / "two"))
    assert not torch.equal(cifar.load("cifar10", False).images.flatten(1), test)


def test_a_missing_data_set_says_what_to_do(tmp_path, monkeypatch):
    remedy = r"unpack cifar-100-binary.tar.gz there: a folder cifar-100-binary with train.bin, test.bin"
    with pytest.raises(FileNotFoundError, match=f"there is no CIFAR-100 in .*get the binary version and {remedy}"):
        cifar.load("cifar100", True)
    monkeypatch.setenv("NEUROCODER_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(FileNotFoundError, match=r"must be a folder of data sets, got .*nowhere"):
        cifar.load("cifar100", True)
    monkeypatch.delenv("NEUROCODER_DATA")
    with pytest.raises(FileNotFoundError, match=f"does not ship .*--data-root or NEUROCODER_DATA, and {remedy}"):
        cifar.load("cifar100", True)
    with pytest.raises(ValueError, match="name must be cifar10 or cifar100, got 'cifar'"):
        cifar.load("cifar", True)


@pytest.mark.parametrize("place", ["cifar-10-batches-py", "cifar10/cifar-10-batches-py"])
def test_pickles_are_not_loaded(tmp_path, place):
    (tmp_path / place).mkdir(parents=True)
    (tmp_path / place / "data_batch_1").write_bytes(b"cos\nsystem\n(S'false'\ntR.")
    with pytest.raises(FileNotFoundError, match=r"pickles, which can run code .*; get the binary version .*-bin with"):
        cifar.load("cifar10", True)
    write_cifar10(tmp_path / "cifar-10-batches-bin")  # beside them, the binary version is used
    assert len(cifar.load("cifar10", True).images) == 100


def test_a_missing_file_is_named(tmp_path):
    write_cifar10(tmp_path / "cifar10")
    (tmp_path / "cifar10" / "data_batch_3.bin").unlink()
    with pytest.raises(FileNotFoundError, match=r"CIFAR-10 is incomplete: there is no data_batch_3.bin in .*cifar10;"):
        cifar.load("cifar10", True)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (
            lambda content: content[:-1],
            "it must have 61460 bytes (20 images), got 61459; unpack cifar-10-binary.tar.gz",
        ),
        (lambda content: content + b"0", "got 61461"),
        (lambda _: b"", "got 0"),
        (lambda content: b"\x0a" + content[1:], "labels must be 0 to 9, each 2 times"),
        (lambda content: b"\x01" + content[1:], "labels must be 0 to 9, each 2 times"),
    ],
)
def test_damaged_files_are_refused(tmp_path, damage, message):
    write_cifar10(tmp_path)
    file = tmp_path / "test_batch.bin"
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(ValueError, match=f"is damaged: .*{re.escape(message)}"):
        cifar.load("cifar10", False)
