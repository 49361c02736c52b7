"""The equations of program layers as the paper prints them; they live in `neurocoder.program.reference`."""

from .program.reference import Trace, compose, conv, cosine, least_used, linear, lstm_cell

__all__ = ["Trace", "compose", "conv", "cosine", "least_used", "linear", "lstm_cell"]
