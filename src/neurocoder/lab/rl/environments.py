"""Environments in batches behind one small interface: Atari games on ale-py's C++ emulators, and any gymnasium id.

A step after the end of an episode ignores its action and returns the first observation of the next episode; its mask is
0. Rewards and scores are raw. A score is that of a whole episode, with all lives.
"""

from __future__ import annotations

import importlib.util
import os
from abc import ABC, abstractmethod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .settings import Settings

Array = NDArray[Any]
FRAME_SKIP = 4


class Step(NamedTuple):
    """What n environments return.

    Example:
        >>> environments = rl.make("CartPole-v1", 3)
        >>> first = environments.reset(seed=0)
        >>> step = environments.step(np.zeros(3, dtype=np.int64))
        >>> step.observation.shape, step.reward.tolist()
        ((3, 4), [1.0, 1.0, 1.0])
    """

    observation: Array
    """(n, *shape)"""
    reward: Array
    """(n,), raw"""
    done: Array
    """(n,), whether nothing follows that counts: a terminal state, or a lost life where asked for. Not where an episode
    was cut off: then the value of the observation stands for what would have followed."""
    mask: Array
    """(n,), False where the step only started the next episode."""


class Episode(NamedTuple):
    """A finished episode.

    Example:
        >>> environments = rl.make("CartPole-v1", 1)
        >>> first = environments.reset(seed=0)
        >>> for _ in range(20):
        ...     step = environments.step(np.zeros(1, dtype=np.int64))
        >>> environments.finished()[0]
        Episode(environment=0, score=11.0, steps=11)
    """

    environment: int
    """Its place in the batch."""
    score: float
    steps: int


class Environments(ABC):
    """A batch of environments. `send` and `receive` are the halves of `step`: work can be done in between.

    Example:
        >>> environments = rl.make("CartPole-v1", 3)
        >>> environments.count, environments.shape, environments.actions
        (3, (4,), 2)
        >>> environments.reset(seed=0).shape
        (3, 4)
        >>> environments.close()
    """

    count: int
    shape: tuple[int, ...]
    """Of one observation."""
    dtype: np.dtype[Any]
    actions: int

    def __init__(self) -> None:
        self._scores = np.zeros(self.count)
        self._lengths = np.zeros(self.count, dtype=np.int64)
        self._ended: list[Episode] = []

    def reset(self, seed: int) -> Array:
        """Start new episodes: (n, *shape)."""
        self._scores[:], self._lengths[:] = 0, 0
        self._ended.clear()
        return self._reset(seed)

    def step(self, actions: Array) -> Step:
        """Take the actions (n,)."""
        self.send(actions)
        return self.receive()

    def receive(self) -> Step:
        """What came of the actions sent."""
        step = self._receive()
        self._scores += step.reward * step.mask
        self._lengths += step.mask
        for place in np.flatnonzero(~step.mask):
            self._ended.append(Episode(int(place), float(self._scores[place]), int(self._lengths[place])))
            self._scores[place], self._lengths[place] = 0, 0
        return step

    def finished(self) -> list[Episode]:
        """The episodes after which another one started since the last call."""
        ended, self._ended = self._ended, []
        return ended

    @abstractmethod
    def send(self, actions: Array) -> None:
        """Begin to take the actions (n,)."""

    @abstractmethod
    def _receive(self) -> Step: ...

    @abstractmethod
    def _reset(self, seed: int) -> Array: ...

    @abstractmethod
    def close(self) -> None:
        """Free threads and memory."""


class Atari(Environments):
    """Atari games, preprocessed as usual: every fourth frame, the maximum of two frames, grey, 84 x 84, `stack` frames,
    up to 30 no-ops at the start. Their emulators run in threads."""

    def __init__(
        self,
        game: str,
        count: int,
        *,
        threads: int = 1,
        stack: int = 4,
        life_loss: bool = False,
        sticky: float = 0.0,
        frames: int = 108_000,
        colour: bool = False,
    ) -> None:
        from ale_py.vector_env import AtariVectorEnv

        view: dict[str, Any] = {"grayscale": False, "img_height": 210, "img_width": 160} if colour else {}
        self.environment: Any = AtariVectorEnv(
            game,
            count,
            num_threads=min(threads, count),
            stack_num=stack,
            life_loss_info=True,  # `episodic_life` would reset the whole game at each lost life
            reward_clipping=False,
            repeat_action_probability=sticky,
            max_num_frames_per_episode=frames,
            use_fire_reset=False,
            frameskip=FRAME_SKIP,
            **view,
        )
        space: Any = self.environment.single_observation_space
        acted: Any = self.environment.single_action_space
        self.count, self.shape, self.dtype = count, space.shape, space.dtype
        self.actions = int(acted.n)
        self._life_loss = life_loss
        self._clock = np.zeros(count, dtype=np.int64)
        super().__init__()

    def _reset(self, seed: int) -> Array:
        observation, info = self.environment.reset(seed=seed)
        self._clock = info["episode_frame_number"].astype(np.int64)
        return observation

    def send(self, actions: Array) -> None:
        self.environment.send(np.asarray(actions, dtype=np.int64))

    def _receive(self) -> Step:
        observation, reward, terminated, _, info = self.environment.recv()
        clock = info["episode_frame_number"].astype(np.int64)
        mask = clock > self._clock  # an emulator's clock goes back only where a game starts
        over = terminated & (info["lives"] == 0)  # else a life was lost, and the game goes on
        self._clock = clock
        return Step(observation, reward.astype(np.float32), terminated if self._life_loss else over, mask)

    def close(self) -> None:
        self.environment.close()


class Gymnasium(Environments):
    """Environments of a gymnasium id with flat observations and discrete actions, one after the other."""

    def __init__(self, name: str, count: int, **options: Any) -> None:
        import gymnasium

        try:
            self.environment: Any = gymnasium.make_vec(name, num_envs=count, vectorization_mode="sync", **options)
        except gymnasium.error.Error as error:
            raise ValueError(f"environment must be a gymnasium id, got {name!r}: {error}") from None
        seen, acted = self.environment.single_observation_space, self.environment.single_action_space
        if not (isinstance(seen, gymnasium.spaces.Box) and len(seen.shape) == 1):
            raise ValueError(
                f"environment must have a flat Box of observations, or be an ALE/ id, got {name!r}: {seen}"
            )
        if not (isinstance(acted, gymnasium.spaces.Discrete) and acted.start == 0):
            raise ValueError(f"environment must have discrete actions from 0, got {name!r}: {acted}")
        self.count, self.shape, self.dtype, self.actions = count, seen.shape, np.dtype(np.float32), int(acted.n)
        self._over = np.zeros(count, dtype=bool)
        self._sent = np.zeros(count, dtype=np.int64)
        super().__init__()

    def _reset(self, seed: int) -> Array:
        self._over = np.zeros(self.count, dtype=bool)
        return self.environment.reset(seed=seed)[0]

    def send(self, actions: Array) -> None:
        self._sent = np.asarray(actions, dtype=np.int64)

    def _receive(self) -> Step:
        observation, reward, terminated, truncated, _ = self.environment.step(self._sent)
        mask, self._over = ~self._over, terminated | truncated
        return Step(observation, reward.astype(np.float32), terminated, mask)

    @property
    def pictures(self) -> bool:
        """Whether the id can be made with `render_mode="rgb_array"`."""
        return "rgb_array" in self.environment.metadata.get("render_modes", ())

    def render(self) -> Array:
        """The first environment, made with `render_mode="rgb_array"`, as a picture (height, width, 3)."""
        import gymnasium

        try:
            return np.asarray(self.environment.render()[0])
        except gymnasium.error.DependencyNotInstalled as error:
            raise ValueError(str(error)) from None

    def close(self) -> None:
        self.environment.close()


def cores() -> int:
    """CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def game_of(name: str) -> str | None:
    """The ROM of an id such as ALE/MsPacman-v5; None for other ids."""
    if not name.startswith("ALE/"):
        return None
    if importlib.util.find_spec("ale_py") is None:
        raise ValueError(f"environment {name!r} needs ale-py: pip install 'neurocoder[rl]'")
    import ale_py
    import gymnasium

    gymnasium.register_envs(ale_py)
    try:
        return str(gymnasium.spec(name).kwargs["game"])
    except gymnasium.error.Error as error:
        raise ValueError(f"environment must be a gymnasium id, got {name!r}: {error}") from None


def make(
    name: str,
    count: int,
    *,
    threads: int | None = None,
    stack: int = 4,
    life_loss: bool = False,
    sticky: float = 0.0,
    frames: int = 108_000,
) -> Environments:
    """A batch of environments of a gymnasium id; only the ids ALE/... take the options. Call `reset(seed)` first.

    Args:
        name: such as ALE/Seaquest-v5 (of which only the game counts: the options say the rest) or CartPole-v1.
        count: how many, n.
        threads: of the emulators; None: one for each core.
        stack: frames in an observation.
        life_loss: whether `done` says where a life is lost.
        sticky: probability that an action is repeated.
        frames: of the longest episode; then it is cut off.

    Example:
        >>> environments = rl.make("CartPole-v1", 3)
        >>> environments.reset(seed=0).shape
        (3, 4)
    """
    if importlib.util.find_spec("gymnasium") is None:
        raise ValueError("environments need gymnasium: pip install 'neurocoder[rl]'")
    if count < 1:
        raise ValueError(f"count must be at least 1, got {count}")
    if (game := game_of(name)) is None:
        return Gymnasium(name, count)
    threads = threads or cores()
    return Atari(game, count, threads=threads, stack=stack, life_loss=life_loss, sticky=sticky, frames=frames)


def make_for(
    settings: Settings, name: str, count: int, threads: int | None = None, life_loss: bool = False
) -> Environments:
    """A batch with the frames, the stack and the sticky actions of these settings."""
    options: dict[str, Any] = {"stack": settings.stack, "sticky": settings.sticky, "frames": settings.frames}
    return make(name, count, threads=threads, life_loss=life_loss, **options)
