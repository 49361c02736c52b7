"""Evaluation as the field does it: up to 30 no-ops, sampled actions, raw scores of whole games."""

from __future__ import annotations

from contextlib import nullcontext

from .agent import Agent
from .environments import Episode, make_for
from .rollout import Autocast, Rollout
from .settings import Settings

REFERENCES = {
    "ALE/Seaquest-v5": (68.4, 42_054.7),
    "ALE/MsPacman-v5": (307.3, 6_951.6),
    "ALE/Frostbite-v5": (65.2, 4_334.7),
    "ALE/MontezumaRevenge-v5": (0.0, 4_753.3),
}
"""Scores of random play and of a human, after Wang et al. (2016)."""


def human_normalised(name: str, score: float) -> float | None:
    """In percent: 0 is random play, 100 the human; None where they are not known.

    Example:
        >>> round(rl.human_normalised("ALE/MsPacman-v5", 3629.45))
        50
    """
    if name not in REFERENCES:
        return None
    random, human = REFERENCES[name]
    return 100 * (score - random) / (human - random)


def evaluate(
    agent: Agent, name: str, settings: Settings, seed: int, *, capture: bool = False, autocast: Autocast = nullcontext
) -> list[Episode]:
    """One episode in each of `settings.episodes` environments: the first ones to end of fewer would be the short ones.

    Draws from torch's generator; `capture` and `autocast` as in `A2C`.

    Example:
        >>> agent = rl.make_agent((4,), 2, "plain", settings)
        >>> len(rl.evaluate(agent, "CartPole-v1", settings, seed=0))
        2
    """
    environments = make_for(settings, name, settings.episodes, settings.cores)
    rollout = Rollout(agent, environments, settings, capture=capture, autocast=autocast)
    rollout.begin(seed)
    found: dict[int, Episode] = {}
    while len(found) < environments.count:
        if rollout.receive():
            rollout.start_next()
        rollout.act()
        for episode in environments.finished():
            found.setdefault(episode.environment, episode)
    rollout.close()
    return [found[place] for place in sorted(found)]
