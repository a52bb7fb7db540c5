"""The body of a request: bounded, and read ahead of its route, to see when the client leaves."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable

from starlette.datastructures import Headers
from starlette.types import Message, Receive

from umaserve.gateway.daemon.refusal import Refusal

BODY_S = 60.0  # until the last byte of a body
FULL = "bodies_too_large"  # all of a key together
OF_BODIES = (413, 415)  # as `FULL`, refusals of a body that may still be on its way
READ_ON_BYTES, READ_ON_S = 64 * 1024 * 1024, 10.0  # of such a body, before it is answered


class Incoming:
    """``receive`` of ASGI, for a body of at most ``most`` bytes that is sent as it is.

    It is read ahead of the route that wants it: so the client's end is seen when it comes.
    ``is_left``: the client has left.  ``held``: so many bytes were taken of the budget.
    """

    def __init__(self, headers: Headers, receive: Receive, most: int) -> None:
        self._receive, self._most = receive, most
        self._encoding = headers.get("content-encoding", "").strip().lower()
        length = headers.get("content-length", "")
        self._length = int(length) if length.isdigit() else 0
        self._waits = "expect" in headers  # its client sends nothing before it is told to
        self._size, self._over, self.is_left = 0, False, False
        self.held = 0
        self._read: deque[Message] = deque()
        self._failure: Callable[[], Refusal] | None = None  # new each time: one that is kept
        # has a traceback, which keeps all that was read
        self._more: asyncio.Future[None] | None = None
        self._began_s = asyncio.get_running_loop().time()

    def check(self) -> None:
        """Refuse what the head says already."""
        if self._encoding not in ("", "identity"):
            text = f"Content-Encoding {self._encoding[:40]!r} is not taken; send the body as it is"
            raise Refusal(415, "unsupported_encoding", text, (("accept-encoding", "identity"),))
        if self._length > self._most:
            raise self._too_large()

    async def read_ahead(self, on_left: Callable[[], object], take: Callable[[int], bool]) -> None:
        """Read until the client leaves, or until its body is too long.  ``take`` says whether so
        many bytes more are left for it."""
        while (message := await self._receive())["type"] != "http.disconnect":
            if self._over:
                continue
            self._count(message)
            if self._size > self._most:
                return self._fail(self._too_large)
            size = len(message.get("body", b""))
            if size and not take(size):
                return self._fail(_too_much)
            self.held += size
            self._read.append(message)
            self._wake()
        self.is_left = True
        on_left()

    def _count(self, message: Message) -> None:
        self._over = not message.get("more_body", False)
        self._size += len(message.get("body", b""))

    def _fail(self, failure: Callable[[], Refusal]) -> None:
        self._failure = self._failure or failure
        self._wake()

    def _wake(self) -> None:
        if self._more is not None and not self._more.done():
            self._more.set_result(None)

    async def __call__(self) -> Message:
        loop = asyncio.get_running_loop()
        while not self._read:
            if self._failure is not None:
                raise self._failure()
            self._more = loop.create_future()
            slow = loop.call_at(self._began_s + BODY_S, self._fail, _too_slow)
            try:
                await self._more
            finally:
                slow.cancel()
        return self._read.popleft()

    def _too_large(self) -> Refusal:
        return Refusal(413, "body_too_large", f"the body is longer than {self._most} bytes")

    async def read_on(self) -> None:
        """Read the rest of a refused body, up to a bound.

        A client that still sends reads no answer, and unread bytes would reset the connection.
        """
        if self._waits or self._length > READ_ON_BYTES:
            return

        async def rest() -> None:
            while not self._over and self._size <= READ_ON_BYTES:
                self._count(await self._receive())

        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(rest(), READ_ON_S)


def _too_much() -> Refusal:
    text = "the bodies of this key's requests fill its share of memory; wait for some of them"
    return Refusal(429, FULL, text)


def _too_slow() -> Refusal:
    text = f"the body was not complete after {BODY_S:g} s"
    return Refusal(408, "request_timeout", text, (("connection", "close"),))
