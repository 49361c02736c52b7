"""Pictures of an episode: what an environment shows, and the programs beside it."""

from itertools import islice
from typing import ClassVar

import numpy as np
import pytest
import torch

pytest.importorskip("gymnasium")
import gymnasium

from neurocoder.lab.rl import Settings, make_agent
from neurocoder.lab.rl.play import pictures


class Walk(gymnasium.Env):
    """Steps to the right or to the left; its picture is red as far as it came."""

    metadata: ClassVar = {"render_modes": ["rgb_array"], "render_fps": 10}
    observation_space, action_space = gymnasium.spaces.Box(-9, 9, (1,)), gymnasium.spaces.Discrete(2)

    def __init__(self, render_mode=None, installed=True):
        self.render_mode, self.installed, self.place = render_mode, installed, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place = int(self.np_random.integers(3))
        return np.array([self.place], np.float32), {}

    def step(self, action):
        self.place += 2 * int(action) - 1
        return np.array([self.place], np.float32), float(self.place), False, False, {}

    def render(self):
        if not self.installed:
            raise gymnasium.error.DependencyNotInstalled("paint is not installed")
        picture = np.zeros((30, 60, 3), np.uint8)
        picture[:, : 30 + 3 * self.place, 0] = 255
        return picture


@pytest.mark.parametrize("installed", [True, False])
def test_an_environment_that_can_be_rendered_is_shown(installed, capsys):
    gymnasium.register("Walk-v0", lambda **options: Walk(installed=installed, **options))
    try:
        agent = make_agent((1,), 2, "plain", Settings(width=16))
        found = list(islice(pictures(agent, "Walk-v0", Settings(), seed=4), 6))
    finally:
        del gymnasium.registry["Walk-v0"]
    red = [sum(n for n, (r, g, b) in picture.getcolors(400_000) if (r, g, b) == (255, 0, 0)) for picture in found]
    said = capsys.readouterr().err
    if installed:
        assert found[0].size == (840 + 400, 420)
        assert (said, min(red) > 0, len(set(red)) > 1) == ("", True, True)
    else:
        assert said == "Walk-v0 is drawn as bars of its observations: paint is not installed\n"
        assert (found[0].size, set(red)) == ((420 + 400, 420), {0})


def test_a_game_plays_in_colour_with_its_programs(tmp_path):
    pytest.importorskip("ale_py")
    settings = Settings(width=16)
    torch.manual_seed(0)
    agent = make_agent((4, 84, 84), 18, "neurocoder", settings)
    found = list(islice(pictures(agent, "ALE/Seaquest-v5", settings, seed=0), 40))
    screen, panel = found[-1].crop((0, 0, 320, 420)), found[-1].crop((320, 0, 720, 420))
    assert len(screen.getcolors(100_000)) > 8
    assert any(len(set(colour)) > 1 for _, colour in screen.getcolors(100_000))
    heat = panel.crop((10, 96, 390, 230)).getcolors(100_000)
    assert 8 < len(heat) <= 16  # shades of attention
    assert found[0].tobytes() != found[-1].tobytes()
