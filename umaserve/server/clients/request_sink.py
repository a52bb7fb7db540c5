"""Frames of a client's requests, on their way into its outbox."""

from __future__ import annotations

import abc

import trio

from umaserve.server.engines.outbox import Outbox
from umaserve.server.requests.request import Request


class RequestSink(abc.ABC):
    """Sink of requests; it takes no frame once the connection closes.

    ``requests`` are those that did not end, by their ids.
    """

    def __init__(self, outbox: Outbox) -> None:
        self.requests: dict[str, Request] = {}
        self._outbox = outbox
        self._closing = trio.Event()  # the last frame is in the outbox
        self._active_s = trio.current_time()

    @abc.abstractmethod
    def flush(self) -> None:
        """Send what waits in the outbox."""

    def begin(self, request: Request) -> None:
        """Take a new request, before its first event."""
        self.requests[request.id] = request

    def send(self, frame: bytes) -> None:
        """Queue one frame and send it; nothing once the connection closes."""
        if not self._closing.is_set():
            self._outbox.put(frame)
            self.flush()

    def put(self, frame: bytes) -> None:
        """Queue one frame; nothing once the connection closes."""
        if not self._closing.is_set():
            self._outbox.put(frame)

    def over(self, request: Request) -> None:
        """Forget a request, whose last frame comes next."""
        if self.requests.get(request.id) is request:
            del self.requests[request.id]
        self._active_s = trio.current_time()
