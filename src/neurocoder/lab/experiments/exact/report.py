"""Accuracy against numbers stored, for each data set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from matplotlib.figure import Figure

from ...records.record import Record
from ...report import style
from ...report.figures import legend, means
from ...report.sections import Plot, Section, Table
from ...report.tables import estimate, paired, table
from .learners import LEARNERS, OFFLINE_EPOCHS, SIZED, STORING

TITLES = {
    "mnist": "Split MNIST",
    "permuted": "Permuted MNIST",
    "cifar10": "Split CIFAR-10",
    "cifar100": "Split CIFAR-100",
    "clinc150": "CLINC150",
    "banking77": "BANKING77",
}
INPUTS = {
    "mnist": "Five tasks of two digits; images are blurred, centred and of unit length.",
    "permuted": (
        "Ten tasks of all ten digits, each with its own order of the pixels: 100 classes, 10,000 training and 2,000 "
        "test images a task. Domain: the digit alone must be right."
    ),
    "cifar10": "Five tasks of two classes; features of a frozen ResNet-18, standardised over the training images.",
    "cifar100": "Twenty tasks of five classes; features of a frozen ResNet-18, standardised over the training images.",
    "clinc150": "Fifteen tasks of ten intents; sentence features of all-MiniLM-L6-v2, of unit length.",
    "banking77": "Seven tasks of eleven intents; sentence features of all-MiniLM-L6-v2, of unit length.",
}
OURS = "local16"
"""The learner that the others are compared with."""
USUAL = 1_000
"""Features of the presets."""
LOOKS = {
    "local": (style.BLUE, "o-"),
    "local16": (style.SKY, "s-"),
    "rbf": ("black", "D-"),
    "relu": (style.VERMILION, "^-"),
    "fourier": (style.PURPLE, "v-"),
    "randumb": (style.PURPLE, "P--"),
}
"""Colour and line of learners with several sizes; the others are black points."""
Runs = Mapping[str, Mapping[int | None, Sequence[Record]]]
"""Records by learner and number of features that the variant names; None: the usual one."""


def sections(records: Sequence[Record]) -> list[Section]:
    """A section a data set, then published figures."""
    found = []
    for name, title in TITLES.items():
        own = [record for record in records if record.variant.startswith(f"{name}-")]
        if own:
            found.append(section(name, title, by_learner(own)))
    return [*found, published()] if found else []


def by_learner(records: Sequence[Record]) -> Runs:
    """Records of one data set."""
    found: dict[str, dict[int | None, list[Record]]] = {}
    for record in records:
        learner, _, size = record.variant.partition("-")[2].rpartition("-")
        if not size.isdigit():
            learner, size = record.variant.partition("-")[2], ""
        found.setdefault(learner, {}).setdefault(int(size) if size else None, []).append(record)
    return {learner: found[learner] for learner in LEARNERS if learner in found}


def section(name: str, title: str, runs: Runs) -> Section:
    """One data set's tables and figure."""
    usual = {learner: sizes[None] for learner, sizes in runs.items() if None in sizes}
    ours = usual.get(OURS, [])
    rows = (
        {
            "learner": LEARNERS[learner],
            "class": estimate(own, "average_accuracy", highest=100),
            f"class, {LEARNERS[OURS]} minus it": None if learner == OURS else paired(ours, own, "average_accuracy"),
            "domain": estimate(own, "domain_accuracy", highest=100),
            "task known": estimate(own, "task_accuracy", highest=100),
            "incremental": estimate(own, "incremental_accuracy", highest=100),
            "numbers to learn": own[0].observations["numbers"]["learn"],
            "to answer": own[0].observations["numbers"]["answer"],
        }
        for learner, own in usual.items()
    )
    caption = (
        "Average accuracy in percent after the last task: over all classes; where only the place of the class in its "
        "task counts; and where the task is known. Incremental: the mean over all tasks so far. Numbers that a seed "
        "draws again are not stored; of a symmetric matrix, half is; a basis counts as the 128 inputs that fixed it "
        "where these are fewer. Learners that store samples store as many numbers as local programs of rank 32; all "
        f"samples at once: {OFFLINE_EPOCHS} epochs over those of all tasks so far, a bound for the MLP. Intervals are "
        "over seeds, not over other test samples."
    )
    tables = [table("Average accuracy", rows, caption)]
    named = sorted({size for sizes in runs.values() for size in sizes if size is not None})
    if named:
        shown = [learner for learner in SIZED if learner in runs]
        by_size = (
            {"features": size or USUAL}
            | {
                LEARNERS[learner]: estimate(runs[learner].get(size, []), "average_accuracy", highest=100)
                for learner in shown
            }
            for size in sorted({size for learner in shown for size in runs[learner]}, key=lambda size: size or USUAL)
        )
        tables.append(table("Class accuracy by number of features", by_size, "Besides the input, where it is one."))
    more = (
        {
            "learner": LEARNERS[learner],
            "samples stored": size,
            "class": estimate(own, "average_accuracy", highest=100),
            f"class, {LEARNERS[OURS]} minus it": paired(ours, own, "average_accuracy"),
            "numbers to learn": own[0].observations["numbers"]["learn"],
        }
        for learner in STORING
        for size, own in sorted(item for item in runs.get(learner, {}).items() if item[0] is not None)
    )
    tables += [made for made in [table("More samples stored", more)] if made.rows]
    draw = Plot(
        f"{name}-numbers",
        f"{title}: error over all classes against numbers stored; less is better.",
        partial(figure, runs),
    )
    text = [f"{INPUTS[name]} One pass, each sample once; the seed orders samples and classes, and draws the features."]
    return Section(title, text, tables, [draw])


def figure(runs: Runs) -> Figure:
    """Error over all classes against numbers stored to learn, and to answer."""
    drawn = style.new_figure(5.2)
    axes = drawn.subplots(1, 2, sharey=True)
    markers = iter("X*hv<>pH+1x2")
    for learner, sizes in runs.items():
        colour, line = LOOKS.get(learner) or ("black", next(markers))
        groups = sorted(sizes.values(), key=lambda own: own[0].observations["numbers"]["learn"])
        errors = [[100 - record.metrics["average_accuracy"] for record in own] for own in groups]
        for axis, what in zip(axes, ("learn", "answer"), strict=True):
            x = [own[0].observations["numbers"][what] for own in groups]
            means(axis, x, errors, 0.1, fmt=line, color=colour, label=LEARNERS[learner], capsize=2, markersize=5)
    axes[0].set(xscale="log", yscale="log", xlabel="numbers stored to learn", ylabel="error over all classes, %")
    axes[0].yaxis.set_major_formatter("{x:g}")
    axes[0].yaxis.set_minor_formatter("{x:g}")
    axes[1].set(xscale="log", xlabel="numbers stored to answer")
    legend(drawn, [axes[0]], ncols=3)
    return drawn


def published() -> Section:
    """What the authors report, with their protocols; ours is another."""
    headings = ("CIFAR-100", "accuracy, %", "protocol")
    base = "average incremental accuracy; ResNet-32 trained on 50 classes, then 25 phases of 2"
    rows = (
        ("ACIL (Zhuang et al., 2022)", 63.4, base),
        ("GKEAL (Zhuang et al., 2023)", 62.3, base),
        ("DS-AL (Zhuang et al., 2024)", 64.0, base),
        (
            "RanPAC (McDonnell et al., 2023)",
            75.5,
            "after the last task; frozen ResNet-50",
        ),
    )
    text = ["Backbones and protocols differ from ours: the figures are not to be compared with ours."]
    return Section("Published figures", text, [Table("As their authors report them", headings, rows)])
