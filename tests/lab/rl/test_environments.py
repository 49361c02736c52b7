"""Environments: what the rest relies on, and the traps of ale-py."""

from itertools import pairwise

import numpy as np
import pytest

pytest.importorskip("gymnasium")
from neurocoder.lab.rl import make


def test_gymnasium_masks_the_step_after_an_episode_and_scores_whole_ones():
    environments = make("CartPole-v1", 3)
    assert (environments.shape, environments.actions, environments.count) == ((4,), 2, 3)
    environments.reset(0)
    rewards, episodes, before = np.zeros(3), [], np.zeros(3, bool)
    for _ in range(200):
        step = environments.step(np.ones(3, int))
        assert (step.mask == ~before).all()
        rewards += step.reward * step.mask
        before = step.done
        episodes += environments.finished()
    assert len(episodes) > 30
    assert all(episode.score == episode.steps for episode in episodes)  # 1 for each step
    assert 0 <= rewards.sum() - sum(episode.score for episode in episodes) < 40


def test_an_episode_that_is_cut_off_is_not_done():
    environments = make("MountainCar-v0", 1)
    environments.reset(0)
    steps = [environments.step(np.ones(1, int)) for _ in range(201)]
    assert not any(step.done[0] for step in steps)
    assert [step.mask[0] for step in steps[-2:]] == [True, False]
    assert environments.finished()[0][1:] == (-200.0, 200)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("NoSuchGame-v0", "environment must be a gymnasium id, got 'NoSuchGame-v0'"),
        ("Pendulum-v1", "environment must have discrete actions from 0, got 'Pendulum-v1'"),
        ("FrozenLake-v1", "environment must have a flat Box of observations, or be an ALE/ id, got 'FrozenLake-v1'"),
    ],
)
def test_environments_that_do_not_fit_are_named(name, message):
    with pytest.raises(ValueError, match=message):
        make(name, 1)
    with pytest.raises(ValueError, match="count must be at least 1, got 0"):
        make("CartPole-v1", 0)


class TestAtari:
    @pytest.fixture(autouse=True)
    def ale(self):
        pytest.importorskip("ale_py")

    @staticmethod
    def play(steps, name="ALE/Breakout-v5", count=2, seed=0, **options):
        environments = make(name, count, threads=1, **options)
        environments.reset(seed)
        rng = np.random.default_rng(0)
        found = [environments.step(rng.integers(0, environments.actions, count)) for _ in range(steps)]
        episodes = environments.finished()
        environments.close()
        return found, episodes

    def test_action_sets_and_observations(self):
        for name, actions in (("Seaquest", 18), ("Frostbite", 18), ("MontezumaRevenge", 18), ("MsPacman", 9)):
            environments = make(f"ALE/{name}-v5", 1, threads=1, stack=2)
            assert (environments.actions, environments.shape, environments.dtype) == (actions, (2, 84, 84), np.uint8)
            environments.close()
        with pytest.raises(ValueError, match="environment must be a gymnasium id, got 'ALE/Nothing-v5'"):
            make("ALE/Nothing-v5", 1)

    def test_a_lost_life_is_done_but_the_game_goes_on(self):
        lives, whole = self.play(400, life_loss=True)
        games, same = self.play(400, life_loss=False)
        assert whole == same  # scores are of whole games either way
        assert len(whole) >= 2
        masked = sum((~step.mask).sum() for step in lives)
        assert masked == len(whole)
        assert sum(step.done.sum() for step in lives) >= 5 * masked  # five lives a game
        assert sum(step.done.sum() for step in games) in (masked, masked + 1, masked + 2)

    def test_the_step_after_game_over_is_masked(self):
        steps, _ = self.play(400)
        for before, after in pairwise(steps):
            assert (~after.mask == before.done).all()
        assert all((step.reward[~step.mask] == 0).all() for step in steps)

    def test_scores_are_raw(self):
        steps, episodes = self.play(900, "ALE/MsPacman-v5", count=1)
        rewards = np.concatenate([step.reward for step in steps])
        assert rewards.max() >= 10
        assert episodes
        assert episodes[0].score == rewards[: episodes[0].steps].sum()

    def test_the_cap_counts_frames_and_cuts_off(self):
        steps, episodes = self.play(51, "ALE/Seaquest-v5", count=1, frames=200)
        assert episodes[0].steps == 50
        assert not any(step.done[0] for step in steps)

    def test_the_seed_decides_and_actions_are_not_sticky(self):
        first, same, other, sticky = (
            np.stack([step.observation for step in self.play(60, seed=seed, sticky=sticky)[0]])
            for seed, sticky in ((1, 0.0), (1, 0.0), (2, 0.0), (1, 0.25))
        )
        assert (first == same).all()
        assert (first != other).any()
        assert (first != sticky).any()
        plain = np.stack([step.observation for step in self.play(60, seed=1)[0]])
        assert (first == plain).all()  # although gymnasium's own ALE/Breakout-v5 has sticky actions
