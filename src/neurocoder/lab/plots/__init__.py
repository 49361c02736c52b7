"""Figures, drawn only from records."""
