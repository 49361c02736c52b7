"""Reading the records of runs."""

from .records.store import everything, experiments, find, records

__all__ = ["everything", "experiments", "find", "records"]
