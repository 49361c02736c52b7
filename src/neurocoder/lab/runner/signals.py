"""Signals that stop a sweep."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any


class StopSignals:
    """Notes a stop signal, so that training can save a checkpoint first. A second Ctrl-C stops at once.

    SIGHUP that is ignored, as under `nohup`, stays so.
    """

    def __init__(self, *kinds: int) -> None:
        self._kinds = kinds or (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        self._before: dict[int, Any] = {}
        self.received = 0

    def __enter__(self) -> StopSignals:
        if threading.current_thread() is threading.main_thread():
            for kind in self._kinds:
                if kind != signal.SIGHUP or signal.getsignal(kind) is not signal.SIG_IGN:
                    self._before[kind] = signal.signal(kind, self._note)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT == self.received:
            raise KeyboardInterrupt
        self.received = number
