"""What both trainers report between two calls: finished episodes, and means over updates."""

from __future__ import annotations

from torch import Tensor

from .environments import Episode

STATISTICS = ("loss", "entropy", "value_error", "gradient_norm")


class Reports:
    """A trainer's part that collects them."""

    _episodes: list[Episode]
    _totals: Tensor
    """Sums of the statistics (4,) over `_updates` updates."""
    _updates: int

    def episodes(self) -> list[Episode]:
        """Finished since the last call."""
        found, self._episodes = self._episodes, []
        return found

    def statistics(self) -> dict[str, float]:
        """Means over the updates since the last call; waits for the device."""
        totals = (self._totals / max(1, self._updates)).tolist()
        self._totals.zero_()
        self._updates = 0
        return dict(zip(STATISTICS, totals, strict=True))
