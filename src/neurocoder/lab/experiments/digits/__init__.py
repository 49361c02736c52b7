"""Digits (paper, section 4.1, Table 1)."""

from .experiment import Digits

__all__ = ["Digits"]
