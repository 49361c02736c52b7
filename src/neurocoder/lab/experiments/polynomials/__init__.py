"""Changing polynomials (paper, section 4.2)."""

from .experiment import Polynomials

__all__ = ["Polynomials"]
