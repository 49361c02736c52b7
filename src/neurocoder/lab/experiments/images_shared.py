"""Images that share a program, as pictures. Records only name them, so the data set has to be at hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ..data import cifar
from ..results import Record
from ..sections import Plot
from .images_classes import TITLES
from .images_observations import unpack
from .images_variants import NETWORKS
from .images_where import LAYERS, Cases

PROGRAMS = 3
"""Of each layer: those that most images share."""
MISSING = (
    "Images that share a program are drawn only where the data set is under NEUROCODER_DATA, in the order in which the "
    "runs read it; here it is not."
)


def pictures(dataset: str, record: Record) -> NDArray[Any] | None:
    """The test images (N, 32, 32, 3) in the order in which the run read them; None if they are not at hand."""
    try:
        images, labels = cifar.load(dataset, train=False)
    except (FileNotFoundError, ValueError):
        return None
    predicted, right = torch.from_numpy(unpack(record.observations["predictions"])), record.observations["right"]
    if len(predicted) != len(labels):
        return None
    found = labels[predicted == labels].bincount(minlength=len(right)).tolist()
    return images.permute(0, 2, 3, 1).numpy() if found == right else None


def shared_plots(found: Cases) -> tuple[list[Plot], list[str]]:
    """A figure for each data set, of the Neurocoder with the first seed; and what to say if one cannot be drawn."""
    plots, missing = [], False
    for dataset, title in TITLES.items():
        panels = {}
        for (its, network), models in found.items():
            for record in models.get("neurocoder", ())[:1] if its == dataset else ():
                if record.config["validation"] or record.config["source"] != "cifar":
                    continue
                if (images := pictures(dataset, record)) is None:
                    missing = True
                    continue
                for layer, programs in record.observations["programs"].items():
                    name = f"{NETWORKS[network]}, {LAYERS[network].get(layer, layer)} layer"
                    panels[name] = [
                        (f"{100 * program['share']:.1f}%", images[program["rows"]])
                        for program in programs["largest"][:PROGRAMS]
                    ]
        if panels:
            caption = (
                f"{title}, Neurocoder, first seed: test images for which a layer composes the same program, one "
                "program in a row, and the percentage of all test images that share it."
            )
            plots.append(Plot(f"{dataset}-shared", caption, partial(draw, panels)))
    return plots, [MISSING] if missing else []


def draw(panels: Mapping[str, Sequence[tuple[str, NDArray[np.uint8]]]]) -> Any:
    """The figure."""
    from ..plots.images import shared_programs  # matplotlib takes long to import

    return shared_programs(panels)
