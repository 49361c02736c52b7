"""The experiment, its twenty tasks, and the models beside it."""

from .experiment import Everyday

__all__ = ["Everyday"]
