"""Returns and the loss, against rollouts computed by hand."""

import math

import pytest
import torch

from neurocoder.lab.rl import Settings, actor_critic, returns

VALUES = torch.tensor([10.0, 20, 30, 40, 50, 60], dtype=torch.float64).unsqueeze(1)
REWARD = torch.tensor([1.0, 2, 99, 3, 4], dtype=torch.float64).unsqueeze(1)


def column(*values):
    return torch.tensor(values, dtype=torch.float64).unsqueeze(1)


@pytest.mark.parametrize(
    ("done", "mask", "expected"),
    [
        # No episode ends: 4 + 60/2, then backwards.
        ((0, 0, 0, 0, 0), (1, 1, 1, 1, 1), (1 + 56.5 / 2, 2 + 109 / 2, 99 + 20 / 2, 3 + 34 / 2, 4 + 60 / 2)),
        # Over after the second step; the third only starts an episode.
        ((0, 1, 0, 0, 0), (1, 1, 0, 1, 1), (1 + 2 / 2, 2, None, 3 + 34 / 2, 4 + 30)),
        # Cut off after the second step: the value of what it led to, 30, stands for the rest.
        ((0, 0, 0, 0, 0), (1, 1, 0, 1, 1), (1 + 17 / 2, 2 + 30 / 2, None, 3 + 34 / 2, 4 + 30)),
        # A lost life: the game goes on, but nothing after it counts for what came before.
        ((0, 1, 0, 0, 0), (1, 1, 1, 1, 1), (1 + 2 / 2, 2, 99 + 20 / 2, 3 + 34 / 2, 4 + 30)),
        # The last step ends an episode; the first one starts one.
        ((0, 0, 0, 0, 1), (0, 1, 1, 1, 1), (None, 2 + 101.5 / 2, 99 + 5 / 2, 3 + 4 / 2, 4)),
    ],
)
def test_returns_by_hand(done, mask, expected):
    found = returns(REWARD, column(*done), column(*mask), VALUES, gamma=0.5).squeeze(1).tolist()
    assert [value for value, wanted in zip(found, expected, strict=True) if wanted is not None] == [
        wanted for wanted in expected if wanted is not None
    ]


@pytest.mark.parametrize("reduce", ["sum", "mean"])
def test_the_loss_by_hand_with_gradients_only_where_they_belong(reduce):
    settings = Settings(gamma=0.5, entropy=0.1, value=0.25, reduce=reduce)
    logits = torch.tensor([[[0.0, 1.0]], [[2.0, 0.0]], [[5.0, 5.0]]], dtype=torch.float64, requires_grad=True)
    values = torch.tensor([[1.0], [2.0], [3.0], [4.0]], dtype=torch.float64, requires_grad=True)
    action = torch.tensor([[1], [1], [0]])
    terms = actor_critic(
        logits, values, action, column(1, 0, 7), done=column(0, 1, 0), mask=column(1, 1, 0), settings=settings
    )

    def entropy(p):
        return -p * math.log(p) - (1 - p) * math.log(1 - p)

    first, second = 1 / (1 + math.exp(-1)), 1 / (1 + math.exp(2))  # chances of the actions taken
    advantages = (1 + 0.5 * 0 - 1, 0 - 2.0)  # R_1 = 0, since step 1 ends its episode; R_0 = 1 + R_1 / 2
    expected = sum(
        0.25 * advantage**2 - math.log(chance) * advantage - 0.1 * entropy(chance)
        for chance, advantage in zip((first, second), advantages, strict=True)
    )
    count = 2 if reduce == "mean" else 1
    assert terms.loss.item() == pytest.approx(expected / count, abs=1e-12)
    assert float(terms.entropy) == pytest.approx((entropy(first) + entropy(second)) / 2)
    assert float(terms.value_error) == pytest.approx((advantages[0] ** 2 + advantages[1] ** 2) / 2)
    terms.loss.backward()
    wanted = [-2 * 0.25 * advantage / count for advantage in advantages] + [0.0, 0.0]
    assert values.grad.squeeze(1).tolist() == pytest.approx(wanted)
    assert logits.grad[2].abs().sum() == 0  # a masked step teaches nothing
    assert logits.grad[:2].abs().sum() > 0
