"""Figures of what programs and slots do; they live in `neurocoder.inspect.plot`."""

from .inspect.plot import clusters, drift, growth, programs, usage

__all__ = ["clusters", "drift", "growth", "programs", "usage"]
