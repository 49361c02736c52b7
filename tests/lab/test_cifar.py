"""CIFAR-10 and CIFAR-100 from a folder of the user's or downloaded, on tiny files in the published format."""

import hashlib
import re
import tarfile
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest
import torch

from neurocoder.lab import cli
from neurocoder.lab.data import cifar, sources

RETRIEVE = sources.retrieve

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


def write_cifar10(folder, seed=1):
    train = write(folder, [f"data_batch_{part}.bin" for part in (1, 2, 3, 4, 5)], [[i * 3 % 10] for i in range(100)])
    test = write(folder, ["test_batch.bin"], [[i % 10] for i in range(20)], seed)
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
    write_cifar10(tmp_path / "two" / "cifar10", seed=2)
    monkeypatch.setenv("NEUROCODER_DATA", str(tmp_path / "one"))
    first = cifar.load("cifar10", False)
    assert cifar.load("cifar10", False) is first
    monkeypatch.setenv("NEUROCODER_DATA", str(tmp_path / "two"))
    assert not torch.equal(cifar.load("cifar10", False).images.flatten(1), test)


def test_a_missing_data_set_says_what_to_do(tmp_path, monkeypatch):
    remedy = r"get https://\S+/cifar-100-binary.tar.gz \(MD5 \w{32}\), unpack it, .* cifar-100-binary by --data-root or"
    with pytest.raises(FileNotFoundError, match=f"there is no CIFAR-100 in {tmp_path}, looked in cifar100.*{remedy}"):
        cifar.load("cifar100", True)
    monkeypatch.setenv("NEUROCODER_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(FileNotFoundError, match=r"must be a folder of data sets, got .*nowhere"):
        cifar.load("cifar100", True)
    monkeypatch.delenv("NEUROCODER_DATA")
    monkeypatch.setenv("NEUROCODER_CACHE", str(tmp_path / "cache"))
    with pytest.raises(FileNotFoundError, match=f"there is no CIFAR-100 in {tmp_path}/cache/data.*{remedy}"):
        cifar.load("cifar100", True)
    with pytest.raises(ValueError, match="name must be cifar10 or cifar100, got 'cifar'"):
        cifar.load("cifar", True)


@pytest.mark.parametrize("place", ["cifar-10-batches-py", "cifar10/cifar-10-batches-py"])
def test_pickles_are_not_loaded(tmp_path, place):
    (tmp_path / place).mkdir(parents=True)
    (tmp_path / place / "data_batch_1").write_bytes(b"cos\nsystem\n(S'false'\ntR.")
    with pytest.raises(FileNotFoundError, match=r"pickles, which can run code .*; get https://\S+/cifar-10-binary"):
        cifar.load("cifar10", True)
    write_cifar10(tmp_path / "cifar-10-batches-bin")  # beside them, the binary version is used
    assert len(cifar.load("cifar10", True).images) == 100


def test_a_missing_file_is_named(tmp_path):
    write_cifar10(tmp_path / "cifar10")
    (tmp_path / "cifar10" / "data_batch_3.bin").unlink()
    for look in (partial(cifar.load, "cifar10", True), partial(cifar.prepare, "cifar10")):
        with pytest.raises(FileNotFoundError, match=r"CIFAR-10 is incomplete: .* no data_batch_3.bin in .*cifar10;"):
            look()


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


def archive(folder, files, name="cifar-10-binary.tar.gz"):
    """An archive with these files, as the publisher packs it; returns its digest."""
    write_cifar10(folder / "cifar-10-batches-bin")
    with tarfile.open(folder / name, "w:gz") as tar:
        for file in files:
            tar.add(folder / "cifar-10-batches-bin" / file, f"cifar-10-batches-bin/{file}")
    return "md5:" + hashlib.md5((folder / name).read_bytes()).hexdigest()


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *words):
        pass


@pytest.fixture
def published(tmp_path_factory, monkeypatch):
    """Puts CIFAR-10 on a server on this machine, for pooch itself."""
    monkeypatch.setattr(sources, "retrieve", RETRIEVE)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    folder = tmp_path_factory.mktemp("publisher")
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=folder))
    threading.Thread(target=server.serve_forever, daemon=True).start()

    def publish(files=sources.SOURCES["cifar10"].members, digest=None, name="cifar-10-binary.tar.gz"):
        made = archive(folder, files)
        url = f"http://127.0.0.1:{server.server_address[1]}/{name}"
        changed = sources.SOURCES["cifar10"]._replace(url=url, digest=digest or made)
        monkeypatch.setitem(sources.SOURCES, "cifar10", changed)

    yield publish
    server.shutdown()
    server.server_close()


def test_a_missing_data_set_is_downloaded_once_and_checked(published, tmp_path, capsys, monkeypatch):
    published()
    cifar.prepare("cifar10")
    assert "CIFAR-10: 162 MB from http://127.0.0.1" in capsys.readouterr().err
    assert len(cifar.load("cifar10", True).images) == 100
    assert [path.name for path in tmp_path.iterdir()] == ["cifar-10-batches-bin"]
    monkeypatch.setattr(sources, "retrieve", None)  # not asked for again
    cifar.prepare("cifar10")


def test_without_a_folder_of_data_sets_it_goes_to_the_cache(published, tmp_path, monkeypatch):
    published()
    monkeypatch.delenv("NEUROCODER_DATA")
    monkeypatch.setenv("NEUROCODER_CACHE", str(tmp_path / "cache"))
    cifar.prepare("cifar10")
    assert cifar.folder("cifar10") == tmp_path / "cache" / "data" / "cifar-10-batches-bin"


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        ({"digest": "md5:" + "0" * 32}, "ValueError: MD5 hash of downloaded file"),
        ({"name": "moved.tar.gz"}, "HTTPError: 404"),
        ({"files": ["data_batch_1.bin"]}, "KeyError: .*data_batch_2.bin"),
    ],
)
def test_a_download_that_fails_leaves_nothing_and_says_what_to_do(published, tmp_path, wrong, problem):
    published(**wrong)
    with pytest.raises(
        FileNotFoundError, match=rf"could not be downloaded \({problem}.*\): get http.* by --data-root or"
    ):
        cifar.prepare("cifar10")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "missing"),
    [
        ("images --preset smoke --source cifar --variants cifar100-mlp-original", "CIFAR-100"),
        ("split --preset smoke --variants cifar10-task-adam-mlp", "CIFAR-10"),
        ("digits --preset smoke --variants linear", "MNIST"),
    ],
)
def test_a_sweep_without_its_data_does_not_begin(tmp_path, capsys, words, missing):
    output = tmp_path / "runs"
    assert cli.main(["run", *words.split(), "--jobs", "2", "--output", str(output)]) == 2
    said = capsys.readouterr()
    assert said.err.count("error: ") == 1
    assert missing in said.err.partition("error: ")[2]
    assert not said.out
    assert not list(tmp_path.iterdir())


def test_the_publishers_offer_what_the_lab_reads():
    assert {name: source.digest.partition(":")[0] for name, source in sources.SOURCES.items()} == {
        "cifar10": "md5",
        "cifar100": "md5",
        "resnet18": "sha256",
    }
    for source in sources.SOURCES.values():
        assert re.match(r"https://(www\.cs\.toronto\.edu|download\.pytorch\.org)/", source.url)
        assert len(source.digest.partition(":")[2]) == (32 if source.members else 64)
    assert sources.SOURCES["resnet18"].digest[7:15] in sources.SOURCES["resnet18"].url  # as torch.hub checks it
