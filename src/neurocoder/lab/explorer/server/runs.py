"""How the usage of slots moved over training: from checkpoints of the model, and from records of `neurocoder run`."""

from __future__ import annotations

import copy
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.nn.utils.rnn import pad_sequence

import neurocoder as nc

from ...records import store
from ...records.record import Record
from ...report.compare import flattened
from .inputs import line
from .layer import rounded
from .study import Study, require_place

FILE = "neurocoder.safetensors"
"""What makes a folder a checkpoint of `nc.save`."""
MOST = 30
"""Checkpoints of a run that are read, evenly spaced."""


def natural(path: Path) -> list[Any]:
    """An order in which step-9 is before step-10."""
    return [(part.isdecimal(), int(part) if part.isdecimal() else 0, part) for part in re.split(r"(\d+)", str(path))]


class Runs:
    """The runs under a folder. Records are read at the start, checkpoints when they are asked for."""

    def __init__(self, folder: Path, study: Study) -> None:
        if not folder.is_dir():
            raise ValueError(f"--runs must be a folder with records or checkpoints, got {folder}")
        self.study, self.warnings = study, []  # type: tuple[Study, list[str]]
        groups: dict[Path, list[Path]] = {}
        for file in sorted(folder.rglob(FILE), key=natural):
            groups.setdefault(file.parents[1], []).append(file.parent)
        records = [
            record
            for _, record in store.everything(folder, self.warnings.append)
            if record.observations.get("usage") or record.observations.get("slot_map")
        ]
        self.readers: dict[str, Callable[[], dict[str, Any]]] = {
            f"checkpoints {folder.name if group == folder else group.relative_to(folder)}": partial(self._read, paths)
            for group, paths in groups.items()
            if len(paths) > 1
        }
        self.readers |= {title: partial(of_record, one) for title, one in zip(titles(records), records, strict=True)}
        if not self.readers:
            raise ValueError(
                f"--runs: {folder} has neither several checkpoints of nc.save (folders with {FILE}) nor records with "
                "the usage of slots (neurocoder run split)"
            )
        self._known: dict[int, dict[str, Any]] = {}

    def summary(self) -> list[str]:
        """A title for each run."""
        return list(self.readers)

    def run(self, place: int) -> dict[str, Any]:
        """`panels` of one run: each with `title`, `rows`, `usage` (T, P), how far it `moved` (T - 1,), `width`."""
        require_place("run", place, len(self.readers))
        with self.study.lock:
            if place not in self._known:
                self._known[place] = list(self.readers.values())[place]()
            return self._known[place]

    def _read(self, paths: list[Path]) -> dict[str, Any]:
        """Usage at each checkpoint, over the data of the study."""
        if len(paths) > MOST:
            paths = [paths[round(place * (len(paths) - 1) / (MOST - 1))] for place in range(MOST)]
        names: list[str] = []
        found: dict[str, list[torch.Tensor]] = {}
        problems: list[str] = []
        for path in paths:
            try:
                means = self._usage(path)
            except Exception as error:  # a checkpoint of another model, or a damaged one
                problems.append(f"{path.name} is left out: {line(error)}")
                continue
            names.append(path.name)
            for name, mean in means.items():
                found.setdefault(name, []).append(mean)
        whole = {name: rows for name, rows in found.items() if len(rows) == len(names) > 1}
        return {
            "about": "Usage of each slot over the data of this page, checkpoint by checkpoint.",
            "panels": [panel(name, names, pad_sequence(rows, batch_first=True)) for name, rows in whole.items()],
            "problems": problems,
            "metrics": {},
        }

    def _usage(self, path: Path) -> dict[str, torch.Tensor]:
        """Of a checkpoint, by layer, the mean attention over the slots of U (P,)."""
        batch = self.study.inputs.one(0).to(self.study.device)
        plain = nc.restore(copy.deepcopy(self.study.model), data=batch.kwargs or batch.args)  # load recodes as it was
        layers = Study(nc.load(path, plain), self.study.inputs, images=False).layers
        return {name: layer.attention[0][layer.finite].mean(0) for name, layer in layers.items() if not layer.problem}


def titles(records: Sequence[Record]) -> list[str]:
    """Distinct ones: with the settings in which records of the same name differ, and numbered if these are equal."""
    names = [f"{one.experiment}/{one.preset} {one.variant}, seed {one.seed}" for one in records]
    settings = [flattened(one.config) for one in records]
    found = []
    for name, own in zip(names, settings, strict=True):
        alike = [other for other, its in zip(settings, names, strict=True) if its == name]
        differ = [key for key in sorted(own) if any(other.get(key) != own[key] for other in alike)]
        found.append(", ".join([name, *(f"{key}={own[key]}" for key in differ)]))
    count, seen = Counter(found), Counter[str]()
    for place, name in enumerate(found):
        seen[name] += 1
        found[place] = f"{name} ({seen[name]} of {count[name]})" if count[name] > 1 else name
    return found


def panel(title: str, rows: list[str], usage: torch.Tensor, width: int = 1) -> dict[str, Any]:
    """One layer: usage (T, P) with the names of its rows; a column stands for `width` slots."""
    return {
        "title": title,
        "rows": rows,
        "usage": rounded(usage),
        "moved": rounded(nc.inspect.drift(usage)),
        "width": width,
    }


def of_record(record: Record) -> dict[str, Any]:
    """From a record: usage after training on the data of each task, in the order in which tasks were learned; and, in
    newer records, usage after each task on the data of all."""
    seen: Mapping[str, Any] = record.observations
    panels = []
    for kind, title, moment in (("drift", ", over training, all tasks' data", "after task"), ("usage", "", "task")):
        for name, rows in (seen.get(kind) or {}).items():
            names = [f"{moment} {place}" for place in range(1, len(rows) + 1)]
            panels.append(panel(f"{name}{title}", names, torch.tensor(rows)))
    if told := seen.get("slot_map"):
        written = told["written"]
        names = [f"task {place}: {count} written" for place, count in enumerate(written, 1)]
        panels.append(panel("written slots, in order of writing", names, torch.tensor(told["use"]), told["width"]))
    return {
        "about": "Usage after the last task on the data of each task, in the order in which tasks were learned"
        + ("; before that, usage after each task on the data of all." if seen.get("drift") else "."),
        "panels": panels,
        "problems": [],
        "metrics": {name: value for name, value in record.metrics.items() if value == value},
    }
