"""Tasks in sequence (paper, section 4.3)."""

from .experiment import Split

__all__ = ["Split"]
