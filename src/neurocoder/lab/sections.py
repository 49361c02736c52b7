"""What a report consists of, for experiments of your own."""

from .report.sections import Cell, Estimate, PairedDifference, Plot, Section, Table, UndrawableError

Ours, Difference = Estimate, PairedDifference
"""Their earlier names."""

__all__ = [
    "Cell",
    "Difference",
    "Estimate",
    "Ours",
    "PairedDifference",
    "Plot",
    "Section",
    "Table",
    "UndrawableError",
]
