"""Where data sets are, and how those that do not ship with the lab are downloaded: once, checked by their digests.

Only the start of a sweep downloads (`Experiment.prepare`); everything else looks at the disk.
"""

from __future__ import annotations

import os
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import NamedTuple

from ..records.files import atomic_write


class Source(NamedTuple):
    """A file that its publisher offers."""

    title: str
    url: str
    digest: str
    """As published: `md5:...` or `sha256:...`."""
    megabytes: int
    stored: str
    """What it becomes under `root`: a folder of the archive, or a file."""
    members: tuple[str, ...] = ()
    """Files of that folder; none: it is a file."""
    option: str = "--data-root"
    """The option of `neurocoder run` that says where it is; the environment variable has its name."""

    @property
    def remedy(self) -> str:
        """What to do where it cannot be downloaded."""
        kind, digest = self.digest.split(":")
        unpack = f", unpack it, and give the folder that holds {self.stored}" if self.members else ", and give it"
        variable = {"--data-root": "NEUROCODER_DATA", "--backbone": "NEUROCODER_BACKBONE"}[self.option]
        return f"get {self.url} ({kind.upper()} {digest}){unpack} by {self.option} or {variable}"


SOURCES = {
    "cifar10": Source(
        "CIFAR-10",
        "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
        "md5:c32a1d4ab5d03f1284b67883e8d87530",
        162,
        "cifar-10-batches-bin",
        (*(f"data_batch_{part}.bin" for part in range(1, 6)), "test_batch.bin"),
    ),
    "cifar100": Source(
        "CIFAR-100",
        "https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",
        "md5:03b5dce01913d631647c71ecec9e9cb8",
        161,
        "cifar-100-binary",
        ("train.bin", "test.bin"),
    ),
    "resnet18": Source(
        "the weights of ResNet-18",
        "https://download.pytorch.org/models/resnet18-f37072fd.pth",
        "sha256:f37072fd47e89c5e827621c5baffa7500819f7896bbacec160b1a16c560e07ec",
        45,
        "resnet18-f37072fd.pth",
        option="--backbone",
    ),
}


def cache_folder() -> Path:
    """`NEUROCODER_CACHE`, else `~/.cache/neurocoder`."""
    return Path(os.environ.get("NEUROCODER_CACHE") or Path.home() / ".cache" / "neurocoder")


def root() -> Path:
    """The folder of data sets: `NEUROCODER_DATA` (`--data-root`), which must be there, else one in the cache."""
    given = os.environ.get("NEUROCODER_DATA")
    if given and not Path(given).is_dir():
        raise FileNotFoundError(f"NEUROCODER_DATA (--data-root) must be a folder of data sets, got {given}")
    return Path(given) if given else cache_folder() / "data"


def retrieve(source: Source, folder: str) -> Path:
    """The file, downloaded into a folder and checked."""
    import pooch

    return Path(pooch.retrieve(source.url, source.digest, fname="download", path=folder))


def download(name: str) -> None:
    """Fetch a data set into `root`; raises `FileNotFoundError` with what to do instead, and then leaves nothing."""
    source, folder = SOURCES[name], root()
    print(f"{source.title}: {source.megabytes} MB from {source.url} to {folder}", file=sys.stderr, flush=True)
    try:
        with tempfile.TemporaryDirectory(prefix="neurocoder-") as temporary:
            file = retrieve(source, temporary)
            folder.mkdir(parents=True, exist_ok=True)
            if source.members:
                _unpack(file, source, folder)
            else:
                with atomic_write(folder / source.stored) as target:
                    target.write_bytes(file.read_bytes())
    except (OSError, ValueError, KeyError, ImportError, tarfile.TarError) as error:
        problem = f"{type(error).__name__}: {error}".partition("\n")[0]
        raise FileNotFoundError(
            f"{source.title} is not there, and could not be downloaded ({problem}): {source.remedy}"
        ) from None


def _unpack(archive: Path, source: Source, folder: Path) -> None:
    """The folder appears with all its files, or not at all."""
    with (
        tempfile.TemporaryDirectory(dir=folder, prefix=f".{source.stored}-") as temporary,
        tarfile.open(archive) as tar,
    ):
        for member in source.members:
            content = tar.extractfile(f"{source.stored}/{member}")
            assert content is not None
            (target := Path(temporary, source.stored, member)).parent.mkdir(exist_ok=True)
            target.write_bytes(content.read())
        os.replace(Path(temporary, source.stored), folder / source.stored)
