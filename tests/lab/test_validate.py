"""Checks of configs that are read from the annotations of their fields."""

import math
from dataclasses import dataclass, field
from typing import Annotated, Literal

import pytest
import tyro

from neurocoder.lab.validate import Count, NonNegative, Positive, Range, Share, validate


@dataclass(frozen=True)
class Rates:
    """Learning rates."""

    first: Positive = 0.1
    """Of the first layer."""


@dataclass(frozen=True)
class Config:
    """How to train."""

    epochs: Count = 2
    """Passes over the data."""
    points: Annotated[int, Range(4)] = 5
    """Points of a sequence."""
    images: Count | None = None
    """Images; None: all."""
    clip: Positive | None = None
    """Longest gradient."""
    noise: NonNegative = 0.0
    """Standard deviation."""
    gamma: Share = 1
    """Discount."""
    order: Literal["forward", "backward"] = "forward"
    """Order of the points."""
    level: Literal[1, 2] | None = None
    """Level."""
    seed: Annotated[int, Range(0, 2**32 - 1)] = 0
    """Seed."""
    rates: Rates = field(default_factory=Rates)
    """Learning rates."""
    free: int = 0
    """Any number."""

    def __post_init__(self):
        validate(self)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"epochs": 0}, r"epochs must be a whole number >= 1, got 0"),
        ({"epochs": 2.5}, r"epochs must be a whole number >= 1, got 2\.5"),
        ({"epochs": True}, r"epochs must be a whole number >= 1, got True"),
        ({"epochs": None}, r"epochs must be a whole number >= 1, got None"),
        ({"points": 3}, r"points must be a whole number >= 4, got 3"),
        ({"images": -1}, r"images must be a whole number >= 1, got -1"),
        ({"clip": 0.0}, r"clip must be a finite number > 0, got 0\.0"),
        ({"clip": math.inf}, r"clip must be a finite number > 0, got inf"),
        ({"clip": "long"}, r"clip must be a finite number > 0, got 'long'"),
        ({"noise": math.nan}, r"noise must be a finite number >= 0, got nan"),
        ({"noise": -0.1}, r"noise must be a finite number >= 0, got -0\.1"),
        ({"gamma": 1.5}, r"gamma must be in 0\.\.1, got 1\.5"),
        ({"gamma": math.nan}, r"gamma must be in 0\.\.1, got nan"),
        ({"order": "random"}, r"order must be 'forward' or 'backward', got 'random'"),
        ({"level": 3}, r"level must be 1 or 2, got 3"),
        ({"seed": -1}, r"seed must be in 0\.\.4294967295, got -1"),
        ({"rates": Rates(first=-1.0)}, r"first must be a finite number > 0, got -1\.0"),
    ],
)
def test_wrong_fields_are_named_with_what_they_may_be(changes, message):
    with pytest.raises(ValueError, match=f"^{message}$"):
        Config(**changes)


def test_right_ones_are_accepted():
    Config(1, 4, 1, 1, 0, 0, "backward", 2, 2**32 - 1, Rates(1), -3)


def test_the_command_line_shows_the_plain_types(capsys):
    config = tyro.cli(Config, args=["--epochs", "3", "--images", "7", "--clip", "0.5", "--rates.first", "2"])
    assert (config.epochs, config.images, config.clip, config.rates.first) == (3, 7, 0.5, 2.0)
    with pytest.raises(SystemExit):
        tyro.cli(Config, args=["--help"])
    said = capsys.readouterr().out
    for shown in ("--epochs INT", "--images {None}|INT", "--clip {None}|FLOAT", "--order {forward,backward}"):
        assert shown in said


def test_options_are_named_as_on_the_command_line():
    @dataclass
    class Options:
        epochs_first: int = 0

    Options.__annotations__["epochs_first"] = Count
    with pytest.raises(ValueError, match=r"^--epochs-first must be a whole number >= 1, got 0$"):
        validate(Options(), options=True)
