"""The connections of the explorer's server: a bounded number, and none stays open without a request."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

MOST = 100
"""Connections that are open at once, and as many that are being accepted. A browser opens six."""
SECONDS = 10.0
"""In which a connection must send the whole head of a request, counted from its start or its last answer."""


class Connection(H11Protocol):
    """A connection that is closed if no request arrives in time, or if a new one needs its place.

    So half-sent requests, which need no token, can neither pile up nor keep others out.
    """

    deadline: asyncio.TimerHandle | None = None

    @property
    def answering(self) -> bool:
        """Whether a request is being answered."""
        return self.cycle is not None and not self.cycle.response_complete

    def connection_made(self, transport: Any) -> None:
        """Start to wait; if there are too many connections, close the one that has waited the longest."""
        super().connection_made(transport)
        self.wait()
        if len(self.connections) > MOST:
            waiting: list[Any] = [one for one in self.connections if not one.answering]  # type: ignore[union-attr]
            min(waiting, key=lambda one: one.deadline.when()).close()

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        super().on_response_complete()
        self.wait()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no more."""
        super().connection_lost(exc)
        if self.deadline is not None:
            self.deadline.cancel()

    def wait(self) -> None:
        """Set the deadline."""
        if self.deadline is not None:
            self.deadline.cancel()
        self.deadline = self.loop.call_later(SECONDS, self.expire)

    def expire(self) -> None:
        """Close, unless a request is being answered."""
        if not self.answering:
            self.close()

    def close(self) -> None:
        """At once, without waiting for the client to read what was sent."""
        self.connections.discard(self)
        self.transport.abort()
