"""What the page's "Watch it learn" gets from Python: a small Split MNIST, and the settings of both networks.

Training and evaluation happen in the browser; nothing here is a result.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d

import neurocoder as nc

from ...data import mnist
from .demo_model import SIDE
from .packaged import encoded

TASKS = ((0, 1), (2, 3), (4, 5), (6, 7), (8, 9))
TRAIN_EACH, TEST_EACH = 200, 100
"""Images of each digit: the first ones of the training set and of the test set."""
LEVELS = 16
"""Of grey: four bits a pixel."""
BATCH, EPOCHS, RATE = 16, 4, 0.01
"""Adagrad's rate, and four epochs a task, as in the experiment `split`; its batches are larger."""
HIDDEN = 128
"""Units of the plain network's hidden layer."""
STEPS = len(TASKS) * EPOCHS * 2 * TRAIN_EACH // BATCH
GROWING = nc.GrowingConfig(
    slots=STEPS, max_slots=STEPS, rank=2, max_similarity=0.9, residual=False, count="inputs", consolidation=30.0
)
"""There is room for a slot at each step. The similarity was chosen on other training images."""


class Digits(NamedTuple):
    """Images of all digits, sorted by digit."""

    levels: Tensor
    """Means of 2 x 2 pixels, from 0 to `LEVELS` - 1 (N, SIDE * SIDE)."""
    labels: Tensor
    """(N,)"""


@cache
def digits(train: bool) -> Digits:
    """The images of the run."""
    found, each = mnist.load(train), TRAIN_EACH if train else TEST_EACH
    places = torch.cat([(found.labels == digit).nonzero()[:each, 0] for digit in range(10)])
    means = avg_pool2d(found.images[places].unsqueeze(1).float(), 2).flatten(1)
    return Digits((means * (LEVELS - 1) / 255).round().to(torch.uint8), found.labels[places])


def packed(levels: Tensor) -> str:
    """Two pixels to a byte, the first one in the upper four bits; base64."""
    pairs = levels.view(-1, 2)
    return encoded(pairs[:, 0] * LEVELS + pairs[:, 1])


def data() -> dict[str, Any]:
    """For the scripts."""
    return {
        "side": SIDE,
        "tasks": [list(task) for task in TASKS],
        "each": {"train": TRAIN_EACH, "test": TEST_EACH},
        "train": packed(digits(True).levels),
        "test": packed(digits(False).levels),
        "settings": {"batch": BATCH, "epochs": EPOCHS, "rate": RATE, "hidden": HIDDEN},
        "growing": GROWING.to_dict(),
    }
