"""The explorer as one file: style, scripts, the demo model and test digits inside the page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

import neurocoder as nc

from ...data import mnist
from ...records.files import atomic_write
from . import episode, learn, picture
from .demo_model import SIDE, Demo
from .packaged import encoded, packed

ASSETS = Path(__file__).parent / "assets"
SCRIPTS = (
    *("equations", "data", "image", "dom", "paint"),
    *("drawing", "picker", "answer", "slots", "attention", "components"),
    *("weights", "why", "tree", "similar", "between"),
    *("learn_layers", "learn_run", "learn", "episode"),
    *("steered", "picture"),
    *("tour", "explorer"),
)
"""In the order in which the page runs them: the equations, tools, one view a file, the whole."""
DIGITS_EACH = 20
"""Test digits of each class on the page: the first ones of the test set."""


def test_digits() -> dict[str, Any]:
    """Images (N, 28, 28) and labels (N,) as bytes, with their places in the test set; sorted by place."""
    digits = mnist.load(False)
    places = torch.cat([(digits.labels == digit).nonzero()[:DIGITS_EACH, 0] for digit in range(10)]).sort().values
    images, labels = encoded(digits.images[places]), encoded(digits.labels[places].byte())
    return {"places": places.tolist(), "images": images, "labels": labels}


def data(demo: Demo) -> dict[str, Any]:
    """What the scripts get from Python."""
    return {
        "version": nc.__version__,
        "side": SIDE,
        "program": demo.layer.config.to_dict(),
        "parameters": nc.count_parameters(demo.layer)["total"],
        "error": demo.facts["error"],
        "tensors": {name: packed(value) for name, value in demo.layer.named_parameters()},
        "average": packed(demo.average),
        "centres": packed(demo.centres),
        "paths": demo.paths.tolist(),
        "digits": test_digits(),
        "learn": learn.data(),
        "episode": episode.data(episode.load()),
        "picture": picture.data(picture.load()),
    }


def page(demo: Demo) -> str:
    """The whole page; the same text for the same model and version."""
    scripts = "\n".join((ASSETS / f"{name}.js").read_text("utf-8") for name in SCRIPTS)
    parts = {
        "/* style */": (ASSETS / "page.css").read_text("utf-8"),
        "/* scripts */": scripts,
        "{ data }": json.dumps(data(demo), sort_keys=True).replace("<", "\\u003c"),
    }
    text = (ASSETS / "page.html").read_text("utf-8")
    for place, content in parts.items():
        before, after = text.split(place)
        text = before + content + after
    return text


def write(demo: Demo, target: Path) -> int:
    """Atomic write; returns the size in bytes."""
    content = page(demo).encode()
    with atomic_write(target) as temporary:
        temporary.write_bytes(content)
    return len(content)
