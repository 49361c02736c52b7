"""Actor-critic agents whose policy and value may be composed from stored programs."""

from .a2c import A2C
from .a3c import A3C
from .agent import Agent, make_agent, sample
from .environments import Environments, Episode, Step, make
from .evaluation import evaluate, human_normalised
from .loss import actor_critic, returns
from .settings import HEADS, Settings

__all__ = [
    "A2C",
    "A3C",
    "HEADS",
    "Agent",
    "Environments",
    "Episode",
    "Settings",
    "Step",
    "actor_critic",
    "evaluate",
    "human_normalised",
    "make",
    "make_agent",
    "returns",
    "sample",
]
