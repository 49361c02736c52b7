"""Record the explorer's episode again: python -m neurocoder.lab.explorer.record

Trains a small agent on Acrobot, 20 seconds on one core, then plays one episode and writes it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import gymnasium
import torch
import tyro
from torch import Tensor, nn

import neurocoder as nc

from ..experiments.atari.experiment import CARTPOLE
from ..rl import A2C, Agent, evaluate, sample
from ..rl.agent import State
from .page.episode import FILE, Episode, write

NAME = "Acrobot-v1"
PROGRAM = nc.ProgramConfig(
    slots=12, steps=1, heads=3, key_dim=3, least_used=3, hidden=8, orthogonality=0.1, residual=False, sharpness=10.0
)
"""Of the actor and of the critic."""
INPUTS, ACTIONS = 6, 3
SCALE = (2.0, 2.0, 2.0, 2.0, 0.6, 0.3)
"""On cosine and sine of both angles, and on both angular velocities: all are of about the same size then."""


class Direct(Agent):
    """An agent of two layers side by side: actor and critic read the state itself. All it knows is in their slots."""

    scale: Tensor

    def __init__(self) -> None:
        super().__init__((INPUTS,), ACTIONS, INPUTS)
        del self.body
        self.lstm = nn.LSTMCell(1, INPUTS).requires_grad_(False)  # not used: it has the shape of the trainer's state
        self.register_buffer("scale", torch.tensor(SCALE))
        nc.recode(self, ["actor", "critic"], PROGRAM)

    def features(self, observation: Tensor, state: State, keep: Tensor) -> tuple[Tensor, State]:
        """The observation, scaled."""
        return observation.to(self.scale.dtype) * self.scale, state


@dataclass(frozen=True)
class Options:
    """Train an agent on Acrobot and write an episode of it."""

    seed: int = 2
    """Of the training and of the episode."""
    steps: int = 150_000
    """Agent steps of training."""
    episodes: int = 30
    """Episodes that the trained agent plays for its mean score."""
    target: Path = FILE
    """The file to write."""


def train(options: Options) -> tuple[Direct, dict[str, Any]]:
    """An agent, and its facts."""
    settings = replace(
        CARTPOLE, steps=options.steps, width=INPUTS, cores=1, reward_scale=0.1, episodes=options.episodes
    )
    torch.manual_seed(options.seed)
    agent = Direct()
    trainer = A2C(agent, NAME, settings, options.seed)
    trainer.train(lambda trainer: None)
    trainer.close()
    torch.manual_seed(options.seed)
    scores = [episode.score for episode in evaluate(agent, NAME, settings, seed=options.seed + 1)]
    facts = {"score": round(sum(scores) / len(scores), 1), "episodes": len(scores), "seed": options.seed}
    return agent, {**facts, "steps": options.steps, "parameters": nc.count_parameters(agent.actor)["total"]}


@torch.no_grad()
def play(agent: Direct, options: Options, facts: dict[str, Any]) -> Episode:
    """One episode with sampled actions."""
    torch.manual_seed(options.seed)
    environment: Any = gymnasium.make(NAME)
    observation, _ = environment.reset(seed=options.seed)
    state, keep = agent.start(1), torch.ones(1, 1)
    actor: Any = agent.actor  # which `recode` has replaced
    rows: dict[str, list[Any]] = {name: [] for name in Episode._fields if name != "facts"}
    ended = cut = False
    while not ended and not cut:
        first, second, *speeds = environment.unwrapped.state.tolist()
        with nc.record(agent) as trace:
            logits, _, _ = agent(torch.from_numpy(observation).view(1, 1, INPUTS), state, keep)
        action, programs = int(sample(logits)[0, 0]), trace["actor"]
        rows["angles"].append(torch.tensor([first, second]))
        rows["speeds"].append(torch.tensor(speeds))
        rows["actions"].append(torch.tensor(action))
        rows["policy"].append(logits[0, 0].softmax(-1))
        rows["attention"].append(torch.stack([programs.u[0, 0], programs.v[0, 0]]))
        rows["weights"].append(actor.materialize(torch.from_numpy(observation).view(1, INPUTS) * agent.scale)[0])
        observation, _, ended, cut, _ = environment.step(action)
    environment.close()
    return Episode(**{name: torch.stack(values) for name, values in rows.items()}, facts=facts)


def main(options: Options) -> None:
    """Train, play, write."""
    torch.set_num_threads(1)
    agent, facts = train(options)
    episode = play(agent, options, facts)
    write(episode, options.target)
    print(f"Wrote {options.target}: {len(episode.actions)} steps; mean score {facts['score']} over {facts['episodes']}")


if __name__ == "__main__":
    main(tyro.cli(Options))
