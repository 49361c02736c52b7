"""Scores, learning curves and speed of agents, next to the paper's and to published ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from statistics import median
from typing import Any

import numpy as np

from ...records.record import Record
from ...report.compare import AS_THE_PRESET, Rows, factor_out_shared, label, panel
from ...report.sections import Estimate, Plot, Section, Table
from ...report.tables import Row, estimate, paired, table
from ...rl import HEADS
from ...rl.evaluation import REFERENCES
from ...rl.settings import GAMES
from . import figures

PUBLISHED = {
    "seaquest": (1_326, 1_714, 1_240),
    "mspacman": (851, 1_627, 2_346),
    "frostbite": (198, 262, 1_137),
    "montezuma": (41, 0, 0),
}
"""A3C LSTM (Mnih et al., 2016, human starts), A2C (Schulman et al., 2017), PPO after 10M steps (CleanRL)."""


def split(records: Sequence[Record]) -> dict[str, dict[str, list[Record]]]:
    """By game and heads, in the order of the tables."""
    names = [tuple(record.variant.rsplit("-", 1)) for record in records]
    games = [*GAMES, *sorted({game for game, _ in names} - set(GAMES))]
    by = {
        game: {head: [r for r, name in zip(records, names, strict=True) if name == (game, head)] for head in HEADS}
        for game in games
    }
    return {game: found for game, heads in by.items() if (found := {h: rs for h, rs in heads.items() if rs})}


def title(game: str) -> str:
    """Its name in words."""
    return GAMES.get(game, game).removeprefix("ALE/").removesuffix("-v5")


def sections(records: Sequence[Record], paper: Mapping[str, Any]) -> list[Section]:
    """Scores with learning curves, then speed."""
    by = split(records)
    if not by:
        return []
    text = [
        "Each agent plays 30 whole games after training (all lives, up to 30 random no-ops at the start, sampled "
        "actions, at most 108,000 frames), unless its settings say otherwise. Human-normalised: 0 is random play, 100 "
        "a human. A learning curve shows the mean of the last 100 games played in training. Environments start anew "
        "where a run was interrupted; the record says at which steps.",
    ]
    tables = [scores(by, paper)]
    if any(game in PUBLISHED for game in by):
        tables.append(published(by))
    plot = curves({title(game): heads for game, heads in by.items()})
    return [Section("Scores", text, tables, [plot]), Section("Speed", tables=[speed(by)])]


def compared(rows: Rows) -> list[Plot]:
    """Learning curves of several configurations, each in panels of its own."""
    panels = {
        panel(title(game), label(settings) or AS_THE_PRESET): heads
        for settings, own in factor_out_shared(rows)[1]
        for game, heads in split(own).items()
    }
    return [curves(panels)] if panels else []


def curves(by: Mapping[str, Mapping[str, Sequence[Record]]]) -> Plot:
    """Learning curves by panel and heads."""
    frames = {panel: _frames(next(iter(heads.values()))[0]) for panel, heads in by.items()}
    scores = {panel: {head: [_curve(r) for r in rs] for head, rs in heads.items()} for panel, heads in by.items()}
    caption = "Scores in training: mean and standard deviation over seeds."
    return Plot("atari-curves", caption, partial(figures.learning_curves, scores, frames))


def _frames(record: Record) -> int:
    last = record.history[-1]
    return round(last["frames"] / last["step"])


def _curve(record: Record) -> Any:
    rows = [(e["step"], e["training_score"]) for e in record.history if "training_score" in e and "score" not in e]
    return np.array(rows, dtype=float).reshape(-1, 2)


def claim(paper: Mapping[str, Any], game: str, head: str) -> str | None:
    """What the paper says about it, in words."""
    parts = {name: part for name, part in paper.items() if isinstance(part, Mapping) and "games" in part}
    for name, part in parts.items():
        if title(game) in part["games"]:
            at = f" at {part['steps'] // 1_000_000}M"
            if head == "plain":
                return f"{part['a3c']:,}{at}"
            if name == "hard":
                low, high = part["neurocoder"]
                return f"{part['hypernet']:,}{at}" if head == "hyper" else f"{low:,} to {high:,}{at}"
            return "2/3 of Neurocoder" if head == "hyper" else None
    return None


def scores(by: Mapping[str, Mapping[str, Sequence[Record]]], paper: Mapping[str, Any]) -> Table:
    """The evaluation after training."""
    rows: list[Row] = []
    for game, heads in by.items():
        for head, runs in heads.items():
            only = runs[0].metrics if len(runs) == 1 else None
            rows.append(
                {
                    "game": game,
                    "heads": head,
                    "steps": max(int(run.history[-1]["step"]) for run in runs),
                    "score": estimate(runs, "score", 1),
                    "95% over games": f"{only['score_low']:,.0f} to {only['score_high']:,.0f}" if only else None,
                    "to plain heads": paired(runs, heads.get("plain", ()), "score", 1) if head != "plain" else None,
                    "human-normalised, %": estimate(runs, "human_normalised", 1),
                    "paper": claim(paper, game, head),
                }
            )
    return table("Scores after training", rows, "One value per seed, each the mean over its games.")


def published(by: Mapping[str, Any]) -> Table:
    """What others report."""
    names = ("random", "human", "A3C LSTM", "A2C", "PPO, 10M steps")
    numbers = {game: (*REFERENCES[GAMES[game]], *PUBLISHED[game]) for game in by if game in PUBLISHED}
    rows = ({"game": game} | dict(zip(names, row, strict=True)) for game, row in numbers.items())
    return table("Published scores", rows)


def speed(by: Mapping[str, Mapping[str, Sequence[Record]]]) -> Table:
    """Agent steps a second, with learning: medians over the entries of a run after its first."""
    rows: list[Row] = []
    for game, heads in by.items():
        for head, runs in heads.items():
            rates = [rate for run in runs if (rate := median_rate(run)) is not None]
            rows.append(
                {
                    "game": game,
                    "heads": head,
                    "steps/s": Estimate(rates, 0) if rates else None,
                    "parameters": runs[0].parameters.get("total"),
                    "trainer": runs[0].config["trainer"],
                    "hardware": runs[0].environment.get("hardware", "?"),
                }
            )
    return table("Training", rows)


def median_rate(record: Record) -> float | None:
    """Of a run after its first entry, if it has others."""
    rates = [e["steps_per_second"] for e in record.history if "steps_per_second" in e and "score" not in e]
    return median(rates[1:] or rates) if rates else None
