"""CIFAR-10 and CIFAR-100: the published binary files, from your own folder of data sets."""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

PIXELS = 3 * 32 * 32
"""Bytes of an image: red, green, blue, each row by row."""
TRAIN, TEST = 50_000, 10_000
"""Images in either data set."""


class Images(NamedTuple):
    """Images (N, 3, 32, 32), bytes, and their labels (N,)."""

    images: Tensor
    labels: Tensor


class Published(NamedTuple):
    """How a data set is published. Its last label byte counts: the fine label of CIFAR-100."""

    title: str
    classes: int
    label_bytes: int
    train: tuple[str, ...]
    test: tuple[str, ...]
    folder: str
    pickled: str
    """Folder of the Python version, which is not read."""

    @property
    def archive(self) -> str:
        """The binary version as it is downloaded."""
        return f"{self.title.lower()}-binary.tar.gz"


TRAIN_10 = tuple(f"data_batch_{part}.bin" for part in range(1, 6))
TEST_10 = ("test_batch.bin",)
SETS = {
    "cifar10": Published("CIFAR-10", 10, 1, TRAIN_10, TEST_10, "cifar-10-batches-bin", "cifar-10-batches-py"),
    "cifar100": Published("CIFAR-100", 100, 2, ("train.bin",), ("test.bin",), "cifar-100-binary", "cifar-100-python"),
}


def folder(name: str) -> Path:
    """Where the files of a data set are, under `NEUROCODER_DATA`."""
    if name not in SETS:
        raise ValueError(f"name must be {' or '.join(SETS)}, got {name!r}")
    published = SETS[name]
    title, files = published.title, published.train + published.test
    remedy = f"unpack {published.archive} there: a folder {published.folder} with {', '.join(files)}"
    given = os.environ.get("NEUROCODER_DATA")
    if not given:
        where = "give a folder of data sets by --data-root or NEUROCODER_DATA"
        raise FileNotFoundError(f"{title} does not ship with neurocoder: {where}, and {remedy}")
    root = Path(given)
    if not root.is_dir():
        raise FileNotFoundError(f"NEUROCODER_DATA (--data-root) must be a folder of data sets, got {root}")
    layouts = (name, published.folder, f"{name}/{published.folder}", ".")
    for layout in layouts:
        if any((root / layout / file).is_file() for file in files):
            return root / layout
    reason = f"there is no {title} in {root} (NEUROCODER_DATA or --data-root), looked in {', '.join(layouts)}"
    for pickled in (root / published.pickled, root / name / published.pickled):
        if pickled.is_dir():
            reason = f"{pickled} is the Python version of {title}, pickles, which can run code and are not loaded"
    raise FileNotFoundError(f"{reason}; get the binary version and {remedy}")


@lru_cache(maxsize=4)
def _read(place: Path, name: str, train: bool) -> Images:
    published = SETS[name]
    files = published.train if train else published.test
    count, width = (TRAIN if train else TEST) // len(files), published.label_bytes + PIXELS
    remedy = f"unpack {published.archive} again"
    parts = []
    for file in files:
        if not (place / file).is_file():
            raise FileNotFoundError(f"{published.title} is incomplete: there is no {file} in {place}; {remedy}")
        content = np.fromfile(place / file, np.uint8)
        if content.size != count * width:
            sizes = f"it must have {count * width} bytes ({count} images), got {content.size}"
            raise ValueError(f"{place / file} is damaged: {sizes}; {remedy}")
        parts.append(content.reshape(count, width))
    images = np.concatenate([part[:, published.label_bytes :] for part in parts])
    labels = np.concatenate([part[:, published.label_bytes - 1] for part in parts]).astype(np.int64)
    each = len(labels) // published.classes
    if np.bincount(labels).tolist() != [each] * published.classes:
        rule = f"labels must be 0 to {published.classes - 1}, each {each} times"
        raise ValueError(f"{published.title} in {place} is damaged: {rule}, in {', '.join(files)}; {remedy}")
    return Images(torch.from_numpy(images).view(-1, 3, 32, 32), torch.from_numpy(labels))


def load(name: str, train: bool) -> Images:
    """The 50,000 training or 10,000 test images of `cifar10` or `cifar100` (fine labels).

    Read once per process and folder: callers share the tensors, and must not change them.
    """
    return _read(folder(name).resolve(), name, bool(train))
