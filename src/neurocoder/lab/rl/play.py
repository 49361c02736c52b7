"""An episode as a GIF: the screen, and beside it the programs that the heads attend to at each frame."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import tyro
from numpy.typing import NDArray
from PIL import Image, ImageDraw

import neurocoder as nc

from ..records.files import atomic_write
from ..validate import Count, validate
from .agent import Agent, sample
from .environments import Atari, Environments, Gymnasium, game_of, make_for
from .settings import Settings

HEIGHT, PANEL, LINE = 420, 400, 14
"""Of the picture, of the panel beside the screen (width), and of a line of text, in pixels."""
GREYS = 16
"""Levels of attention that are told apart; with all 256 a GIF is several times as large."""
STEP = 66
"""Milliseconds of an agent's step on the screen: four frames."""
Picture = NDArray[np.uint8]


@dataclass(frozen=True)
class Options:
    """Play an episode of a checkpoint's agent and draw it, with the programs that its heads attend to."""

    checkpoint: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="CHECKPOINT")]
    """A checkpoint of a run, or an agent that `--save-agents` has kept."""
    target: Path = Path("play.gif")
    """The GIF to write."""
    seed: int = 0
    """Of the environment and of the actions."""
    frames: Count = 600
    """Most pictures; an Atari picture is a step of four frames."""
    every: Count = 1
    """Steps from one picture to the next; 2 shows twice as much of a game in as many pictures."""

    def __post_init__(self) -> None:
        validate(self, options=True)


class Screen:
    """Pictures of what an environment shows: of an Atari game by a twin with the same seed and actions, in colour; of
    others by their own `render`, or the observation as bars where that cannot be done."""

    def __init__(self, environments: Environments, name: str, settings: Settings, seed: int) -> None:
        self._own, self._name, self._twin = environments, name, None
        self._bars = not (isinstance(environments, Gymnasium) and environments.pictures)
        if (game := game_of(name)) is not None:
            self._twin = Atari(game, 1, stack=1, sticky=settings.sticky, frames=settings.frames, colour=True)
            self._views = self._twin.reset(seed)

    def take(self, actions: NDArray[Any], reward: NDArray[Any]) -> None:
        """The actions that the environment took, and what it got for them."""
        if self._twin is not None:
            step = self._twin.step(actions)
            if step.reward[0] != reward[0]:
                raise RuntimeError(f"the twin must get the same reward {reward[0]}, got {step.reward[0]}")
            self._views = step.observation

    def picture(self, observation: NDArray[Any]) -> Image.Image:
        """As high as the GIF."""
        if self._twin is not None:
            return _high(self._views[0, -1], Image.Resampling.NEAREST)
        if not self._bars and isinstance(self._own, Gymnasium):
            try:
                return _high(self._own.render(), Image.Resampling.BILINEAR)
            except ValueError as error:
                print(f"{self._name} is drawn as bars of its observations: {error}", file=sys.stderr)
                self._bars = True
        picture = Image.new("RGB", (HEIGHT, HEIGHT), "white")
        draw, width = ImageDraw.Draw(picture), HEIGHT / len(observation)
        for place, value in enumerate(np.tanh(observation)):
            ends = sorted((HEIGHT / 2, HEIGHT / 2 * (1 - float(value))))
            draw.rectangle((place * width + 4, ends[0], (place + 1) * width - 4, ends[1]), fill="#0072B2")
        return picture

    def close(self) -> None:
        """Free the twin."""
        if self._twin is not None:
            self._twin.close()


def _high(view: Picture, how: Image.Resampling) -> Image.Image:
    return Image.fromarray(view).resize((view.shape[1] * HEIGHT // view.shape[0], HEIGHT), how)


def heat(weights: NDArray[Any], width: int, height: int) -> Image.Image:
    """Attention (r, P) as an image, components from top to bottom, slots from left to right; white is the largest."""
    levels = np.round((GREYS - 1) * weights / max(float(weights.max()), 1e-9)) * (255 // (GREYS - 1))
    return Image.fromarray(levels.astype(np.uint8)).resize((width, height), Image.Resampling.NEAREST).convert("RGB")


def panel(policy: NDArray[Any], action: int, value: float, score: float, programs: dict[str, Any]) -> Image.Image:
    """The policy as bars, and the attention over M_U of each head."""
    picture = Image.new("RGB", (PANEL, HEIGHT), "black")
    draw, inner = ImageDraw.Draw(picture), PANEL - 20
    draw.text((10, 6), f"score {score:g}   value {value:.3f}   action {action}", fill="white")
    width = inner / len(policy)
    for place, chance in enumerate(policy):
        box = (10 + place * width, 70 - 44 * float(chance / policy.max()), 9 + (place + 1) * width, 70)
        draw.rectangle(box, fill="#D55E00" if place == action else "#777777")
    top, each = 82, (HEIGHT - 90) // max(1, len(programs))
    for name, weights in programs.items():
        r, slots = weights.shape
        draw.text((10, top), f"{name}: attention of {r} components to {slots} programs", fill="white")
        picture.paste(heat(weights, inner, each - LINE - 12), (10, top + LINE))
        top += each
    if not programs:
        draw.text((10, top), "the heads have no programs", fill="white")
    return picture


@torch.no_grad()
def pictures(agent: Agent, name: str, settings: Settings, seed: int) -> Iterator[Image.Image]:
    """One for each step of an episode; of whole games, with sampled actions."""
    torch.manual_seed(seed)
    environments = make_for(settings, name, 1, threads=1)
    if isinstance(environments, Gymnasium) and environments.pictures:
        environments.close()
        environments = Gymnasium(name, 1, render_mode="rgb_array")
    observation, screen = environments.reset(seed), Screen(environments, name, settings, seed)
    coded = any(isinstance(module, nc.Linear) for module in agent.modules())
    state, keep, score = agent.start(1), torch.ones(1, 1), 0.0
    try:
        while True:
            shown = torch.from_numpy(observation).unsqueeze(0)
            programs: dict[str, Any] = {}
            if coded:
                with nc.record(agent) as trace:
                    logits, value, state = agent(shown, state, keep)
                programs = {head: trace[head].u[0, 0].numpy() for head in trace}
            else:
                logits, value, state = agent(shown, state, keep)
            action = sample(logits)[0]
            policy = logits[0, 0].softmax(-1).numpy()
            left, right = screen.picture(observation[0]), panel(policy, int(action), float(value), score, programs)
            whole = Image.new("RGB", (left.width + right.width, HEIGHT))
            whole.paste(left, (0, 0))
            whole.paste(right, (left.width, 0))
            yield whole
            step = environments.step(action.numpy())
            if not step.mask[0]:
                return
            screen.take(action.numpy(), step.reward)
            score += float(step.reward[0])
            observation = step.observation
    finally:
        environments.close()
        screen.close()


def play(agent: Agent, name: str, settings: Settings, options: Options) -> int:
    """Write the GIF; returns how many pictures it has."""
    if options.target.suffix != ".gif":
        raise ValueError(f"--target must end in .gif, got {options.target}")
    steps = islice(pictures(agent, name, settings, options.seed), 0, options.frames * options.every, options.every)
    first, *others = [picture.quantize(64) for picture in steps]
    with atomic_write(options.target) as temporary:
        first.save(temporary, "GIF", save_all=True, append_images=others, duration=STEP * options.every, loop=0)
    return 1 + len(others)


def main(options: Options) -> int:
    """`neurocoder play`; returns the exit status."""
    from ..experiments.atari.experiment import load_agent

    agent, variant, settings = load_agent(options.checkpoint)
    count = play(agent, variant.environment, settings, options)
    print(f"{count} pictures in {options.target}")
    return 0
