"""Images that share a program, as pictures. Records only name them, so the data set has to be at hand."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from numpy.typing import NDArray

from ...data import cifar
from ...records.record import Record
from ...report.sections import Plot, UndrawableError
from .classes import TITLES
from .models import NETWORKS
from .observations import unpack
from .report_programs import LAYERS, Cases

PROGRAMS = 3
"""Of each layer: those that most images share."""


def pictures(dataset: str, record: Record) -> NDArray[Any]:
    """The test images (N, 32, 32, 3) in the order in which the run read them."""
    try:
        images, labels = cifar.load(dataset, train=False)
    except (OSError, ValueError) as error:
        raise UndrawableError(str(error)) from None
    predicted, right = torch.from_numpy(unpack(record.observations["predictions"])), record.observations["right"]
    same = len(predicted) == len(labels)
    if not same or labels[predicted == labels].bincount(minlength=len(right)).tolist() != right:
        raise UndrawableError(f"the test images of {TITLES[dataset]} are not in the order in which the runs read them")
    return images.permute(0, 2, 3, 1).numpy()


def shared_plots(found: Cases) -> list[Plot]:
    """A figure for each data set, of the Neurocoder with the first seed."""
    plots = []
    for dataset, title in TITLES.items():
        first = {
            network: models["neurocoder"][0]
            for (its, network), models in found.items()
            if its == dataset and "neurocoder" in models
        }
        runs = {
            network: record
            for network, record in first.items()
            if record.config["source"] == "cifar" and not record.config["validation"]
        }
        if runs:
            caption = (
                f"{title}, Neurocoder, first seed: test images for which the same slots lead in every component of a "
                "layer, one such program in a row, and the percentage of all test images that share it."
            )
            plots.append(Plot(f"{dataset}-shared", caption, partial(draw, dataset, runs)))
    return plots


def draw(dataset: str, runs: Mapping[str, Record]) -> Any:
    """A panel for each layer of each network."""
    from .figures import shared_programs  # matplotlib takes long to import

    panels = {}
    for network, record in runs.items():
        images = pictures(dataset, record)
        for layer, programs in record.observations["programs"].items():
            largest = programs["largest"][:PROGRAMS]
            rows = [(f"{100 * program['share']:.1f}%", images[program["rows"]]) for program in largest]
            panels[f"{NETWORKS[network]}, {LAYERS[network].get(layer, layer)} layer"] = rows
    return shared_programs(panels)
