"""Object recognition (paper, section 4.1, Tables 2 and 6)."""

from .experiment import Images, loss

__all__ = ["Images", "loss"]
