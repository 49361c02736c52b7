"""Atari games (paper, section 4.4)."""

from .experiment import Atari

__all__ = ["Atari"]
