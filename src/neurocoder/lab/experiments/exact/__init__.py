"""The experiment, and the learners beside it."""

from .experiment import Exact

__all__ = ["Exact"]
