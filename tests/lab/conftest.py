import pytest
from toy import Toy

from neurocoder.lab import report


@pytest.fixture
def toy(monkeypatch):
    """Reports know one experiment, without training."""
    monkeypatch.setattr(report, "EXPERIMENTS", {"toy": "toys:Toy"})
    monkeypatch.setattr(report, "load", lambda name: Toy())
    monkeypatch.setattr(report, "paper_numbers", lambda: {"toy": {"parameters": {"neurocoder": 7300}}})
