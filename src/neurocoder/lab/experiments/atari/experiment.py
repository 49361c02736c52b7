"""Atari games (paper, section 4.2, Figure 7): actor-critic agents whose policy and value are composed from programs.

A variant names game and heads: `seaquest-neurocoder`. `--environment` takes any other gymnasium id instead.
"""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, ClassVar, NamedTuple

import torch

from ...records.checkpoint import Checkpoint
from ...records.environment import version
from ...records.record import Record, plain
from ...report.compare import Rows
from ...report.sections import Plot, Section
from ...report.statistics import summary
from ...rl import A2C, A3C, HEADS, Episode, Settings, evaluate, human_normalised, make, make_agent
from ...rl.agent import Agent
from ...rl.settings import GAMES
from ...train.context import Context, TrainingError
from ..experiment import Experiment
from ..supervised import starting_values
from . import report as atari_sections

RECENT = 100
"""Training episodes over which a learning curve's scores are averaged."""

CARTPOLE = Settings(
    environment="CartPole-v1",
    steps=100_000,
    environments=16,
    width=128,
    rate=4e-3,
    clip=1.0,
    entropy=0.0,
    reward_scale=0.05,
    log_every=5_000,
)
"""Solved in minutes on two cores."""


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


class Atari(Experiment):
    """Agents in Atari games, or in any environment."""

    name: ClassVar[str] = "atari"
    title: ClassVar[str] = "Reinforcement learning: Atari games"
    Config: ClassVar[type] = Settings
    metric: ClassVar[str | None] = "score"
    loops: ClassVar[Sequence[str]] = ("plain", "graph")
    presets: ClassVar[Mapping[str, Settings]] = {
        "quick": CARTPOLE,
        "best": Settings(environments=64, groups=2, rollout=5, rate=3e-4, epsilon=1e-16, correction=True),
        "paper": Settings(
            trainer="a3c", steps=32_000_000, body="large", stack=1, reduce="sum", epsilon=0.1, clip=None, workers=16
        ),
        "smoke": Settings(
            steps=240, environments=4, rollout=10, width=32, log_every=120, episodes=2, frames=400, cores=1
        ),
    }
    seeds: ClassVar[Mapping[str, Sequence[int]]] = {
        "quick": range(1),
        "best": range(3),
        "paper": range(5),
        "smoke": range(1),
    }
    selections: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(("quick", "best", "paper"), "*-plain,*-hyper,*-neurocoder"),
        "smoke": "seaquest-*",
    }
    minutes: ClassVar[Mapping[str, tuple[float, float]]] = {
        "quick": (5, 5),
        "best": (5_000, 300),
        "paper": (200_000, 20_000),
        "smoke": (1, 1),
    }

    def variants(self, config: Settings) -> list[str]:
        return list(variants(config.environment))

    def effective(self, config: Mapping[str, Any], variant: str) -> Mapping[str, Any]:
        """Cores and the folder for agents change no score, nor do the settings of the other trainer and of other heads.
        Records that are older than a setting have what all runs had then."""
        idle = {"cores", "save_agents", "keep"}  # its former name
        idle |= {"a2c": {"workers"}, "a3c": {"environments", "groups"}}[config["trainer"]]
        if not variant.endswith(("-neurocoder", "-constant")):
            idle |= {"hidden", "residual", "sharpness", "orthogonality"}
        if not variant.endswith("-scaled"):
            idle |= {"output_scale"}
        known = {"correction": False, "sharpness": 1.0, "orthogonality": 0.1, **config}
        return {name: value for name, value in known.items() if name not in idle}

    def prepare(self, config: Settings, variants: Sequence[str]) -> None:
        for environment in sorted({parse(variant, config.environment).environment for variant in variants}):
            make(environment, 1, threads=1).close()

    def run(self, context: Context) -> None:
        config: Settings = context.config
        if config.trainer == "a3c" and context.device.type != "cpu":
            raise TrainingError(f"the trainer a3c needs --device cpu, got {context.device.type}")
        variant = parse(context.variant, config.environment)
        agent = build(variant, config, context.seed).to(context.device)
        context.describe(agent)
        trainer = make_trainer(agent, variant, context)
        saved = context.restore(trainer=trainer)
        starts = [*saved["starts"], trainer.steps] if saved else [0]
        log = Curve(context, variant, trainer.steps, saved["recent"] if saved else [], saved["played"] if saved else 0)

        def after(trainer: A2C | A3C) -> None:
            log(trainer)
            if context.should_save:
                context.save(trainer=trainer, starts=starts, recent=list(log.recent), played=log.played)

        try:
            trainer.train(after)
        finally:
            trainer.close()
        # Seeds apart from those of training; evaluation draws from its own random numbers.
        torch.manual_seed(2**31 + context.seed)
        options: Any = {"capture": context.loop == "graph", "autocast": context.autocast}
        episodes = evaluate(agent, variant.environment, config, 2**30 + 1_000 * context.seed, **options)
        now = {"steps": trainer.steps, "frames": frames(variant, trainer.steps)}
        context.log(trainer.steps, **{**results(variant, episodes), **log.last, **now})  # what counts first
        context.observe(
            {
                "environment": variant.environment,
                "episodes": [list(episode[1:]) for episode in episodes],
                "environments_seeded_at": starts,
                "versions": {name: version(name) for name in ("gymnasium", "ale-py")},
            }
        )
        if config.save_agents:
            path = Path(config.save_agents) / f"{context.variant}-seed{context.seed}.checkpoint.safetensors"
            keep(agent, context.variant, context.seed, config, path)

    def sections(self, records: Sequence[Record], paper: Mapping[str, Any]) -> list[Section]:
        return atari_sections.sections(records, paper)

    def compared(self, rows: Rows) -> list[Plot]:
        return atari_sections.compared(rows)


class Curve:
    """The learning curve: logs when `log_every` more steps are taken, and shows progress."""

    def __init__(self, context: Context, variant: Variant, steps: int, recent: Sequence[float], played: int) -> None:
        self._context, self._variant = context, variant
        self.recent = deque(recent, RECENT)
        """The latest scores."""
        self.last: dict[str, Any] = {}
        """The latest entry."""
        self.played = played
        """Episodes since then."""
        self._clock, self._steps = time.monotonic(), steps

    def __call__(self, trainer: A2C | A3C) -> None:
        config: Settings = self._context.config
        ended = trainer.episodes()
        self.played += len(ended)
        self.recent.extend(episode.score for episode in ended)
        now, steps = time.monotonic(), trainer.steps
        self._context.progress(min(steps, config.steps), config.steps, score=self._score)
        if steps // config.log_every > self._steps // config.log_every or steps >= config.steps > self._steps:
            rate = (steps - self._steps) / (now - self._clock)
            self.last = dict(trainer.statistics())
            if not all(abs(value) < float("inf") for value in self.last.values()):
                raise TrainingError(f"the training loss is not finite at step {steps}")
            self.last |= {
                "steps": steps,
                "episodes": self.played,
                "steps_per_second": rate,
                "frames": frames(self._variant, steps),
            }
            if self.recent:
                self.last["training_score"] = fmean(self.recent)
            self._context.log(steps, **self.last)
            self._clock, self._steps, self.played = now, steps, 0

    def _score(self) -> float:
        return fmean(self.recent) if self.recent else float("nan")


def frames(variant: Variant, steps: int) -> int:
    """Frames of the emulator in as many agent steps."""
    return steps * (4 if variant.environment.startswith("ALE/") else 1)


def build(variant: Variant, config: Settings, seed: int) -> Agent:
    """The agent as the seed starts it, on the CPU."""
    environments = make(variant.environment, 1, threads=1, stack=config.stack)
    shape, actions = environments.shape, environments.actions
    environments.close()
    with starting_values(seed):
        return make_agent(shape, actions, variant.head, config)


def make_trainer(agent: Agent, variant: Variant, context: Context) -> A2C | A3C:
    """As the config says."""
    config: Settings = context.config
    if config.trainer == "a3c":
        return A3C(agent, variant.environment, variant.head, config, context.seed)
    capture = context.loop == "graph"
    name, autocast = variant.environment, context.autocast
    return A2C(agent, name, config, context.seed, capture=capture, autocast=autocast)


def results(variant: Variant, episodes: Sequence[Episode]) -> dict[str, Any]:
    """Of the evaluation: mean score, its 95% interval over episodes, and human-normalised."""
    found = summary([episode.score for episode in episodes])
    low, high = found.interval or (found.mean, found.mean)
    metrics = {"score": found.mean, "score_low": low, "score_high": high}
    normalised = human_normalised(variant.environment, found.mean)
    return metrics | ({} if normalised is None else {"human_normalised": normalised})


def keep(agent: Agent, variant: str, seed: int, config: Settings, path: Path) -> None:
    """Write a trained agent as `neurocoder play` reads it."""
    identity = {"variant": variant, "seed": seed, **{f"config.{k}": v for k, v in plain(config).items()}}
    Checkpoint(identity, {}, 0.0, [], {"trainer": {"agent": agent.state_dict()}}).write(path)


def load_agent(path: Path) -> tuple[Agent, Variant, Settings]:
    """The agent of a checkpoint: of an unfinished run, or kept by `--save-agents`."""
    found = Checkpoint.read(path)
    settings = {name.removeprefix("config."): v for name, v in found.identity.items() if name.startswith("config.")}
    settings.pop("keep", None)  # the former name of save_agents
    try:
        config = Settings(**settings)
        variant = parse(found.identity["variant"], config.environment)
        agent = build(variant, config, 0)
        agent.load_state_dict(found.state["trainer"]["agent"])
    except (KeyError, TypeError, RuntimeError) as error:
        raise ValueError(f"checkpoint must be of an agent of this version, got {path}: {error}") from None
    return agent, variant, config
