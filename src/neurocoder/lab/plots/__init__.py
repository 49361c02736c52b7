"""Figures, drawn from records alone."""
