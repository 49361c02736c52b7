"""Sections of a report as text, Markdown and HTML."""
