"""The errors of the digits experiment (Figure 4a), from its records."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from statistics import fmean
from typing import Any, NamedTuple

import torch

import neurocoder as nc

from ..networks.linear import PROJECTED
from ..plots import digits as plots
from ..results import Record
from ..sections import Cell, Ours, Plot, Section, Table
from ..statistics import by_seed, differences, summary
from .digits_variants import BEST, LIMIT, PROGRAMS, VARIANTS, title

CURVES = {
    1: [f"J{steps}" for steps in range(1, 9)],
    3: ["P6-H3-J1", "P6-H3-J5"],
    4: ["P10-H4-J1", "P10-H4-J5"],
}
"""Variants that differ only in J, by H."""


def section(records: Sequence[Record], paper: Mapping[str, Any]) -> Section | None:
    """From any subset of the records of one preset; None if there are none."""
    if not records:
        return None
    text = (gain(records, paper), steps(records), heads(records), count(paper), beside_mlp(records))
    caption = (
        f"{measure(records).capitalize()} against the number of steps J: mean, standard deviation (band) and single "
        "seeds (dots). Besides the paper's configuration (H=1): smaller models with three and four heads."
    )
    draw = partial(plots.error_over_steps, curves(records), levels(records), measure(records))
    return Section(
        title="Error against the number of steps (Figure 4a)",
        text=[paragraph for paragraph in text if paragraph],
        tables=[error_table(records, paper), count_table()],
        plots=[Plot("error", caption, draw)] if curves(records) else [],
    )


def measure(records: Sequence[Record]) -> str:
    """What `error` was measured on."""
    return "validation error" if any(record.config["validation"] for record in records) else "test error"


def errors(records: Sequence[Record], variant: str) -> list[float]:
    """In percent, one per seed."""
    return list(by_seed(records, variant, "error").values())


def mean(records: Sequence[Record], variant: str) -> str:
    """The mean error as text."""
    return f"{fmean(errors(records, variant)):.2f}%"


def parameters(records: Iterable[Record], variant: str) -> int:
    """In total, as counted in the run."""
    return next(record.parameters["total"] for record in records if record.variant == variant)


def error_table(records: Sequence[Record], paper: Mapping[str, Any]) -> Table:
    """A row for each variant."""
    stated = paper.get("parameters", {})
    theirs = {"linear": stated.get("original"), "J5": stated.get("neurocoder")}
    rows: list[list[Cell]] = [
        [
            f"{title(variant)}{' (best)' if variant == BEST else ''}",
            variant,
            parameters(records, variant),
            theirs.get(variant),
            Ours(errors(records, variant)),
            Ours(list(by_seed(records, variant, "train_error").values())),
        ]
        for variant in VARIANTS
        if errors(records, variant)
    ]
    return Table(
        title=f"MNIST, {measure(records)} in percent",
        headings=["model", "variant", "parameters", "paper's parameters", measure(records), "training error"],
        rows=rows,
        caption=(
            "Programs with K=2, l_I=2, a=0.1, no residual. (best): chosen by validation error among those with J=5 and "
            f"at most {LIMIT:,} parameters. The paper prints this experiment's errors in a figure only."
        ),
    )


class Fall(NamedTuple):
    """By how much one variant's error is below another's, over paired seeds."""

    words: str
    clear: bool | None
    """Whether it is lower (True) or higher (False); None if the 95% interval contains zero or there is none."""


def fall(records: Sequence[Record], high: str, low: str) -> Fall | None:
    """From the error of `high` to that of `low`; None if they share no seed."""
    found = differences(by_seed(records, high, "error"), by_seed(records, low, "error"))
    if not found:
        return None
    less = summary(found)
    words = f"{abs(less.mean):.2f} points {'less' if less.mean >= 0 else 'more'}"
    if less.interval is None:
        return Fall(f"{words}, one seed", None)
    start, end = less.interval
    return Fall(f"{words}; 95% interval of the reduction {start:.2f} to {end:.2f}, {less.n} seeds", less.sign)


def paired(records: Sequence[Record], *variants: str) -> list[Record]:
    """The records of the seeds that all these variants have, so that means and differences are of the same runs."""
    shared = set.intersection(*(set(by_seed(records, variant, "error")) for variant in variants))
    return [record for record in records if record.seed in shared]


def gain(records: Sequence[Record], paper: Mapping[str, Any]) -> str | None:
    """The best against the linear classifier."""
    records = paired(records, "linear", BEST)
    found = fall(records, "linear", BEST)
    if found is None:
        return None
    ours = (
        f"{title(BEST)} ({parameters(records, BEST):,} parameters) has a {measure(records)} of {mean(records, BEST)}, "
        f"the linear classifier ({parameters(records, 'linear'):,}) one of {mean(records, 'linear')}: {found.words}."
    )
    if "gain_up_to" not in paper:
        return ours
    return (
        f"{ours} The paper states a gain of up to {paper['gain_up_to']:g}% over a linear classifier whose error it "
        "takes from LeCun et al. (1998) and says it confirmed; it does not print that error."
    )


def steps(records: Sequence[Record]) -> str | None:
    """Whether steps help, at one head and at several."""
    verdicts = {True: "steps help", False: "steps hurt", None: "the difference is not statistically significant"}
    said = []
    for number, (one, five) in {**CURVES, 1: ["J1", "J5"]}.items():
        both = paired(records, one, five)
        found = fall(both, one, five)
        if found is not None:
            values = f"{mean(both, one)} with J=1 and {mean(both, five)} with J=5 ({found.words})"
            said.append(f"At H={number} the error is {values}: {verdicts[found.clear]}.")
    means = {variant: fmean(errors(records, variant)) for variant in CURVES[1] if errors(records, variant)}
    if len(means) > 2:
        lowest = min(means, key=lambda variant: means[variant])
        said.append(f"Over J at H=1 the lowest mean is {means[lowest]:.2f}%, at J={PROGRAMS[lowest].steps}.")
    return " ".join(said) or None


def heads(records: Sequence[Record]) -> str | None:
    """Whether heads can replace steps."""
    records = paired(records, "J5", "P6-H3-J1")
    found = fall(records, "J5", "P6-H3-J1")
    if found is None:
        return None
    verdicts = {True: "heads do more than steps", False: "heads do less than steps", None: "not significant"}
    return (
        f"Heads instead of steps: one step with three heads ({parameters(records, 'P6-H3-J1'):,} parameters) has "
        f"{mean(records, 'P6-H3-J1')}, five steps with one head ({parameters(records, 'J5'):,}) {mean(records, 'J5')} "
        f"({found.words}): {verdicts[found.clear]}."
    )


def beside_mlp(records: Sequence[Record]) -> str | None:
    """The best against an MLP of its size."""
    records = paired(records, BEST, "mlp")
    found = fall(records, BEST, "mlp")
    if found is None:
        return None
    verdicts = {
        True: "At this size a hidden layer is the better use of the parameters; this experiment shows how programs are "
        "composed, not that they are needed here.",
        False: "At this size programs are the better use of the parameters.",
        None: "The difference is not statistically significant.",
    }
    return (
        f"A 200-32-10 MLP on the same projection ({parameters(records, 'mlp'):,} parameters) has "
        f"{mean(records, 'mlp')}, against {mean(records, BEST)} of the best Neurocoder ({found.words}). "
        f"{verdicts[found.clear]}"
    )


PIECES = {
    "slots M_U, M_V, M_S": (("memory.U", "memory.V", "memory.S"), "P (200 + 10 + 1)"),
    "key networks": (("memory.key_",), "K (200 + 10 + 1) + 3 K"),
    "LSTM, from the input": (("controller.input_",), "4 h (200 + 1)"),
    "LSTM, from its state": (("controller.recurrent_",), "4 h h"),
    "queries and gates": (("controller.signal_",), "3 H (K + P) (h + 1)"),
    "bias of the output": (("bias",), "10"),
}
"""Parts of a program layer: how the names of their parameters start, and their number with an LSTM of h."""


def pieces() -> dict[str, int]:
    """Parameters of the paper's configuration, counted in the layer itself."""
    layer = nc.Linear(PROJECTED, 10, program=PROGRAMS["J5"], device=torch.device("meta"))
    return {
        piece: sum(p.numel() for name, p in layer.named_parameters() if name.startswith(starts))
        for piece, (starts, _) in PIECES.items()
    }


def count_table() -> Table:
    """The parameters of the paper's configuration by part."""
    c, found = PROGRAMS["J5"], pieces()
    rows: list[list[Cell]] = [[piece, PIECES[piece][1], number] for piece, number in found.items()]
    sizes = f"P={c.slots}, K={c.key_dim}, H={c.heads}, J={c.steps}, h={c.hidden}"
    return Table(
        title=f"Parameters of the paper's configuration: {sizes}",
        headings=["part", "formula", "parameters"],
        rows=[*rows, ["all", "", sum(found.values())]],
    )


def count(paper: Mapping[str, Any]) -> str | None:
    """The paper's number of parameters, checked."""
    stated = paper.get("parameters", {}).get("neurocoder")
    if stated is None:
        return None
    found = pieces()
    rest = sum(found.values()) - found["slots M_U, M_V, M_S"] - found["bias of the output"]
    return (
        f"The paper states {stated / 1000:.1f}K parameters for the Neurocoder. Its configuration, one head and an LSTM "
        f"of 8, has {sum(found.values()):,} (table below), more than the linear classifier's {LIMIT:,}: the LSTM's "
        f"input weights alone are {found['LSTM, from the input']:,}. Without slots and bias {rest:,} remain, so the "
        f"paper may not have counted these. The curve over J is the paper's configuration; others keep to {LIMIT:,}."
    )


def curves(records: Sequence[Record]) -> dict[str, dict[int, list[float]]]:
    """Errors by label and J."""
    found = {}
    for number, variants in CURVES.items():
        present = [variant for variant in variants if errors(records, variant)]
        if present:
            sizes = sorted(parameters(records, variant) for variant in present)
            ends = dict.fromkeys(f"{size / 1000:.1f}K" for size in (sizes[0], sizes[-1]))
            label = f"Neurocoder, $H={number}$ ({' to '.join(ends)})"
            found[label] = {PROGRAMS[variant].steps: errors(records, variant) for variant in present}
    return found


def levels(records: Sequence[Record]) -> dict[str, list[float]]:
    """Errors of the models without steps, by label."""
    labels = {"linear": "linear classifier", "mlp": "MLP 200-32-10"}
    return {
        f"{label} ({parameters(records, variant) / 1000:.1f}K)": errors(records, variant)
        for variant, label in labels.items()
        if errors(records, variant)
    }
