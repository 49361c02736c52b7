"""Accuracy against numbers stored, for each data set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from matplotlib.figure import Figure

from ...records.record import Record
from ...report import style
from ...report.figures import legend, means
from ...report.sections import Plot, Section
from ...report.tables import estimate, paired, table
from .learners import LEARNERS

TITLES = {"mnist": "Split MNIST", "cifar10": "Split CIFAR-10", "cifar100": "Split CIFAR-100"}
OURS = "local"
"""The learner that the others are compared with."""


def sections(records: Sequence[Record]) -> list[Section]:
    """A section a data set."""
    found = []
    for name, title in TITLES.items():
        runs = {
            learner: own
            for learner in LEARNERS
            if (own := [record for record in records if record.variant == f"{name}-{learner}"])
        }
        if runs:
            found.append(section(name, title, runs))
    return found


def section(name: str, title: str, runs: Mapping[str, Sequence[Record]]) -> Section:
    """One data set's table and figure."""
    rows = (
        {
            "learner": LEARNERS[learner],
            "class": estimate(own, "average_accuracy"),
            "domain": estimate(own, "domain_accuracy"),
            "task known": estimate(own, "task_accuracy"),
            "incremental": estimate(own, "incremental_accuracy"),
            "numbers to learn": own[0].observations["numbers"]["learn"],
            "numbers to answer": own[0].observations["numbers"]["answer"],
            f"class, minus {LEARNERS[OURS]}": None
            if learner == OURS
            else paired(own, runs.get(OURS, []), "average_accuracy"),
        }
        for learner, own in runs.items()
    )
    caption = (
        "Average accuracy in percent after the last task: over all classes; where only the place of the class in its "
        "task counts; and where the task is known. Incremental: the mean over all tasks so far. Numbers that a seed "
        "draws again are not stored."
    )
    draw = Plot(f"{name}-numbers", "Accuracy over all classes against numbers stored to learn.", partial(figure, runs))
    text = ["One pass, each sample once, no replay; the seed orders the samples and the classes."]
    return Section(title, text, [table("Average accuracy", rows, caption)], [draw])


def figure(runs: Mapping[str, Sequence[Record]]) -> Figure:
    """Class accuracy against numbers stored."""
    drawn = style.new_figure(4.2)
    axis = drawn.subplots()
    for index, (learner, own) in enumerate(runs.items()):
        colour = style.BLUE if learner.startswith("local") else style.BLACK
        x = [own[0].observations["numbers"]["learn"]]
        accuracies = [[record.metrics["average_accuracy"] for record in own]]
        means(axis, x, accuracies, fmt="osD^vP*Xhd<"[index % 11], color=colour, label=LEARNERS[learner], capsize=2)
    axis.set(xscale="log", xlabel="numbers stored to learn", ylabel="accuracy over all classes, %")
    legend(drawn, [axis], ncols=4)
    return drawn
