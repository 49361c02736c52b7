"""Whole models: which layers to replace, by what, and back."""
