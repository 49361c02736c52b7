"""Rollouts of a batch of environments: buffers on the device, the act step that fills them, the loss on them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

import neurocoder as nc

from ..train.capture import Captured
from .agent import Agent, sample
from .environments import Environments
from .loss import Terms, actor_critic
from .settings import Settings

Autocast = Callable[[], AbstractContextManager[object]]


class Rollout:
    """The last `T = settings.rollout` steps of N environments, from `receive` to `receive`.

        rollout.begin(seed)
        while True:
            if rollout.receive():    # the buffers are full: learn
                loss = rollout.loss()
                ...
                rollout.start_next()
            rollout.act()

    On a GPU, `act` is one graph, and the host waits only for the actions; the emulators run until `receive`.
    """

    def __init__(
        self,
        agent: Agent,
        environments: Environments,
        settings: Settings,
        *,
        capture: bool = False,
        autocast: Autocast = nullcontext,
    ) -> None:
        self.agent, self.environments, self.settings, self._autocast = agent, environments, settings, autocast
        weight = agent.lstm.weight_hh
        device, count, length = weight.device, environments.count, settings.rollout
        self.count, self.length, self._gpu = count, length, device.type == "cuda"
        seen = torch.uint8 if agent.pixels else weight.dtype
        self.observation = torch.zeros(length + 1, count, *environments.shape, dtype=seen, device=device)
        self.numbers = weight.new_zeros(length + 1, 3, count).detach()
        """Reward, done and mask of the step before each observation; the first row's mask is 1."""
        self.numbers[0, 2] = 1
        self.action = torch.zeros(length, count, dtype=torch.int64, device=device)
        self.first, self.state = agent.start(count), agent.start(count)
        """The LSTM's state before the first observation, and before the next."""
        self._chosen = torch.zeros(count, dtype=torch.int64, device=device)
        self._at = torch.zeros(1, dtype=torch.int64, device=device)
        self._host = [
            torch.zeros(shape, dtype=dtype, pin_memory=self._gpu)
            for shape, dtype in (
                ((count, *environments.shape), seen),
                ((3, count), weight.dtype),
                ((count,), torch.int64),
            )
        ]
        self._ready = torch.cuda.Event() if self._gpu else None
        self._row, self._sent = 0, False
        self._captured = Captured(device, capture)

    def begin(self, seed: int) -> None:
        """Start new episodes."""
        self._host[0].copy_(torch.from_numpy(self.environments.reset(seed)))
        self.observation[0].copy_(self._host[0])
        for tensor in (*self.first, *self.state, self._at):
            tensor.zero_()
        self._row, self._sent = 0, False

    def act(self) -> None:
        """Choose actions for the current observations and send them."""
        self._captured(self._choose_actions)
        if self._ready is not None:
            self._host[2].copy_(self._chosen, non_blocking=True)
            self._ready.record()
            self._ready.synchronize()
        self.environments.send((self._host[2] if self._gpu else self._chosen).numpy())
        self._sent = True

    def receive(self) -> bool:
        """Wait for the environments and store what they return; returns whether the rollout is full. The transfers to
        a GPU are not waited for: the next `act` does that before the host's buffers are written again."""
        if not self._sent:
            return False
        step, self._sent = self.environments.receive(), False
        observation, numbers, _ = self._host
        observation.copy_(torch.from_numpy(step.observation))
        for target, source in zip(numbers, step[1:], strict=True):
            target.copy_(torch.from_numpy(source))
        self.observation[self._row + 1].copy_(observation, non_blocking=True)
        self.numbers[self._row + 1].copy_(numbers, non_blocking=True)
        self._row = (self._row + 1) % self.length
        return self._row == 0

    @torch.no_grad()
    def _choose_actions(self) -> None:
        """The act step on the row that `_at` names; all on the device."""
        observation = self.observation.index_select(0, self._at)
        keep = self.numbers.index_select(0, self._at)[:, 2]
        with self._autocast():
            x, state = self.agent.features(observation, self.state, keep)
            logits = self.agent.actor(x)
        action = sample(logits.to(self.numbers.dtype))
        self.action.index_copy_(0, self._at, action)
        self._chosen.copy_(action[0])
        for old, new in zip(self.state, state, strict=True):
            old.copy_(new)
        self._at.add_(1)

    def loss(self) -> Terms:
        """Of the full rollout, with the coded layers' auxiliary loss; all on the device."""
        reward, done, mask = self.numbers[1:].unbind(1)
        reward = reward * self.settings.reward_scale
        if self.settings.clip_rewards:
            reward = reward.clamp(-1, 1)
        with self._autocast():
            x, _ = self.agent.features(self.observation, self.first, self.numbers[:, 2])
            logits, values = self.agent.actor(x[:-1]), self.agent.critic(x).squeeze(-1)
        logits, values = logits.to(reward.dtype), values.to(reward.dtype)
        terms = actor_critic(logits, values, self.action, reward, done, mask, self.settings)
        return terms._replace(loss=terms.loss + nc.auxiliary_loss(self.agent))

    def start_next(self) -> None:
        """Make the last observation the first one of the next rollout, whose state is zero if its episode is new. All
        on the device."""
        self.observation[0].copy_(self.observation[-1])
        keep = self.numbers[-1, 2].unsqueeze(-1)
        for first, state in zip(self.first, self.state, strict=True):
            state.mul_(keep)
            first.copy_(state)
        self._at.zero_()

    def close(self) -> None:
        """Free the environments."""
        if self._sent:
            self.environments.receive()
        self.environments.close()


def compute_gradients(rollout: Rollout, gradient: Tensor) -> Terms:
    """The loss of a full rollout; its gradient replaces what the vector held that the parameters' gradients are views
    of."""
    gradient.zero_()
    terms = rollout.loss()
    terms.loss.backward()
    return terms._replace(loss=terms.loss.detach())
