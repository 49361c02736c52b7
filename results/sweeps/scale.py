"""Where the scale of an output layer decides: gain over the plain layer against how far that is from its own best.

`python results/sweeps/scale.py` reads the records and writes docs/results/scale.md and its figure. A setting is a
learning rate, or for polynomials also a scale of y; a moment is a point of its training at a constant rate, so it is
also the end of a shorter one.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path
from statistics import fmean
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from neurocoder.lab.records.files import atomic_write
from neurocoder.lab.report import style
from neurocoder.lab.report.cells import LEGEND
from neurocoder.lab.report.chapter import Picture, draw
from neurocoder.lab.report.figures import legend, panel_figure
from neurocoder.lab.report.markdown import section
from neurocoder.lab.report.sections import Estimate, PairedDifference, Plot, Section, Table
from neurocoder.lab.report.statistics import differences
from neurocoder.lab.report.tables import Row, table

matplotlib.use("agg")
RESULTS = Path(__file__).parents[1]
DOCS = RESULTS.parent / "docs" / "results"
STEM = "scale-gain"
LOOKS = {
    "Neurocoder": (style.GREEN, "o"),
    "one program for all inputs": (style.VERMILION, "s"),
    "wider plain network": (style.PURPLE, "^"),
    "plain, fixed output scale": (style.BLACK, "D"),
}
"""Colour and marker of what is compared with the plain layer."""
Curves = dict[int, list[float]]
"""By seed: the measure after each evaluation; more is better."""
Record = Mapping[str, Any]


def records(name: str) -> Iterator[Record]:
    """Those of `results/NAME.jsonl.gz`; none if there is no such file yet."""
    path = RESULTS / f"{name}.jsonl.gz"
    if path.is_file():
        with gzip.open(path, "rt") as lines:
            yield from map(json.loads, lines)


@dataclass(frozen=True)
class Source:
    """An experiment that was run at several rates or scales."""

    title: str
    measure: str
    files: tuple[str, ...]
    """Records, as in `results/FILE.jsonl.gz`; those that are not there yet are left out."""
    plain: str
    """The variant with the plain layer."""
    others: Mapping[str, str]
    """Variants by their name in the figure."""
    setting: Callable[[Record], tuple[float, ...]]
    words: Callable[[tuple[float, ...]], str]
    """A setting in words."""
    value: Callable[[Record], float | None]
    """The measure of an entry of a history."""
    moments: tuple[float, ...]
    """Shares of a training at which layers are compared, beside the best epoch."""
    counts: Callable[[Record], bool] = lambda record: True
    """Which records count, of files that hold others too."""
    found: dict[tuple[float, ...], dict[str, Curves]] = field(default_factory=dict)
    """By setting and variant."""

    def read(self) -> Source:
        """With the records' curves."""
        wanted = {self.plain, *self.others.values()}
        for record in chain.from_iterable(map(records, self.files)):
            if record["variant"] in wanted and self.counts(record):
                curve = [value for entry in record["history"] if (value := self.value(entry)) is not None]
                models = self.found.setdefault(self.setting(record), {})
                models.setdefault(record["variant"], {})[record["seed"]] = curve
        return self

    def settings(self) -> Iterator[tuple[tuple[float, ...], dict[str, Curves]]]:
        """In order; those without the plain layer have nothing to compare with."""
        return ((key, models) for key, models in sorted(self.found.items()) if self.plain in models)

    @property
    def best(self) -> float:
        """What the plain layer reaches at its best rate and epoch: the largest mean over seeds of their best epochs."""
        return max(fmean(at(models[self.plain], None).values()) for _, models in self.settings())


def at(curves: Curves, moment: float | None) -> dict[int, float]:
    """By seed, the measure at this share of the training; None: at the run's best epoch."""
    return {
        seed: max(curve) if moment is None else curve[max(1, round(moment * len(curve))) - 1]
        for seed, curve in curves.items()
    }


def without_last(name: str) -> Callable[[Record], float | None]:
    """A metric of each epoch; the last entry of these histories repeats the last epoch under another name."""
    return lambda entry: entry[name] if name in entry and "accuracy" not in entry else None


def scaled(record: Record) -> tuple[float, ...]:
    """Scale of y, rate and iterations."""
    config = record["config"]
    return config["scale"], config["rates"]["rate_gru"], config["iterations"]


def rate(record: Record) -> tuple[float, ...]:
    """The learning rate."""
    return (record["config"]["learning_rate"],)


SCALES = Source(
    "polynomials, y times 1 to 1,000",
    "R² in %",
    ("polynomials/large", "scale/polynomials/large"),
    "gru",
    {"Neurocoder": "multi", "one program for all inputs": "multi-constant", "plain, fixed output scale": "gru-scaled"},
    scaled,
    lambda key: f"y times {key[0]:,g}, rate {key[1]:g}, {key[2]:,} iterations",
    lambda entry: 100 * entry["r2"],
    (0.03, 0.05, 0.1, 0.2, 1),
)


def images(dataset: str, network: str, title: str) -> Source:
    """A network on CIFAR-10 or CIFAR-100."""
    name = f"{dataset}-{network}"
    return Source(
        title,
        "validation accuracy in %",
        ("scale/images/paper",),
        f"{name}-original",
        {
            "Neurocoder": f"{name}-neurocoder",
            "one program for all inputs": f"{name}-neurocoder-constant",
            "wider plain network": f"{name}-original-wide",
        },
        rate,
        lambda key: f"rate {key[0]:g}",
        without_last("validation_accuracy"),
        (0.25, 0.5, 1),
    )


def atari(game: str, title: str) -> Source:
    """A game with rewards as they are; the seeds' scores in training."""
    return Source(
        f"{title}, rewards as they are",
        "score in training",
        ("scale/atari/best", "atari/best"),
        f"{game}-plain",
        {
            "Neurocoder": f"{game}-neurocoder",
            "one program for all inputs": f"{game}-constant",
            "plain, fixed output scale": f"{game}-scaled",
        },
        lambda record: (record["config"]["rate"], record["config"]["clip_rewards"]),
        lambda key: f"rate {key[0]:g}, rewards {'clipped' if key[1] else 'as they are'}",
        lambda entry: entry.get("training_score") if "score" not in entry else None,
        (0.25, 0.5, 1),
        # Clipped rewards only tell the plain layer's own best, and `best` had other settings before.
        lambda record: (
            not record["config"]["clip_rewards"]
            or (record["variant"] == f"{game}-plain" and record["config"]["epsilon"] == 1e-16)
        ),
    )


SOURCES = (
    SCALES,
    Source(
        "digits",
        "validation accuracy in %",
        ("scale/digits/small",),
        "linear",
        {"Neurocoder": "P10-H4-J5", "one program for all inputs": "P10-H4-J5-constant"},
        rate,
        lambda key: f"rate {key[0]:g}",
        lambda entry: 100 - entry["error"],
        (0.2, 0.4, 1),
    ),
    images("cifar100", "lenet", "CIFAR-100, LeNet"),
    images("cifar100", "mlp", "CIFAR-100, MLP"),
    images("cifar10", "mlp", "CIFAR-10, MLP"),
    images("cifar100", "densenet", "CIFAR-100, DenseNet"),
    *(
        atari(game, title)
        for game, title in (("seaquest", "Seaquest"), ("mspacman", "MsPacman"), ("frostbite", "Frostbite"))
    ),
)


@style.styled
def gains(sources: tuple[Source, ...]) -> Figure:
    """A panel for each experiment: filled at the best epochs, hollow at the moments of training."""
    figure, axes = panel_figure(len(sources), 2 if len(sources) < 5 else 3, 3.2, 0.9)
    for axis, source in zip(axes, sources, strict=True):
        best, far = source.best, 0.0
        for name, variant in source.others.items():
            colour, marker = LOOKS[name]
            for _, models in source.settings():
                for moment in (*source.moments, None) if variant in models else ():
                    plain, other = at(models[source.plain], moment), at(models[variant], moment)
                    if gained := differences(other, plain):
                        x, filled = best - fmean(plain.values()), moment is None
                        far = max(far, x)
                        axis.plot(
                            x,
                            fmean(gained),
                            marker,
                            color=colour,
                            markerfacecolor=colour if filled else "none",
                            markersize=6 if filled else 4.5,
                            alpha=1 if filled else 0.6,
                            label=name if filled else None,
                        )
        axis.axhline(0, color=style.BLACK, linewidth=0.8)
        axis.set_ylim(axis.get_ylim())  # the dotted line may leave the panel
        axis.plot([0, far], [0, far], color="0.6", linestyle=":", linewidth=1)
        axis.set_title(source.title)
        axis.set_xlabel("how far the plain layer is from its own best", fontsize=8)
        axis.set_ylabel(f"minus plain, {source.measure.removesuffix(' in %')}", fontsize=8)
        axis.grid()
    legend(figure, axes, [name for name in LOOKS if any(name in source.others for source in sources)], ncols=4)
    return figure


def gain_table(source: Source) -> Table:
    """A row for each setting: shortfall and gains at the best epochs, then at the end."""
    rows: list[Row] = []
    for key, models in source.settings():
        row: dict[str, Any] = {"setting": source.words(key)}
        for when, moment in (("best epoch", None), ("end", 1.0)):
            plain = at(models[source.plain], moment)
            row[f"plain, {when}"] = Estimate([*plain.values()], 1)
            row[f"short of its best, {when}"] = f"{source.best - fmean(plain.values()):.1f}"
            for name, variant in source.others.items():
                values = differences(at(models.get(variant, {}), moment), plain)
                row[f"{name} minus plain, {when}"] = PairedDifference(values, 1) if values else None
        rows.append(row)
    caption = f"The plain layer's best, over all rates and epochs: {source.best:.1f}. Differences in points."
    return table(f"{source.title}: {source.measure}", rows, caption)


def scale_table() -> Table:
    """R² of the models of Figure 6 when y is in another unit."""
    models = {"gru": "GRU", "hyper": "HyperNet", "single-3": "single-step", "multi": "multi-step"}
    found: dict[tuple[float, str], dict[int, Curves]] = {}
    for record in records("scale/polynomials/large"):
        scale, _, iterations = scaled(record)
        if iterations == 2_000:
            curves = found.setdefault((scale, record["variant"]), {})
            for entry in record["history"]:
                curves.setdefault(entry["step"], {})[record["seed"]] = [entry["r2"]]
    rows: list[Row] = [
        {
            "y times": f"{scale:,g}",
            "model": words,
            **{
                f"{step:,}": Estimate([c[0] for c in found[scale, model][step].values()], 3)
                for step in (300, 500, 1_000, 2_000)
            },
        }
        for scale in sorted({scale for scale, _ in found})
        for model, words in models.items()
    ]
    return table("R² after so many iterations, by the unit of y", rows, "5 x 10 points, Adam at a constant 1e-3.")


def missing(sources: tuple[Source, ...]) -> str:
    """Which cells have no or fewer seeds than the plain layer."""
    parts = []
    for source in sources:
        for key, models in source.settings():
            for name, variant in source.others.items():
                lacking = len(models[source.plain]) - len(models.get(variant, {}))
                if lacking > 0 and source is not SCALES:
                    parts.append(
                        f"{source.title}, {source.words(key)}, {name}: {lacking} of {len(models[source.plain])} seeds"
                    )
    return f"Not run: {'; '.join(parts)}." if parts else ""


def page(sources: tuple[Source, ...], plot: Plot) -> str:
    """The page, as Markdown."""
    words = [
        "Neurocoder: multi-step (polynomials), P=10 J=5 H=4 (digits), P=30 J=5 H=3 with a gated residual in the output "
        "layer (LeNet) and in all layers (MLP). One program for all inputs: the same layer, steered by ones.",
        *filter(None, [missing(sources)]),
    ]
    parts = [
        Section("Gain against the plain layer's shortfall", words, [gain_table(source) for source in sources], [plot]),
        Section("Polynomials by the unit of y", tables=[scale_table()]),
    ]
    built = f"Built from the records by `python results/sweeps/scale.py`. {LEGEND}"
    shown = {plot.name: Picture(STEM, b"", b"")}
    blocks = [
        "# Where the scale of an output layer decides",
        built,
        *(b for part in parts for b in section(part, shown)),
    ]
    return "\n\n".join(blocks) + "\n"


def plot_of(sources: tuple[Source, ...]) -> Plot:
    """The figure."""
    caption = (
        "What a layer gains over the plain one, against how far the plain one then is from its own best at any rate "
        "and time. A point is a setting: filled at the best epoch of each run, hollow at earlier moments and at the "
        "end. On the dotted line it is level with the plain layer's own best; above, it is better."
    )
    return Plot("gain", caption, partial(gains, sources))


def found() -> tuple[Source, ...]:
    """The experiments that have records."""
    read = [source.read() for source in SOURCES]
    return tuple(source for source in read if any(len(models) > 1 for _, models in source.settings()))


def main() -> None:
    """Write page and figure."""
    sources = found()
    plot = plot_of(sources)
    for path, content in (
        (DOCS / "images" / f"{STEM}.png", draw(plot, STEM).png),
        (DOCS / "scale.md", page(sources, plot).encode()),
    ):
        with atomic_write(path) as temporary:
            temporary.write_bytes(content)
        print(path)


if __name__ == "__main__":
    main()
