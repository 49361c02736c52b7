"""Scores, learning curves and speed of agents, next to the paper's and to published ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ...records.record import Record
from ...report.compare import AS_THE_PRESET, Rows, factor_out_shared, label, panel
from ...report.sections import Cell, Estimate, PairedDifference, Plot, Section, Table
from ...report.statistics import differences
from ...rl import HEADS
from ...rl.evaluation import REFERENCES
from ...rl.settings import GAMES

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
    return [Section("Scores", text, tables, [curves(by)]), Section("Speed", tables=[speed(by)])]


def compared(rows: Rows) -> list[Plot]:
    """Learning curves of several configurations, each in panels of its own."""
    panels = {
        panel(game, label(settings) or AS_THE_PRESET): heads
        for settings, own in factor_out_shared(rows)[1]
        for game, heads in split(own).items()
    }
    return [curves(panels)] if panels else []


def curves(by: Mapping[str, Mapping[str, Sequence[Record]]]) -> Plot:
    """Learning curves by panel and heads."""
    frames = {panel: _frames(next(iter(heads.values()))[0]) for panel, heads in by.items()}
    found = {panel: {head: [_curve(r) for r in rs] for head, rs in heads.items()} for panel, heads in by.items()}

    def draw() -> Any:
        from .figures import learning_curves  # matplotlib takes long to import

        return learning_curves(found, frames)

    return Plot("atari-curves", "Scores in training: mean and standard deviation over seeds.", draw)


def _frames(record: Record) -> int:
    last = record.history[-1]
    return round(last["frames"] / last["step"])


def _curve(record: Record) -> Any:
    rows = [(e["step"], e["training_score"]) for e in record.history if "training_score" in e and "score" not in e]
    return np.array(rows, dtype=float).reshape(-1, 2)


def claim(paper: Mapping[str, Any], game: str, head: str) -> str | None:
    """What the paper says about it, in words."""
    parts = {name: part for name, part in paper.items() if isinstance(part, Mapping) and "games" in part}
    title = GAMES.get(game, "").removeprefix("ALE/").removesuffix("-v5")
    for name, part in parts.items():
        if title in part["games"]:
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
    rows: list[list[Cell]] = []
    for game, heads in by.items():
        each = {head: {r.seed: r.metrics["score"] for r in records} for head, records in heads.items()}
        for head, records in heads.items():
            paired = differences(each[head], each.get("plain", {})) if head != "plain" else []
            normalised = [r.metrics["human_normalised"] for r in records if "human_normalised" in r.metrics]
            interval = None
            if len(records) == 1:
                interval = f"{records[0].metrics['score_low']:,.0f} to {records[0].metrics['score_high']:,.0f}"
            steps = max(int(record.history[-1]["step"]) for record in records)
            cells = [
                Estimate(list(each[head].values()), 1),
                interval,
                PairedDifference(paired, 1) if paired else None,
                Estimate(normalised, 1) if normalised else None,
            ]
            rows.append([game, head, steps, *cells, claim(paper, game, head)])
    headings = ["game", "heads", "steps", "score", "95% over games", "to plain heads", "human-normalised, %", "paper"]
    return Table("Scores after training", headings, rows, "One value per seed, each the mean over its games.")


def published(by: Mapping[str, Any]) -> Table:
    """What others report."""
    rows: list[list[Cell]] = []
    for game in (game for game in by if game in PUBLISHED):
        random, human = REFERENCES[GAMES[game]]
        rows.append([game, random, human, *PUBLISHED[game]])
    return Table("Published scores", ["game", "random", "human", "A3C LSTM", "A2C", "PPO, 10M steps"], rows)


def speed(by: Mapping[str, Mapping[str, Sequence[Record]]]) -> Table:
    """Agent steps a second, with learning: medians over the entries of a run after its first."""
    rows: list[list[Cell]] = []
    for game, heads in by.items():
        for head, records in heads.items():
            rates = []
            for record in records:
                found = [e["steps_per_second"] for e in record.history if "steps_per_second" in e and "score" not in e]
                rates += [float(np.median(found[1:] or found))] if found else []
            where = records[0].environment.get("hardware", "?")
            total = records[0].parameters.get("total")
            rows.append([game, head, Estimate(rates, 0) if rates else None, total, records[0].config["trainer"], where])
    return Table("Training", ["game", "heads", "steps/s", "parameters", "trainer", "hardware"], rows)
