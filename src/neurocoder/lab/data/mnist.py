"""MNIST, whole, from the four published files that ship with the package (CC BY-SA 3.0, see NOTICE)."""

from __future__ import annotations

import gzip
import hashlib
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

FOLDER = Path(__file__).parent / "mnist"
MD5 = {
    "train-images-idx3-ubyte.gz": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
    "train-labels-idx1-ubyte.gz": "d53e105ee54ea40749a09fcbcd1e9432",
    "t10k-images-idx3-ubyte.gz": "9fb629c4189551a2d022fa330f9573f3",
    "t10k-labels-idx1-ubyte.gz": "ec29112dd5afa0611ce80d1b7f02629c",
}


class Digits(NamedTuple):
    """Images (N, 28, 28), bytes, and their labels (N,)."""

    images: Tensor
    labels: Tensor


def _read(folder: Path, name: str) -> Tensor:
    """One idx file: a header of big-endian sizes, then bytes."""
    file = folder / name
    if not file.is_file():
        raise FileNotFoundError(f"MNIST is incomplete: there is no {name} in {folder}; reinstall neurocoder[lab]")
    packed = file.read_bytes()
    if hashlib.md5(packed).hexdigest() != MD5[name]:
        raise ValueError(f"{file} is damaged: its MD5 is not the published {MD5[name]}; reinstall neurocoder[lab]")
    content = gzip.decompress(packed)
    dimensions = content[3]
    shape = np.frombuffer(content, ">i4", dimensions, offset=4)
    values = np.frombuffer(content, np.uint8, offset=4 + 4 * dimensions)
    return torch.from_numpy(values.reshape(shape.tolist()).copy())


def load(train: bool, folder: Path = FOLDER) -> Digits:
    """The 60,000 training or 10,000 test digits."""
    stem = "train" if train else "t10k"
    images, labels = _read(folder, f"{stem}-images-idx3-ubyte.gz"), _read(folder, f"{stem}-labels-idx1-ubyte.gz")
    return Digits(images, labels.long())
