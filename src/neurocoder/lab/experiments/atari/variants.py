"""The variants of the Atari experiment: a game, or the environment asked for, and the kind of heads."""

from __future__ import annotations

import re
from typing import NamedTuple

from ...rl import HEADS

GAMES = {
    "seaquest": "ALE/Seaquest-v5",
    "mspacman": "ALE/MsPacman-v5",
    "frostbite": "ALE/Frostbite-v5",
    "montezuma": "ALE/MontezumaRevenge-v5",
}
"""The paper's games, by the name in a variant."""


class Variant(NamedTuple):
    """One of them."""

    game: str
    environment: str
    """Its gymnasium id."""
    head: str


def games(environment: str | None) -> dict[str, str]:
    """The id of each game: the paper's, or the one asked for (CartPole-v1 is named cartpole)."""
    if environment is None:
        return GAMES
    name = re.sub(r"-v\d+$", "", re.split(r"[/:]", environment)[-1])
    name = re.sub(r"[^a-z0-9.]+", "", name.lower())
    if not name:
        raise ValueError(f"environment must be a gymnasium id, got {environment!r}")
    return {next((short for short, known in GAMES.items() if known == environment), name): environment}


def variants(environment: str | None) -> dict[str, Variant]:
    """By name, in the order of the tables."""
    found = [Variant(game, name, head) for game, name in games(environment).items() for head in HEADS]
    return {f"{variant.game}-{variant.head}": variant for variant in found}


def parse(name: str, environment: str | None) -> Variant:
    """The variant of this name."""
    known = variants(environment)
    if name not in known:
        raise ValueError(f"variant must be GAME-HEAD, one of {', '.join(known)}, got {name!r}")
    return known[name]
