"""The experiment, the families of tasks, and the contenders."""

from .experiment import Tasks

__all__ = ["Tasks"]
