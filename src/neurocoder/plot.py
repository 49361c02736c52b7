"""Figures of what programs and slots do; they live in `neurocoder.inspect.plot`."""

from .inspect.plot import clusters, drift, growth, programs, usage
from .inspect.style import styled

__all__ = ["clusters", "drift", "growth", "programs", "styled", "usage"]
