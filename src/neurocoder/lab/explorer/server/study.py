"""What the layers of a model do with some inputs: the numbers behind the server's page."""

from __future__ import annotations

import contextlib
import math
import threading
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

import neurocoder as nc

from ...networks import eval_mode
from ..page.packaged import encoded
from .inputs import Batch, Inputs, line
from .layer import DIGITS, Layer, coded, rounded_to, to_json

TYPICAL = 12
"""Inputs of a group that are shown."""
NEAREST = 12
"""Inputs with the most similar programs that are shown."""
LABELS = 40
"""Labels that are shown; the most frequent ones."""
ROWS = 60
"""Components of an input that are told one by one; of more, their mean."""
SLOTS = 400
"""Written slots of a growing layer that are told one by one: the most visited ones."""


class BadQuestion(ValueError):
    """A question that has no answer, such as one about a layer that is not there."""


def require_place(name: str, place: int, count: int) -> None:
    """Require a place in a list."""
    if not 0 <= place < count:
        raise BadQuestion(f"{name} must be a whole number from 0 to {count - 1}, got {place}")


class Study:
    """A model, some inputs, and what is to be seen. Calls of the model wait for each other."""

    def __init__(self, model: nn.Module, inputs: Inputs, title: str = "", images: bool = True) -> None:
        self.model, self.inputs, self.title = model, inputs, title or type(model).__name__
        self.lock = threading.RLock()
        named = coded(model)
        if not named:
            raise ValueError(
                "--model has no coded layers: recode it first (nc.recode), or load a checkpoint of a recoded one"
            )
        self.layers = {name: Layer(name, module) for name, module in named.items()}
        self.device = next((tensor.device for tensor in model.parameters()), torch.device("cpu"))
        self.outputs: list[Tensor] = []
        if any(module.has_programs for module in named.values()):
            self._watch()
        self.pictures = self._pictures() if images else None

    def run(self, batch: Batch) -> tuple[nc.Recording, Any]:
        """The programs of one batch, and the model's output."""
        with self.lock, eval_mode(self.model), torch.no_grad(), nc.record(self.model) as trace:
            moved = batch.to(self.device)
            output = self.model(*moved.args, **moved.kwargs)
        return trace, output

    def _watch(self) -> None:
        for batch in self.inputs.batches:
            try:
                trace, output = self.run(batch)
            except Exception as error:  # of the user's own model
                shape = "" if batch.first is None else f" on inputs of shape {tuple(batch.first.shape)}"
                raise ValueError(f"--model fails on --data{shape}: {line(error)}") from None
            if isinstance(output, Tensor) and output.dim() == 2 and len(output) == batch.size and output.shape[1] > 1:
                self.outputs.append(output.detach().float().cpu())  # class scores, by the look of it
            known = {name: layer for name, layer in self.layers.items() if not layer.problem}
            unsure = [name for name, layer in known.items() if layer.unsure(trace.calls(name), batch.size)]
            if unsure:
                with contextlib.suppress(Exception):  # the user's own model may take no single input
                    alone = self.run(self.inputs.one(0))[0]
                    for name in unsure:
                        self.layers[name].probe(alone.calls(name))
            for name, layer in known.items():
                layer.add(trace.calls(name), batch.size)
        for layer in self.layers.values():
            layer.close()

    def _pictures(self) -> Tensor | None:
        """Thumbnails of all inputs (N, h, w, channels)."""
        shown = [batch.first for batch in self.inputs.batches]
        if any(one is None for one in shown) or len({one.shape[1:] for one in shown if one is not None}) > 1:
            return None
        whole = torch.cat([one.detach().cpu().float() for one in shown if one is not None])
        if whole.dim() == 2 and whole.shape[1] < 196:  # rather a table than an image
            return None
        return nc.inspect.thumbnails(whole)

    @cached_property
    def predictions(self) -> list[int | None] | None:
        """The class of each input, if the model has a score for each label; None where scores are not numbers."""
        labels, outputs = self.inputs.labels, self.outputs
        if labels is None or sum(map(len, outputs)) != len(labels) or len({one.shape[1] for one in outputs}) != 1:
            return None
        in_range = int(labels.min()) >= 0 and int(labels.max()) < outputs[0].shape[1]
        scores = torch.cat(outputs)
        said = zip(scores.argmax(1).tolist(), (~scores.isnan().any(1)).tolist(), strict=True)
        return [answer if known else None for answer, known in said] if in_range else None

    @property
    def notes(self) -> list[str]:
        """What the page must say about the data: labels that are not used, inputs that are left out."""
        left = [f"{layer.name or 'the model'}: {layer.note}" for layer in self.layers.values() if layer.note]
        return [*([self.inputs.note] if self.inputs.note else []), *left]

    @cached_property
    def frequent(self) -> list[Any]:
        """The labels that are shown, in order."""
        if self.inputs.labels is None:
            return []
        names, counts = self.inputs.labels.unique(return_counts=True)
        return sorted(names[counts.argsort(descending=True, stable=True)[:LABELS]].tolist())

    @cached_property
    def labelled(self) -> Tensor:
        """Which inputs have each of these labels (L, N)."""
        labels = torch.zeros(0) if self.inputs.labels is None else self.inputs.labels
        return labels == torch.tensor(self.frequent).unsqueeze(1)

    def summary(self) -> dict[str, Any]:
        """What the page shows first."""
        first, pictures = self.inputs.batches[0].first, self.pictures
        if pictures is not None:
            pixels = {"shape": list(pictures.shape[1:]), "data": encoded(pictures.round().byte())}
        return {
            "version": nc.__version__,
            "title": self.title,
            "inputs": self.inputs.total,
            "shape": None if first is None else list(first.shape[1:]),
            "labels": None if self.inputs.labels is None else self.inputs.labels.tolist(),
            "notes": self.notes,
            "says": self.predictions,
            "parameters": nc.count_parameters(self.model),
            "layers": [layer.facts() for layer in self.layers.values()],
            "pictures": None if pictures is None else pixels,
        }

    def find(self, place: int) -> Layer:
        """The layer at this place of the list."""
        require_place("layer", place, len(self.layers))
        return list(self.layers.values())[place]

    def layer(self, place: int) -> dict[str, Any]:
        """Usage, groups and growth of one layer."""
        found = self.find(place)
        if found.problem:
            return {"problem": found.problem}
        with self.lock:
            return {
                "titles": found.titles,
                "usage": self.usage(found),
                "clusters": self.clusters(found),
                "note": found.note,
                **({"growth": self.growth(found)} if found.grows else {}),
            }

    def usage(self, layer: Layer) -> dict[str, Any]:
        """Of each memory: `mean` (P,), and `by_label` (L, P) with the `labels` (L,); zero without a finite program."""
        result: dict[str, Any] = {"mean": layer.usage(layer.finite)}
        if self.frequent:
            rows = [layer.usage(mine) for mine in self.labelled]
            result |= {"labels": self.frequent, "by_label": list(zip(*rows, strict=True))}
        return result

    def clusters(self, layer: Layer) -> dict[str, Any]:
        """Groups of inputs with similar programs, the largest first."""
        found = layer.clusters
        groups = []
        for group in range(len(found.centres)):
            inside = found.groups == group
            one = {"size": int(inside.sum()), "typical": found.typical(group, TYPICAL).tolist()}
            labels = (self.labelled & inside).sum(1).tolist() if self.frequent else []
            groups.append({**one, "usage": layer.usage(inside)[0], "labels": labels})
        return {"silhouette": round(found.silhouette, 3), "groups": groups, "labels": self.frequent}

    def growth(self, layer: Layer) -> dict[str, Any]:
        """When slots were written, and what they serve; slots in order of writing."""
        module: Any = layer.module
        found = nc.inspect.written(module)
        use = torch.where(layer.finite.unsqueeze(1), layer.attention[0], 0.0)[:, found.slots]
        by_label = self.labelled.float() @ use if self.frequent else use[:0]
        by_label = by_label / by_label.sum(0).clamp(min=1e-12)
        shown = found.visits.argsort(descending=True, stable=True)[:SLOTS].sort().values
        slots = []
        for place in shown.tolist():
            mine = use[:, place]
            one = {
                "slot": int(found.slots[place]),
                "born": int(found.born[place]),
                "visits": round(float(found.visits[place]), 1),
                "use": round(float(mine.sum() / layer.finite.sum()), DIGITS),
                "inputs": [i for i in mine.argsort(descending=True, stable=True)[:6].tolist() if mine[i] > 0.05],
            }
            slots.append(one | {"labels": rounded_to(by_label[:, place].tolist(), 4)})
        return {
            "written": len(found.slots),
            "capacity": module.memory.capacity,
            "steps": int(module.memory.steps),
            "born": found.born.tolist(),
            "labels": self.frequent,
            "slots": slots,
        }

    def inspect(self, place: int, index: int, other: int | None = None, way: float = 0.0) -> dict[str, Any]:
        """The program of one input, or on the way from it to another.

        Args:
            place: of the layer in the list.
            index: of the input.
            other: the index of a second one.
            way: from 0 (the first) to 1 (the second).
        """
        layer = self.find(place)
        if layer.problem:
            raise BadQuestion(f"layer {layer.name!r}: {layer.problem}")
        require_place("index", index, self.inputs.total)
        batch = self.inputs.one(index)
        if other is not None:
            require_place("other", other, self.inputs.total)
            batch = self._between(batch, self.inputs.one(other), way)
        try:
            trace, output = self.run(batch)
        except Exception as error:  # of the user's own model
            raise BadQuestion(f"the model fails on this input: {line(error)}") from None
        programs = trace.calls(layer.name)[-1]
        vector = torch.stack([nc.inspect.vectors(one, 1) for one in trace.calls(layer.name)]).mean(0)
        result: dict[str, Any] = {"nearest": [], "group": None, "note": "this program is not finite"}
        if vector.isfinite().all():
            result = {
                "nearest": self._nearest(layer, vector, index if other is None else None),
                "group": int(torch.cdist(vector, layer.clusters.centres).argmin()),
                "note": "",
            }
        if isinstance(output, Tensor) and output.dim() == 2 and output.shape[1] > 1 and len(output) == 1:
            chances = output[0].float().softmax(0)
            top = chances.argsort(descending=True)[:10]
            result["answer"] = [[int(place), rounded_to(float(chances[place]), 4)] for place in top]
        if self.pictures is not None and other is not None:
            pixels = torch.lerp(self.pictures[index], self.pictures[other], way)
            result["picture"] = encoded(pixels.round().byte())
        return result | (self._slots(programs) if layer.grows else self._components(layer, programs))

    def _nearest(self, layer: Layer, vector: Tensor, without: int | None) -> list[Any]:
        """Inputs with the most similar programs, and how far they are."""
        distance = torch.cdist(vector, layer.vectors)[0]
        distance[~layer.finite] = math.inf
        order = distance.argsort(stable=True)[: NEAREST + 1].tolist()
        return [[i, round(float(distance[i]), 4)] for i in order if i != without and layer.finite[i]][:NEAREST]

    def _between(self, first: Batch, second: Batch, way: float) -> Batch:
        """A mixture of two inputs of numbers."""
        a, b = first.first, second.first
        if a is None or b is None or not a.is_floating_point() or a.shape != b.shape:
            raise BadQuestion("there is no way between these inputs: they must be numbers of the same shape")
        others = iter((*second.args, *second.kwargs.values()))

        def mixed(value: Any) -> Any:
            other = next(others)
            tensors = isinstance(value, Tensor) and isinstance(other, Tensor) and value.shape == other.shape
            return torch.lerp(value, other, way) if tensors and value.is_floating_point() else value

        return first.changed(mixed)

    def _components(self, layer: Layer, programs: Any) -> dict[str, Any]:
        """`attention` of each memory (r, P); of kinds that have them, singular values `sigma`, the residual's `gate`,
        the number of `heads`, and a short vector that `decides`. Each is the mean over positions."""
        reads = [values.flatten(0, -3).float().mean(0) for values in programs.reads().values()]
        config, sigma, gate = layer.module.config, getattr(programs, "sigma", None), getattr(programs, "gate", None)
        heads = getattr(config, "heads", 0)
        decides = programs.vectors().flatten(0, -2).float().mean(0) if hasattr(programs, "vectors") else torch.empty(0)
        return {
            "attention": [to_json(values if len(values) <= ROWS else values.mean(0, keepdim=True)) for values in reads],
            "titles": list(layer.titles.values()),
            "sigma": None if sigma is None else to_json(sigma.flatten(0, -2).float().mean(0)),
            "gate": None if gate is None else rounded_to(float(gate.float().mean()), 4),
            "heads": heads if heads * getattr(config, "steps", 0) == len(reads[0]) else None,
            "decides": to_json(decides) if 0 < len(decides) <= ROWS else None,
        }

    def _slots(self, programs: nc.GrowingPrograms) -> dict[str, Any]:
        """The slots that the input uses, the nearest first (of its first position)."""
        slots, share, near, born = (part.flatten(0, -2)[0] for part in programs[:4])
        return {
            "slots": [
                [int(slot), rounded_to(float(w), 4), rounded_to(float(cosine), 4), int(step)]
                for slot, w, cosine, step in zip(slots, share, near, born, strict=True)
                if step >= 0
            ]
        }
