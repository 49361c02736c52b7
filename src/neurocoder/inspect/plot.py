"""What programs do, as matplotlib figures: `nc.plot.programs(trace["fc"])` in a notebook.

`programs` shows the attention of each component over the slots, `usage` how much each layer reads its slots, `clusters`
inputs that share programs, `drift` how usage moved over training, `growth` the slots of a growing layer.

Each function returns a figure: a notebook shows it, `figure.savefig("programs.png")` saves it. matplotlib is imported
only when a figure is drawn.
"""

from __future__ import annotations

import functools
import io
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from ..layer.active import Composition
from ..layer.checks import whole
from . import views
from .clusters import clusters as find_clusters
from .style import BLUE, MAP, VERMILION, WIDTH, styled

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["clusters", "drift", "growth", "programs", "usage"]

MAPS = {"u": "Blues", "v": "Oranges", "s": "Greens"}
"""Colour map of each memory, as on the explorer's page."""
MOST_ROWS = 200
"""Inputs or labels that a figure shows one below the other."""
TABLE = 30
"""Groups of inputs are drawn with their usage if there are at most so many bars."""


@functools.cache
def _figure_type() -> Any:
    from matplotlib.figure import Figure

    class Shown(Figure):
        """A figure that a notebook shows, also without pyplot. It has no window and need not be closed."""

        def _repr_png_(self) -> bytes:
            target = io.BytesIO()
            self.savefig(target, format="png", dpi=110)
            return target.getvalue()

    Shown.__name__ = Shown.__qualname__ = "Figure"
    return Shown


def _new(height: float) -> Figure:
    figure: Figure = _figure_type()(figsize=(WIDTH, height), layout="constrained")
    return figure


def _heat(axis: Any, values: Tensor, names: Sequence[Any] = (), cmap: str = MAP, top: float | None = None) -> Any:
    """A matrix (rows, columns) as colours from zero, with names of rows, as many as fit; columns count from 1."""
    rows, columns = values.shape
    limit = top or max(float(values.max()) if values.numel() else 0.0, 1e-12)
    extent = (0.5, columns + 0.5, rows - 0.5, -0.5)
    picture = axis.imshow(values.numpy(), cmap=cmap, vmin=0, vmax=limit, aspect="auto", extent=extent)
    axis.tick_params(length=0)
    axis.spines[:].set_visible(False)
    axis.set_xticks(_ticks(columns))
    step = max(1, math.ceil(len(names) / 24))
    axis.set_yticks(range(0, len(names), step), [str(name) for name in names[::step]])
    return picture


def _bars(axis: Any, values: Tensor, color: str = BLUE, width: float = 0.8) -> None:
    """One for each slot."""
    axis.bar(range(1, len(values) + 1), values.numpy(), color=color, width=width if len(values) < 200 else 1.0)


def _ticks(count: int) -> list[int]:
    """Numbers from 1 on that fit below an axis."""
    step = next(step for step in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, count) if count / step <= 16)
    return [1, *range(step, count + 1, step)] if step > 1 else list(range(1, count + 1))


def _bar(figure: Any, picture: Any, axis: Any, label: str) -> None:
    figure.colorbar(picture, ax=axis, pad=0.01, label=label).outline.set_visible(False)


def _first(programs: Any) -> Any:
    if not views.reads_of(programs)["u"].shape[-1]:
        raise ValueError("programs must be those of a layer with slots, got a layer without any")
    return programs


def _labels(labels: Any) -> Tensor | None:
    """Labels as a tensor (N,)."""
    if labels is None:
        return None
    found = views.as_labels(labels)
    if found.dim() != 1:
        raise ValueError(f"labels must have shape (inputs,), got {tuple(found.shape)}")
    return found


def _fits(programs: Any, argument: str, count: int) -> None:
    """One clear error if there is not one label, or one image, for each input."""
    leading = tuple(programs.reads()["u"].shape[:-2])
    try:
        if count == 1 and max(leading, default=1) > 1 and 1 not in leading:
            raise ValueError("one label for all")
        views.attention(programs, inputs=count)
    except ValueError:
        told = f"the programs have the dimensions {leading}" if len(leading) > 1 else f"{leading[0] if leading else 1}"
        raise ValueError(f"{argument} must have one entry for each input, {told}, got {count}") from None


def _use(programs: Any, memory: str = "u", labels: Tensor | None = None) -> tuple[Tensor, Tensor | None, int]:
    """Of the n inputs with finite programs: how much they read each slot (n, P), their labels; how many others are."""
    if labels is not None:
        _fits(_first(programs), "labels", len(labels))
    values = views.attention(_first(programs), memory, None if labels is None else len(labels))
    kept = values.isfinite().all(1)
    if not kept.any():
        raise ValueError("programs must be finite, got none that are")
    return values[kept], None if labels is None else labels[kept], int((~kept).sum())


@styled
def programs(programs: Composition, input: int | None = None) -> Figure:
    """How programs are composed: attention of each component over the slots of U, V and S, and singular values.

    Args:
        programs: of one layer: `trace["fc"]` or `layer.programs(x)`. Of a growing layer: which slots the inputs use.
        input: the index of one input; None: the mean over all inputs (for a growing layer, a row for each).

    Example:
        >>> layer = nc.Linear(8, 4, program=nc.ProgramConfig(slots=10, steps=2, heads=2))
        >>> figure = nc.plot.programs(layer.programs(torch.randn(32, 8)), input=0)
    """
    reads = {memory: views.by_input(values, 2) for memory, values in _first(programs).reads().items()}
    count, components = reads["u"].shape[:2]
    if input is not None and (whole(input, -count) is None or input >= count):
        raise ValueError(f"input must be a whole number below {count}, the inputs of this call, got {input!r}")
    told = f"mean over {views.many(count, 'input')}" if input is None else f"input {input}"
    if components == 1:
        return _by_input(programs, input, told)
    heats = {memory: values.mean(0) if input is None else values[input] for memory, values in reads.items()}  # (r, P)
    sigma = getattr(programs, "sigma", None)
    figure = _new(min(7.0, 1.3 + 0.16 * max(components, 6)))
    widths = [1.0] * len(heats) + [0.7] * (sigma is not None)
    axes = figure.subplots(1, len(widths), width_ratios=widths)
    top = max(float(heat.max()) for heat in heats.values())
    for axis, (memory, heat) in zip(axes, heats.items(), strict=False):
        column, _, matrix = programs.title(memory).partition(" of ")
        names = range(1, components + 1) if axis is axes[0] else [""] * len(heat)
        picture = _heat(axis, heat, names, MAPS.get(memory, MAP), top)
        axis.set(title=matrix or memory, xlabel=column)
        figure.colorbar(picture, ax=axis, location="bottom", aspect=30, pad=0.02).outline.set_visible(False)
    axes[0].set_ylabel("component, step by step" if "s" in heats else "component")
    if sigma is not None:
        sigma = views.by_input(sigma, 1)  # (N, r)
        sigma = sigma.mean(0) if input is None else sigma[input]
        axes[-1].barh(range(len(sigma)), sigma.numpy(), color="#009E73", height=0.7)
        axes[-1].set(ylim=(len(sigma) - 0.5, -0.5), yticks=[], title="singular values σ")
    what = "Attention over the slots" if "s" in heats else "How much each slot is read"
    figure.suptitle(f"{what}, {told}", fontsize=10)
    return figure


def _by_input(programs: Composition, input: int | None, told: str) -> Figure:
    """Which slots inputs use, in order of writing; inputs that use the same slot are neighbours."""
    use = views.attention(programs)  # (N, P)
    some = use[:: math.ceil(len(use) / MOST_ROWS)]
    use = use[[input]] if input is not None else some[some.argmax(1).argsort(stable=True)]
    figure = _new(1.4 if len(use) == 1 else 3.2)
    axis = figure.subplots()
    _bar(figure, _heat(axis, use), axis, "share")
    title = told if input is not None else f"{views.many(len(use), 'input')}, sorted by the slot they use most"
    axis.set(title=title, xlabel="slot", ylabel="input" if len(use) == 1 else "inputs")
    return figure


@styled
def usage(programs: Composition | Mapping[str, Any], labels: Tensor | None = None, memory: str = "u") -> Figure:
    """How much each slot is read: the mean attention over the inputs, as bars, or a row for each label.

    Args:
        programs: of one layer, or of several by name, such as the whole `trace`.
        labels: of the inputs (N,).
        memory: `"u"`, `"v"` or `"s"`.

    Example:
        >>> model = nc.recode(nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 4)), "*", nc.ProgramConfig(slots=10))
        >>> x, y = torch.randn(32, 8), torch.randint(4, (32,))
        >>> with nc.record(model) as trace:
        ...     _ = model(x)
        >>> figure = nc.plot.usage(trace, labels=y)
    """
    layers = dict(programs) if isinstance(programs, Mapping) else {"": _first(programs)}
    if not layers:
        raise ValueError("programs must have at least one layer, got none: was the model called while recording?")
    labels = _labels(labels)
    found = {name: _use(layer, memory, labels) for name, layer in layers.items()}
    split = {name: views.by_label(use, own) for name, (use, own, _) in found.items() if own is not None}
    most = max((len(names) for names, _ in split.values()), default=0)
    figure = _new(0.5 + len(found) * (1.5 if labels is None else min(4.0, 0.9 + 0.17 * most)))
    axes = figure.subplots(len(found), 1, squeeze=False)[:, 0]
    for axis, (name, (values, _, bad)) in zip(axes, found.items(), strict=True):
        if name in split:
            names, rows = split[name]
            _bar(figure, _heat(axis, rows, names.tolist()), axis, "mean attention")
            axis.set_ylabel("label")
        else:
            _bars(axis, values.mean(0))
            slots = values.shape[1]
            axis.set(xlim=(0.5, slots + 0.5), xticks=_ticks(slots), ylabel="mean attention")
            axis.grid(axis="y")
        column, _, matrix = layers[name].title(memory).partition(" of ")
        of = views.many(values.shape[1], column) + (f" of {matrix}" if matrix else "")
        of += f"; {views.many(bad, 'input')} left out: not finite" if bad else ""
        axis.set_title(f"{name}: {of}" if name else of)
    axes[-1].set_xlabel("slot")
    return figure


@styled
def clusters(
    programs: Composition,
    inputs: Tensor | None = None,
    labels: Tensor | None = None,
    count: int | None = None,
    memory: str = "u",
) -> Figure:
    """Inputs that share programs: a row for each group, with its usage of the slots, labels and typical inputs.

    Args:
        programs: of one layer.
        inputs: images (N, H, W), (N, 1, H, W), (N, 3, H, W), or flat squares (N, H * H): typical ones are shown;
            None: their indices.
        labels: of the inputs (N,).
        count: how many groups; None: as many as are clearest.
        memory: whose slots are shown, `"u"`, `"v"` or `"s"`.

    Example:
        >>> layer = nc.Linear(64, 4, program=nc.ProgramConfig(slots=10))
        >>> images = torch.rand(32, 64)  # of 8 x 8 pixels
        >>> figure = nc.plot.clusters(layer.programs(images), inputs=images, count=2)
    """
    programs = _first(programs)
    labels = _labels(labels)
    sizes = {name: len(given) for name, given in (("labels", labels), ("inputs", inputs)) if given is not None}
    for argument, size in sizes.items():
        _fits(programs, argument, size)
    if len(set(sizes.values())) > 1:
        raise ValueError(f"inputs must be as many as the labels, {sizes['labels']}, got {sizes['inputs']}")
    rows = next(iter(sizes.values()), None)
    points = views.vectors(programs, rows)
    bad = int((~points.isfinite().all(1)).sum())
    if bad:
        raise ValueError(f"programs must be finite, got {views.many(bad, 'input')} of {len(points):,} with others")
    found = find_clusters(points, count)
    use = views.attention(programs, memory, rows)
    pictures = None if inputs is None else views.thumbnails(inputs)
    groups, shown = len(found.centres), 8
    names = [] if labels is None else labels.unique().tolist()
    figure = _new(0.7 + 0.95 * groups)
    widths = [1.3, *([0.9] if names else []), 1.6]
    axes = figure.subplots(groups, len(widths), squeeze=False, width_ratios=widths)
    top = max(float(use[found.groups == group].mean(0).max()) for group in range(groups))
    for group, row in enumerate(axes):
        inside = found.groups == group
        last = group == groups - 1
        _bars(row[0], use[inside].mean(0), width=0.85)
        ticks = _ticks(use.shape[1]) if last else []
        row[0].set(ylim=(0, 1.05 * top or 1), xlim=(0.5, use.shape[1] + 0.5), xticks=ticks)  # 1: no slot is read
        size = int(inside.sum())
        row[0].set_ylabel(f"{size}\n({100 * size / len(use):.0f}%)", rotation=0, ha="right", va="center")
        if labels is not None:
            own = labels[inside]
            row[1].bar(range(len(names)), [int((own == name).sum()) for name in names], color=VERMILION)
            shown_names = names if len(names) <= TABLE else []
            row[1].set_xticks(range(len(shown_names)), shown_names if last else [""] * len(shown_names))
        typical = found.typical(group, shown)
        if pictures is None:
            more = " …" if size > shown else ""
            row[-1].text(0, 0.5, ", ".join(map(str, typical.tolist())) + more, va="center")
            row[-1].set_xlim(0, 1)
        else:
            strip = torch.full((pictures.shape[1], shown * (pictures.shape[2] + 1) - 1, pictures.shape[3]), 255.0)
            for place, index in enumerate(typical.tolist()):
                left = place * (pictures.shape[2] + 1)
                strip[:, left : left + pictures.shape[2]] = pictures[index]
            image = strip.byte().numpy()
            row[-1].imshow(image[..., 0] if image.shape[-1] == 1 else image, cmap="gray", vmin=0, vmax=255)
        row[-1].set_axis_off()
    axes[0][0].set_title("mean attention over the slots")
    if names:
        axes[0][1].set_title("inputs of each label")
    axes[0][-1].set_title("typical inputs" if pictures is not None else "typical inputs, by index")
    clear = "distinct" if found.silhouette >= 0.5 else "weak" if found.silhouette >= 0.25 else "hardly any"
    told = f"{views.many(groups, 'group')} of inputs with similar programs"
    figure.suptitle(f"{told}; silhouette {found.silhouette:.2f}: {clear}")
    return figure


@styled
def drift(usage: Any, steps: Sequence[Any] | None = None, memory: str = "u") -> Figure:
    """How usage moved over training: a row for each moment, and how far it moved since the one before.

    Args:
        usage: mean attention over the slots (T, P), or the `Programs` of one layer at T moments, over the same inputs.
        steps: names of the moments (T,), such as optimiser steps; None: 1, 2, ...
        memory: `"u"`, `"v"` or `"s"`, for programs.

    Example:
        >>> layer, x = nc.Linear(8, 4, program=nc.ProgramConfig(slots=10)), torch.randn(32, 8)
        >>> before = layer.programs(x)  # then train
        >>> figure = nc.plot.drift([before, layer.programs(x)], steps=["before", "after"])
    """
    if usage is None or isinstance(usage, Mapping | Composition):
        raise ValueError(f"usage must be a sequence, one entry for each moment, got {type(usage).__name__}")
    if isinstance(usage, Sequence) and any(isinstance(one, Mapping) for one in usage):
        raise ValueError("usage must be the programs of one layer, such as [before['fc'], after['fc']], got traces")
    if isinstance(usage, Sequence) and usage and isinstance(usage[0], Composition):
        if any(type(one) is not type(usage[0]) for one in usage):
            told = ", ".join(dict.fromkeys(type(one).__name__ for one in usage))
            raise ValueError(f"usage must be of one layer at several moments, got {told}")
        read = [_use(one, memory)[0] for one in usage]
        slots = [values.shape[1] for values in read]
        if not getattr(usage[0], "grows", False) and len(set(slots)) > 1:
            raise ValueError(f"usage must be of one layer at several moments, got layers with {slots} slots")
        usage = pad_sequence([values.mean(0) for values in read], batch_first=True)  # one that grows has more later
    moved = views.drift(usage)
    rows = torch.as_tensor(usage, dtype=torch.float32).detach().cpu()
    names = list(range(1, len(rows) + 1)) if steps is None else list(steps)
    if len(names) != len(rows):
        raise ValueError(f"steps must have one entry for each of the {len(rows)} moments, got {len(names)}")
    figure = _new(min(6.0, 1.6 + 0.2 * len(rows)))
    left, right = figure.subplots(1, 2, width_ratios=[3, 1])
    _bar(figure, _heat(left, rows, names), left, "mean attention")
    left.set(xlabel="slot", ylabel="moment of training")
    right.barh(range(1, len(rows)), moved.numpy(), color=VERMILION, height=0.7)
    right.set(ylim=(len(rows) - 0.5, -0.5), xlim=(0, max(0.05, 1.1 * float(moved.max()) if len(moved) else 0)))
    right.set(yticks=[], title="moved since the row above", xlabel="0: not at all, 1: to other slots")
    return figure


@styled
def growth(layer: Any, programs: Any = None, labels: Tensor | None = None) -> Figure:
    """The slots of a growing layer: when they were written, how much training used them, which labels they serve.

    Args:
        layer: a growing layer.
        programs: of some inputs, to show what slots serve.
        labels: of these inputs (N,).

    Example:
        >>> layer, x = nc.GrowingLinear(8, 4), torch.randn(32, 8)
        >>> figure = nc.plot.growth(layer, layer.programs(x), labels=torch.randint(4, (32,)))
    """
    found = views.written(layer)
    count = len(found.slots)
    if programs is not None:
        if not getattr(programs, "grows", False):
            raise ValueError(f"programs must be those of a growing layer, got {type(programs).__name__}")
        if int(programs.written) != count:
            raise ValueError(
                f"programs must be those of this layer as it is now, with {views.many(count, 'slot')} written, got "
                f"programs with {int(programs.written)}"
            )
    labels = _labels(labels)
    use, own, _ = (None, None, 0) if programs is None else _use(programs, labels=labels)
    served = use is not None and count > 0  # without a slot there is nothing to serve
    figure = _new(4.4 if served else 2.2)
    upper, *lower = figure.subfigures(2 if served else 1, 1, squeeze=False)[:, 0]
    when, visits = upper.subplots(1, 2)
    when.step(found.born.tolist(), range(1, count + 1), where="post", color=BLUE)
    title = f"{count:,} of {layer.memory.capacity:,} slots written"
    when.set(title=title, xlabel="optimiser step", ylabel="slots written")
    when.grid()
    _bars(visits, found.visits, VERMILION, 0.9)
    visits.set(xlabel="slot, in order of writing", ylabel="visits in training")
    visits.grid(axis="y")
    if use is not None and lower:
        use = use[:, found.slots]
        names, rows = (None, use.mean(0, keepdim=True)) if own is None else views.by_label(use, own)
        axis = lower[0].subplots()
        picture = _heat(axis, rows, ["all"] if names is None else names.tolist())
        axis.set(xlabel="slot, in order of writing", ylabel="inputs" if names is None else "label")
        _bar(lower[0], picture, axis, "mean share")
    return figure
