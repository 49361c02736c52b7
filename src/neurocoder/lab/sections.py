"""What a report consists of, for experiments of your own."""

from .report.sections import Cell, Difference, Ours, Plot, Section, Table, UndrawableError

__all__ = ["Cell", "Difference", "Ours", "Plot", "Section", "Table", "UndrawableError"]
