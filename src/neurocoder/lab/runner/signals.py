"""Signals that stop a sweep."""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType
from typing import Any


class StopSignals:
    """Notes a stop signal, so that training can save a checkpoint first. A second Ctrl-C stops at once.

    SIGHUP that is ignored, as under `nohup`, stays so. Where it comes from a terminal that is gone, nothing more is
    printed: that would be an error, in the middle of saving.
    """

    def __init__(self, *kinds: int) -> None:
        self._kinds = kinds or (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        self._before: dict[int, Any] = {}
        self._terminals = [stream for stream in (1, 2) if os.isatty(stream)]
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
        for stream in self._terminals:
            if number == signal.SIGHUP and not os.isatty(stream):
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
