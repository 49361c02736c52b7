"""CIFAR-10 and CIFAR-100: the published binary files, from your own folder of data sets or downloaded."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from . import sources
from .sources import SOURCES, Source

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

    classes: int
    label_bytes: int
    pickled: str
    """Folder of the Python version, which is not read."""


SETS = {
    "cifar10": Published(10, 1, "cifar-10-batches-py"),
    "cifar100": Published(100, 2, "cifar-100-python"),
}


def _find(name: str) -> Path | None:
    """The folder with its files, if any is there."""
    if name not in SETS:
        raise ValueError(f"name must be {' or '.join(SETS)}, got {name!r}")
    places = (sources.root() / layout for layout in _layouts(name))
    return next((place for place in places if any((place / file).is_file() for file in SOURCES[name].members)), None)


def _layouts(name: str) -> tuple[str, ...]:
    """Where the files may be in a folder of data sets."""
    stored = SOURCES[name].stored
    return name, stored, f"{name}/{stored}", "."


def prepare(name: str) -> None:
    """Download the data set, if it is not there; of one that is, all files must be."""
    if _find(name) is None:
        sources.download(name)
    _complete(folder(name), SOURCES[name], SOURCES[name].members)


def folder(name: str) -> Path:
    """Where the files of a data set are, under `NEUROCODER_DATA` or in the cache."""
    place, source = _find(name), SOURCES[name]
    if place is None:
        root = sources.root()
        reason = f"there is no {source.title} in {root}, looked in {', '.join(_layouts(name))}"
        for pickled in (root / SETS[name].pickled, root / name / SETS[name].pickled):
            if pickled.is_dir():
                reason = f"{pickled} is the Python version: pickles, which can run code and are not loaded"
        raise FileNotFoundError(f"{reason}; {source.remedy}")
    return place


def _complete(place: Path, source: Source, files: Sequence[str]) -> None:
    """Require these files."""
    for file in files:
        if not (place / file).is_file():
            raise FileNotFoundError(f"{source.title} is incomplete: there is no {file} in {place}; {source.remedy}")


@lru_cache(maxsize=4)
def _read(place: Path, name: str, train: bool) -> Images:
    published, source = SETS[name], SOURCES[name]
    files = source.members[:-1] if train else source.members[-1:]
    count, width = (TRAIN if train else TEST) // len(files), published.label_bytes + PIXELS
    remedy = f"unpack {Path(source.url).name} again"
    _complete(place, source, files)
    parts = []
    for file in files:
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
        raise ValueError(f"{source.title} in {place} is damaged: {rule}, in {', '.join(files)}; {remedy}")
    return Images(torch.from_numpy(images).view(-1, 3, 32, 32), torch.from_numpy(labels))


def load(name: str, train: bool) -> Images:
    """The 50,000 training or 10,000 test images of `cifar10` or `cifar100` (fine labels).

    Read once per process and folder: callers share the tensors, and must not change them.
    """
    return _read(folder(name).resolve(), name, bool(train))
