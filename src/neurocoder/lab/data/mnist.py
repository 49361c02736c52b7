"""MNIST: the four published files, from your own folder or from the package (CC BY-SA 3.0, see NOTICE)."""

from __future__ import annotations

import gzip
import hashlib
import os
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from . import sources

PACKAGED = Path(__file__).parent / "mnist"
LAYOUTS = ("mnist", "MNIST/raw", "MNIST", ".")
"""Where the files may be in a folder of data sets."""
MD5 = {
    "train-images-idx3-ubyte": "6bbc9ace898e44ae57da46a324031adb",
    "train-labels-idx1-ubyte": "a25bea736e30d166cdddb491f175f624",
    "t10k-images-idx3-ubyte": "2646ac647ad5339dbf082846283269ea",
    "t10k-labels-idx1-ubyte": "27ae3e4e09519cfbb04c329615203637",
}
"""MD5 of the unpacked files."""


class Digits(NamedTuple):
    """Images (N, 28, 28), bytes, and their labels (N,)."""

    images: Tensor
    labels: Tensor


def _file(folder: Path, name: str) -> Path | None:
    """A file of the data set, compressed or not."""
    return next((file for file in (folder / name, folder / f"{name}.gz") if file.is_file()), None)


def folder() -> Path:
    """Where MNIST is: under `NEUROCODER_DATA` if set, else in the package."""
    if not os.environ.get("NEUROCODER_DATA"):
        return PACKAGED
    root = sources.root()
    for layout in LAYOUTS:
        if any(_file(root / layout, name) for name in MD5):
            return root / layout
    raise FileNotFoundError(
        f"there is no MNIST in {root} (NEUROCODER_DATA or --data-root): {next(iter(MD5))}[.gz] and its three "
        f"companions may be in {', '.join(LAYOUTS)}; without that folder the packaged copy is used"
    )


def _read(place: Path, name: str) -> Tensor:
    """One idx file: a header of big-endian sizes, then bytes."""
    remedy = "reinstall neurocoder[lab]" if place == PACKAGED else "fetch it again"
    file = _file(place, name)
    if file is None:
        raise FileNotFoundError(f"MNIST is incomplete: there is no {name}[.gz] in {place}; {remedy}")
    try:
        content = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
    except (OSError, EOFError, ValueError) as error:
        raise ValueError(f"{file} is damaged: {error}; {remedy}") from None
    if hashlib.md5(content).hexdigest() != MD5[name]:
        raise ValueError(f"{file} is damaged: its content's MD5 is not the published {MD5[name]}; {remedy}")
    dimensions = content[3]
    shape = np.frombuffer(content, ">i4", dimensions, offset=4)
    values = np.frombuffer(content, np.uint8, offset=4 + 4 * dimensions)
    return torch.from_numpy(values.reshape(shape.tolist()).copy())


def load(train: bool) -> Digits:
    """The 60,000 training or 10,000 test digits."""
    stem, place = "train" if train else "t10k", folder()
    images, labels = _read(place, f"{stem}-images-idx3-ubyte"), _read(place, f"{stem}-labels-idx1-ubyte")
    return Digits(images, labels.long())
