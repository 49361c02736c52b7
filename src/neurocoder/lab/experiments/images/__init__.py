"""Object recognition (paper, section 4.1, Tables 2 and 6)."""

from .experiment import Images

__all__ = ["Images"]
