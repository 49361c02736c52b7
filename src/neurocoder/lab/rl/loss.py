"""Returns, and the one loss of both trainers."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from .settings import Settings


def returns(reward: Tensor, done: Tensor, mask: Tensor, values: Tensor, gamma: float) -> Tensor:
    """`R_t = r_t + gamma (1 - done_t) next_t`, where `next_t` is `R_{t+1}`; or the value V_{t+1} at the end of the
    rollout, and where step t+1 only starts a new episode: there step t cut its episode off, unless it is done.

    Args:
        reward: (T, N)
        done: (T, N), 1 where nothing follows
        mask: (T, N), 0 where a step only started an episode
        values: (T + 1, N), of the observations before each step and after the last

    Returns:
        (T, N); what masked steps hold means nothing

    Example:
        >>> reward, zero, one = torch.ones(3, 1), torch.zeros(3, 1), torch.ones(3, 1)
        >>> rl.returns(reward, done=zero, mask=one, values=torch.zeros(4, 1), gamma=0.5).squeeze(1)
        tensor([1.7500, 1.5000, 1.0000])
    """
    following, found = values[-1], []
    for t in range(len(reward) - 1, -1, -1):
        total = reward[t] + gamma * (1 - done[t]) * following
        found.append(total)
        following = torch.where(mask[t] > 0, total, values[t])
    return torch.stack(found[::-1])


class Terms(NamedTuple):
    """The loss () and what it is made of, each the mean over steps that count, detached."""

    loss: Tensor
    entropy: Tensor
    value_error: Tensor
    """Mean square."""


def actor_critic(
    logits: Tensor,
    values: Tensor,
    action: Tensor,
    reward: Tensor,
    done: Tensor,
    mask: Tensor,
    settings: Settings,
) -> Terms:
    """`sum_t -log pi(a_t) A_t + value A_t^2 - entropy H_t` with `A_t = R_t - V_t`, over the steps with mask 1; or their
    mean. A_t is a constant to the policy, R_t to both.

    Args:
        logits: (T, N, actions)
        values: (T + 1, N)
        action, reward, done, mask: (T, N)

    Example:
        >>> logits, values, action = torch.zeros(5, 3, 2), torch.zeros(6, 3), torch.zeros(5, 3, dtype=torch.int64)
        >>> ones = torch.ones(5, 3)
        >>> terms = rl.actor_critic(logits, values, action, reward=ones, done=0 * ones, mask=ones, settings=settings)
        >>> terms.entropy  # log 2: both actions are as likely
        tensor(0.6931)
    """
    target = returns(reward, done, mask, values.detach(), settings.gamma)
    advantage = target - values[:-1]
    chances = logits.log_softmax(-1)
    chosen = chances.gather(-1, action.unsqueeze(-1)).squeeze(-1)
    entropy = -(chances.exp() * chances).sum(-1)
    each = settings.value * advantage.square() - chosen * advantage.detach() - settings.entropy * entropy
    count = mask.sum().clamp(min=1)
    loss = (each * mask).sum()
    mean_entropy, mean_error = ((part.detach() * mask).sum() / count for part in (entropy, advantage.square()))
    return Terms(loss / count if settings.reduce == "mean" else loss, mean_entropy, mean_error)
