"""Operations as a CUDA graph: what is called when, with a graph that only says so."""

from contextlib import contextmanager, nullcontext
from types import SimpleNamespace

import pytest
import torch

from neurocoder.lab.train import capture
from neurocoder.lab.train.capture import Captured


@pytest.fixture
def log(monkeypatch):
    said = []

    @contextmanager
    def captured(stream):
        said.append("capture")
        yield SimpleNamespace(replay=lambda: said.append("replay"))
        said.append("captured")

    stream = SimpleNamespace(wait_stream=lambda other: None)
    monkeypatch.setattr(capture, "captured", captured)
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: stream)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: stream)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
    return said


def test_three_calls_then_a_capture_then_replays(log):
    call = Captured(torch.device("cuda"))
    for _ in range(6):
        call(lambda: log.append("operations"), before=lambda: log.append("before"))
    captured = ["before", "capture", "operations", "captured", "replay"]
    assert log == 3 * ["operations"] + captured + 2 * ["replay"]


@pytest.mark.parametrize(("device", "wanted"), [("cpu", True), ("cuda", False)])
def test_without_a_capture_operations_run_as_they_are(log, device, wanted):
    call = Captured(torch.device(device), wanted)
    for _ in range(6):
        call(lambda: log.append("operations"), before=lambda: log.append("before"))
    assert log == 6 * ["operations"]
