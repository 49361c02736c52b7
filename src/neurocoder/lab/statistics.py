"""Statistics over seeds, for experiments of your own."""

from .report.statistics import Summary, by_seed, differences, summary

__all__ = ["Summary", "by_seed", "differences", "summary"]
