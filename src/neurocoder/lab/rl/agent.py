"""The agent: a body for the observation, an LSTM, and two linear heads, the actor and the critic."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

import neurocoder as nc

from ..networks import OneProgram
from .settings import HEADS, Settings

State = tuple[Tensor, Tensor]
"""Of the LSTM: h and c, each (N, width)."""

HYPER = nc.HyperConfig(hidden=384)
"""Adds 0.4M parameters, as in the paper's Table 6."""


def program(settings: Settings) -> nc.ProgramConfig:
    """The paper's P, J, H, K and l_I for Atari (Table 5)."""
    return nc.ProgramConfig(
        slots=80,
        steps=1,
        heads=15,
        key_dim=3,
        least_used=5,
        orthogonality=settings.orthogonality,
        hidden=settings.hidden,
        residual=settings.residual,
        sharpness=settings.sharpness,
    )


def small(channels: int) -> nn.Sequential:
    """The convolutions of Mnih et al. (2016): (N, C, 84, 84) -> (N, 256)."""
    return nn.Sequential(
        nn.Conv2d(channels, 16, 8, 4),
        nn.ReLU(),
        nn.Conv2d(16, 32, 4, 2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32 * 9 * 9, 256),
        nn.ReLU(),
    )


def large(channels: int) -> nn.Sequential:
    """Four convolutions with pooling, (N, C, 84, 84) -> (N, 1024): with an LSTM of 512 and plain heads 3.2M
    parameters, as in the paper's Table 6. The public A3C dgriff777/rl_a3c_pytorch has the same."""
    layers: list[nn.Module] = []
    for filters, size, padding in ((32, 5, 2), (32, 5, 1), (64, 4, 1), (64, 3, 1)):
        layers += [nn.Conv2d(channels, filters, size, padding=padding), nn.MaxPool2d(2), nn.ReLU()]
        channels = filters
    return nn.Sequential(*layers, nn.Flatten())


def orthogonal(body: nn.Sequential, lstm: nn.LSTMCell) -> None:
    """Orthogonal weights and zero biases, so that features keep the size of the pixels.

    With torch's own start they shrink from layer to layer, and gradients are far below the root of RMSProp's epsilon.
    """
    for module, gain in ((body, 2**0.5), (lstm, 1.0)):  # a ReLU halves the mean square
        for name, entry in module.named_parameters():
            if "weight" in name:
                nn.init.orthogonal_(entry, gain)
            else:
                nn.init.zeros_(entry)


def flat(inputs: int) -> nn.Sequential:
    """(N, inputs) -> (N, 64)"""
    return nn.Sequential(nn.Linear(inputs, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh())


class Agent(nn.Module):
    """Policy and value of a sequence of observations.

    Args:
        shape: of an observation: (C, 84, 84) pixels, or (inputs,) numbers.
        actions: how many there are.

    Example:
        >>> agent = rl.Agent((4,), actions=2, width=16)
        >>> logits, values, state = agent(torch.randn(5, 3, 4), agent.start(3), torch.ones(5, 3))
        >>> logits.shape, values.shape
        (torch.Size([5, 3, 2]), torch.Size([5, 3]))
    """

    def __init__(self, shape: tuple[int, ...], actions: int, width: int = 512, body: str = "small") -> None:
        super().__init__()
        if len(shape) == 3:
            self.body = {"small": small, "large": large}[body](shape[0])
            features = {"small": 256, "large": 1024}[body]
        elif len(shape) == 1:
            self.body, features = flat(shape[0]), 64
        else:
            raise ValueError(f"shape must be (channels, 84, 84) or (inputs,), got {shape}")
        self.width, self.pixels = width, len(shape) == 3
        self.lstm = nn.LSTMCell(features, width)
        self.actor: Any = nn.Linear(width, actions)
        self.critic: Any = nn.Linear(width, 1)
        if self.pixels:
            orthogonal(self.body, self.lstm)
        with torch.no_grad():
            self.actor.weight.mul_(0.1)  # the policy starts near uniform
            self.actor.bias.zero_()
            self.critic.bias.zero_()

    def start(self, count: int) -> State:
        """The state at the start of an episode."""
        zeros = self.lstm.weight_hh.new_zeros(count, self.width)
        return zeros, zeros.clone()

    def features(self, observation: Tensor, state: State, keep: Tensor) -> tuple[Tensor, State]:
        """What the heads read.

        Args:
            observation: (T, N, *shape)
            state: before the first step
            keep: (T, N), 0 where an episode starts: there the state is zero

        Returns:
            (T, N, width), and the state after the last step
        """
        x, dtype = observation.flatten(0, 1), self.lstm.weight_hh.dtype
        if self.pixels:  # a copy, and convolutions are a third faster on channels that lie last
            x = x.to(dtype, memory_format=torch.channels_last).div_(255)
        x = self.body(x).unflatten(0, observation.shape[:2])
        found = []
        for one, kept in zip(x.unbind(), keep.unsqueeze(-1).unbind(), strict=True):
            state = self.lstm(one, (state[0] * kept, state[1] * kept))
            found.append(state[0])
        return torch.stack(found), state

    def forward(self, observation: Tensor, state: State, keep: Tensor) -> tuple[Tensor, Tensor, State]:
        """As `features`; returns logits (T, N, actions), values (T, N) and the state."""
        x, state = self.features(observation, state, keep)
        return self.actor(x), self.critic(x).squeeze(-1), state


class Scaled(nn.Linear):
    """A linear layer whose result is multiplied by a fixed scale: `y = s (W x + b)`."""

    scale = 1.0

    def forward(self, x: Tensor) -> Tensor:
        """(..., in_features) -> (..., out_features)"""
        return self.scale * super().forward(x)


def sample(logits: Tensor) -> Tensor:
    """Actions (...) drawn from the policy (..., actions) by the Gumbel-max trick: nothing waits for the device.

    Example:
        >>> rl.sample(torch.zeros(5, 3, 2)).shape
        torch.Size([5, 3])
    """
    noise = torch.empty_like(logits).exponential_().log()
    return (logits - noise).argmax(-1)


def make_agent(shape: tuple[int, ...], actions: int, head: str, settings: Settings) -> Agent:
    """An agent with this kind of heads, on the CPU, from torch's generator.

    Example:
        >>> agent = rl.make_agent((4,), 2, "neurocoder", settings)
        >>> isinstance(agent.actor, nc.Linear)
        True
    """
    if head not in HEADS:
        raise ValueError(f"head must be among {', '.join(HEADS)}, got {head!r}")
    agent = Agent(shape, actions, settings.width, settings.body)
    if head == "hyper":
        nc.recode(agent, ["actor", "critic"], HYPER)
    elif head == "neurocoder":
        nc.recode(agent, ["actor", "critic"], program(settings))
    elif head == "constant":
        nc.recode(agent, ["actor", "critic"], program(settings), control_dim=settings.width)
        agent.actor, agent.critic = OneProgram(agent.actor), OneProgram(agent.critic)
    elif head == "scaled":
        critic = agent.critic
        agent.critic = Scaled(critic.in_features, critic.out_features)
        agent.critic.load_state_dict(critic.state_dict())
        agent.critic.scale = settings.output_scale
    return agent
