"""Do the actor's programs matter? `python3 results/sweeps/atari_programs.py AGENT...`, saved by `--save-agents`.

Each agent plays its games three times: with the program of each observation, with the program of another game's
observation, and with the mean program of the games before, which is a plain linear layer.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn

import neurocoder as nc
from neurocoder.lab.experiments.atari.experiment import load_agent
from neurocoder.lab.report.statistics import summary
from neurocoder.lab.rl import evaluate


def alike(attention: Tensor) -> Tensor:
    """Mean cosine between the attention (rows, components, slots) of two components, each less its mean over slots."""
    centred = nn.functional.normalize(attention - attention.mean(-1, keepdim=True), dim=-1)
    pairs = torch.triu_indices(attention.shape[1], attention.shape[1], 1)
    return (centred @ centred.mT)[:, *pairs].mean(-1)


class Watch:
    """Sums over all observations: W_t (in, out), its squared norm, how alike components are in U and V, and how far the
    leading slot of M_U is above the mean; and the sets of leading slots."""

    def __init__(self) -> None:
        self.count, self.total, self.squares = 0, torch.zeros(()), 0.0
        self.alike, self.lead = torch.zeros(2), 0.0
        self.leaders: set[tuple[int, ...]] = set()

    def __call__(self, head: nc.Linear, x: tuple[Tensor], _: Tensor) -> None:
        rows = x[0].flatten(0, -2)
        found, programs = head.materialize(rows), head.programs(rows)
        self.count += len(rows)
        self.total, self.squares = self.total + found.sum(0), self.squares + float(found.square().sum())
        self.alike += torch.stack([alike(programs.u).sum(), alike(programs.v).sum()])
        self.lead += float((programs.u.amax(-1) / programs.u.mean(-1)).mean(-1).sum())
        self.leaders.update(map(tuple, programs.u.argmax(-1).tolist()))

    @property
    def mean(self) -> Tensor:
        return self.total / self.count

    @property
    def varying(self) -> float:
        """Part of the squared norm of W_t that is not in its mean."""
        return 1 - float(self.mean.square().sum()) * self.count / self.squares


class Fixed(nn.Module):
    """`y = x W + bias`, the same W for every observation."""

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        super().__init__()
        self.weight, self.bias = weight, bias

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight + self.bias


class Swapped(nn.Module):
    """Each game's observation is run through the program of the next game's."""

    def __init__(self, head: nc.Linear) -> None:
        super().__init__()
        self.head = head

    def forward(self, x: Tensor) -> Tensor:
        programs = self.head.materialize(x.roll(1, -2))
        return (x.unsqueeze(-2) @ programs).squeeze(-2) + self.head.bias


@torch.no_grad()
def examine(path: Path) -> None:
    """Play and print."""
    agent, variant, settings = load_agent(path)
    if not isinstance(agent.actor, nc.Linear):
        sys.exit(f"error: {path} must be an agent with Neurocoder heads")
    settings, head, watch = replace(settings, cores=1), agent.actor, Watch()

    def score(actor: nn.Module) -> str:
        agent.actor = actor
        torch.manual_seed(0)
        found = summary([episode.score for episode in evaluate(agent, variant.environment, settings, 2**30)])
        low, high = found.interval or (found.mean, found.mean)
        return f"{found.mean:,.0f} ({low:,.0f} to {high:,.0f})"

    hook = head.register_forward_hook(watch)
    own = score(head)
    hook.remove()
    print(f"{path.name.split('.')[0]}: own programs {own}")
    print(f"  {watch.count:,} observations, {len(watch.leaders):,} sets of leading slots")
    u, v = (watch.alike / watch.count).tolist()
    print(f"  cosine between the attention of two components: {u:.2f} (M_U), {v:.2f} (M_V)")
    print(f"  the leading slot of M_U gets {watch.lead / watch.count:.1f} times the mean")
    print(f"  {watch.varying:.1%} of the squared norm of W_t is not in its mean")
    print(f"  another game's programs {score(Swapped(head))}")
    print(f"  mean program {score(Fixed(watch.mean, head.bias))}", flush=True)


if __name__ == "__main__":
    if not sys.argv[1:]:
        sys.exit("error: name one or more agents, as `neurocoder run atari --save-agents FOLDER` saves them")
    torch.set_num_threads(1)
    for name in sys.argv[1:]:
        examine(Path(name))
