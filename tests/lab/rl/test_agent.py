"""The agent: its state at the ends of episodes, its heads, its parameters as one vector."""

import math

import numpy as np
import pytest
import torch

import neurocoder as nc
from neurocoder.lab.rl import HEADS, Environments, Settings, Step, make_agent, sample
from neurocoder.lab.rl.flat import ALIGN, Flat, rmsprop
from neurocoder.lab.rl.rollout import Rollout

SMALL = Settings(width=8, rollout=6, environments=3)


class Corridor(Environments):
    """Environment i has episodes of i + 2 steps, each with a reward of 1; observations count the steps of all."""

    def __init__(self, count):
        self.count, self.shape, self.dtype, self.actions = count, (2,), np.dtype(np.float32), 2
        super().__init__()

    def _reset(self, seed):
        self.place, self.clock = np.zeros(self.count, int), 0
        return self._seen()

    def _seen(self):
        return np.stack([self.place, np.full(self.count, self.clock)], axis=1).astype(np.float32) / 10

    def send(self, actions):
        pass

    def _receive(self):
        over = self.place == np.arange(self.count) + 2
        self.place, self.clock = np.where(over, 0, self.place + 1), self.clock + 1
        done = self.place == np.arange(self.count) + 2
        return Step(self._seen(), np.where(over, 0, 1).astype(np.float32), done, ~over)

    def close(self):
        pass


@pytest.mark.parametrize("head", HEADS)
def test_the_state_is_zero_where_an_episode_starts(head):
    agent = make_agent((2,), 2, head, SMALL).double()
    x, keep = torch.randn(7, 3, 2).double(), torch.ones(7, 3).double()
    keep[4, 1] = 0
    whole, _ = agent.features(x, agent.start(3), keep)
    later, _ = agent.features(x[4:], agent.start(3), keep[4:])
    torch.testing.assert_close(whole[4:, 1], later[:, 1])
    assert not torch.allclose(whole[4:, 0], later[:, 0])


def test_acting_and_learning_see_the_same_states_over_rollouts_and_episodes():
    agent = make_agent((2,), 2, "plain", SMALL)
    rollout = Rollout(agent, Corridor(3), SMALL)
    rollout.begin(0)
    acted, full, history = [], 0, []
    while full < 4:
        if rollout.receive():
            learned, _ = agent.features(rollout.observation, rollout.first, rollout.numbers[:, 2])
            torch.testing.assert_close(learned[:-1], torch.stack(acted))
            reward, done, mask = rollout.numbers[1:].unbind(1)
            assert (done <= mask).all()
            assert (reward == mask).all()
            rollout.start_next()
            acted, full = [], full + 1
        first = rollout.observation[rollout._row, :, 0] == 0  # of an episode
        rollout.act()
        acted.append(rollout.state[0].clone())
        history.append((rollout.observation[rollout._row], ~first | (len(history) == 0), acted[-1]))
        history[-1] = tuple(part.clone() for part in history[-1])
        fresh, _ = agent.features(rollout.observation[rollout._row][None], agent.start(3), torch.ones(1, 3))
        torch.testing.assert_close(acted[-1][first], fresh[0][first])
    observations, keep, states = map(torch.stack, zip(*history, strict=True))
    torch.testing.assert_close(agent.features(observations, agent.start(3), keep.float())[0], states)
    lengths = {episode.environment: (episode.score, episode.steps) for episode in rollout.environments.finished()}
    assert lengths == {place: (place + 2.0, place + 2) for place in range(3)}


def test_parameters_are_the_papers():
    settings, counts = Settings(body="large", stack=1), {}
    for head in HEADS:
        agent = make_agent((1, 84, 84), 18, head, settings)
        counts[head] = nc.count_parameters(agent)["total"]
        logits, values, _ = agent(torch.zeros(2, 3, 1, 84, 84, dtype=torch.uint8), agent.start(3), torch.ones(2, 3))
        assert logits.shape == (2, 3, 18)
        assert values.shape == (2, 3)
    assert round(counts["plain"] / 1e6, 1) == 3.3  # 3.2 in the paper, 3.26 here
    assert round(counts["hyper"] / 1e6, 1) == 3.7
    assert round(counts["neurocoder"] / 1e6, 1) == 3.4


def test_settings_reach_the_heads():
    wanted = {"hidden": 5, "residual": False, "sharpness": 10.0, "orthogonality": 0.0}
    agent = make_agent((4,), 2, "neurocoder", Settings(width=16, **wanted))
    for head in (agent.actor, agent.critic):
        assert {name: getattr(head.config, name) for name in wanted} == wanted


def test_the_controls_change_what_they_say():
    """`constant` heads are affine in what they read, which Neurocoder's are not; `scaled` ones have larger values."""
    agents = {}
    for head in HEADS:
        torch.manual_seed(0)
        agents[head] = make_agent((4,), 2, head, Settings(width=16, output_scale=100.0))
    x = torch.randn(5, 16)
    torch.testing.assert_close(agents["scaled"].critic(x), 100 * agents["plain"].critic(x))
    torch.testing.assert_close(agents["scaled"].actor(x), agents["plain"].actor(x))
    for head, affine in {"plain": True, "constant": True, "neurocoder": False}.items():
        for layer in (agents[head].actor, agents[head].critic):
            with torch.no_grad():  # recoded layers start with one program for all inputs
                for parameter in layer.parameters():
                    parameter.add_(torch.randn_like(parameter))
            moved = layer(3 * x) - layer(0 * x)
            assert torch.allclose(moved, 3 * (layer(x) - layer(0 * x)), rtol=1e-3, atol=1e-3) is affine
    constant, neurocoder = (nc.count_parameters(agents[head])["total"] for head in ("constant", "neurocoder"))
    assert constant == neurocoder


@pytest.mark.parametrize("body", ["small", "large"])
def test_features_start_about_as_large_as_the_pixels(body):
    """Torch's own start makes them 18 times smaller, and gradients with them."""
    torch.manual_seed(0)
    agent = make_agent((4, 84, 84), 6, "plain", Settings(body=body))
    pixels = torch.rand(8, 4, 84, 84)
    ratio = agent.body(pixels).square().mean().sqrt() / pixels.square().mean().sqrt()
    assert 0.5 < ratio < 5


def test_actions_follow_the_policy():
    logits = torch.tensor([0.0, math.log(3.0)]).expand(40_000, 2)
    assert sample(logits).double().mean().item() == pytest.approx(0.75, abs=0.01)


@pytest.mark.parametrize("head", HEADS)
def test_a_flat_agent_is_the_same_agent_and_learns_in_place(head):
    agent = make_agent((2,), 2, head, SMALL)
    before = {name: value.clone() for name, value in agent.state_dict().items()}
    flat = Flat(agent)
    assert all((p.data_ptr() - flat.values.data_ptr()) % (4 * ALIGN) == 0 for p in agent.parameters())
    for name, value in agent.state_dict().items():
        torch.testing.assert_close(value, before[name])
    agent(torch.randn(2, 3, 2), agent.start(3), torch.ones(2, 3))[1].sum().backward()
    assert flat.gradient.norm() == pytest.approx(
        torch.stack([p.grad.norm() for p in agent.parameters()]).norm().item(), rel=1e-5
    )
    flat.values.add_(1.0)
    for name, value in agent.state_dict().items():
        torch.testing.assert_close(value, before[name] + 1)


def test_rmsprop_has_epsilon_inside_the_root():
    values, squares, gradient = torch.tensor([1.0, 2.0]), torch.tensor([0.0, 4.0]), torch.tensor([3.0, -1.0])
    rmsprop(values, squares, gradient, 0.1, 0.9, 0.5)
    assert squares.tolist() == pytest.approx([0.9, 3.7])
    assert values.tolist() == pytest.approx([1 - 0.1 * 3 / math.sqrt(1.4), 2 + 0.1 / math.sqrt(4.2)])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"groups": 3}, r"groups must be 1 or 2 and divide environments \(256\), got 3"),
        ({"steps": 0}, "steps must be a whole number >= 1, got 0"),
        ({"gamma": 1.5}, r"gamma must be in 0\.\.1, got 1\.5"),
        ({"orthogonality": -0.1}, r"orthogonality must be a finite number >= 0, got -0\.1"),
        ({"sharpness": 0.0}, r"sharpness must be a finite number > 0, got 0\.0"),
        ({"clip": 0.0}, r"clip must be None or a finite number > 0, got 0\.0"),
        ({"rate": -1.0}, r"rate must be a finite number >= 0, got -1\.0"),
        ({"trainer": "ppo"}, "trainer must be 'a2c' or 'a3c', got 'ppo'"),
    ],
)
def test_wrong_settings_are_named(change, message):
    with pytest.raises(ValueError, match=message):
        Settings(**change)


def test_wrong_agents_are_named():
    with pytest.raises(ValueError, match="head must be among plain, hyper, neurocoder, constant, scaled, got 'moe'"):
        make_agent((2,), 2, "moe", SMALL)
    with pytest.raises(ValueError, match=r"shape must be \(channels, 84, 84\) or \(inputs,\), got \(2, 3\)"):
        make_agent((2, 3), 2, "plain", SMALL)


def test_correction_makes_rmsprop_adam_without_momentum():
    settings = Settings(rate=0.1, decay=False, alpha=0.9, correction=True)
    values, squares = torch.ones(2, dtype=torch.float64), torch.zeros(2, dtype=torch.float64)
    parameter = torch.nn.Parameter(values.clone())
    adam = torch.optim.Adam([parameter], lr=0.1, betas=(0.0, 0.9), eps=0.0)
    for update, gradient in enumerate(torch.randn(5, 2, dtype=torch.float64, generator=torch.manual_seed(0))):
        rmsprop(values, squares, gradient, settings.rate_at(update * 10, batch=10), 0.9, 0.0)
        parameter.grad = gradient
        adam.step()
        assert torch.allclose(values, parameter, rtol=1e-12)
