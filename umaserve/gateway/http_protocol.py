"""uvicorn's HTTP connection, with bounds on the resources and time of a client."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Hashable
from typing import Any

from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)

from umaserve.gateway.callers import UID
from umaserve.gateway.daemon.refusal import Refusal, encode, openai_error
from umaserve.gateway.guard import URL
from umaserve.gateway.room import BUSY, IDLE, UNFINISHED, Room, next_order, whose
from umaserve.gateway.settings import Settings
from umaserve.system.peer import peer_of
from umaserve.system.tcp_peer import TcpPeers

HEAD_BYTES = 16 * 1024  # of a request's line and headers
HEAD_S = 10.0  # from its first byte to its last
SEND_S = 10.0  # for a client that reads nothing while more waits for it
LINGER_S = 2.0  # until the client has read the last answer
LINGER_BYTES = 1024 * 1024  # of input that nobody reads any more
LINE_REQUESTS, LINE_BYTES = 64, 1024 * 1024  # that one connection may have in line


class GatewayProtocol(HttpToolsProtocol):
    """``settings``, ``peers`` and ``room`` are set by `protocol_for`."""

    settings: Settings
    peers: TcpPeers
    room: Room
    handshake: Any = None  # that came before, with TLS

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.asked = next_order()
        self._at: Hashable = None  # the holder while no key is known
        self._uid: int | None = None  # at the other end, where that is looked up
        self._head_bytes = 0
        self._in_head = self._lingers = False
        self._last_words: Refusal | None = None  # once the requests before have been answered
        self._left_bytes = LINGER_BYTES
        self._running: RequestResponseCycle | None = None  # ``cycle`` is the newest
        self._timers: dict[str, asyncio.TimerHandle] = {}

    @property
    def is_idle(self) -> bool:
        """Whether no request is under way."""
        return self.cycle is None or self.cycle.response_complete

    @property
    def holder(self) -> Hashable:
        """Key, user or address that the connection counts for in the room."""
        state = {} if self.cycle is None else self.cycle.scope.get("state", {})
        return ("key", state["key"]) if state.get("key") else self._at

    @property
    def stage(self) -> int:
        """Whether a request is being read or answered."""
        cycle = self._running
        if cycle is not None and not cycle.response_complete:
            return UNFINISHED if cycle.more_body and not cycle.response_started else BUSY
        return UNFINISHED if self._in_head else IDLE

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if not self._may_come(transport):
            transport.abort()
            return
        self._at, self._uid = whose(
            self.transport.get_extra_info("socket"), self.peers, self.settings
        )  # now: a closed one has no user
        if self.handshake is not None:
            self.room.handshakes.discard(self.handshake)
        elif not self.room.has_place(self, self.connections):
            text = f"{self.room.most} connections are open, and all are being answered"
            self.refuse(Refusal(503, "too_many_connections", text))
        self._wait_for_request()

    def _may_come(self, transport: asyncio.Transport) -> bool:
        """Whether it is our own user, where that can be known."""
        bound = transport.get_extra_info("socket")
        if bound is None or bound.family != socket.AF_UNIX or self.settings.owner < 0:
            return True
        with contextlib.suppress(OSError), socket.fromfd(
            bound.fileno(), socket.AF_UNIX, socket.SOCK_STREAM
        ) as sock:
            return peer_of(sock).uid in (self.settings.owner, -1)
        return False  # it left already

    def _wait_for_request(self) -> None:
        if self.settings.idle_timeout_s:
            self.timeout_keep_alive_task = self.loop.call_later(
                self.settings.idle_timeout_s, self.timeout_keep_alive_handler
            )

    def connection_lost(self, exc: Exception | None) -> None:
        for name in list(self._timers):
            self._stop_timer(name)
        self._unset_keepalive_if_required()
        if self._running is not None:  # others may be in line behind it
            self._leave(self._running)
        super().connection_lost(exc)

    def close_now(self) -> None:
        """Close; nobody waits for an answer."""
        self.transport.close()

    def data_received(self, data: bytes) -> None:
        ignored = self._lingers or self._last_words is not None
        if ignored or (self.cycle is not None and self.cycle.response_complete):
            self._left_bytes -= len(data)
            if self._left_bytes < 0:
                self.transport.abort()
            if ignored or self._left_bytes < 0:
                return
        was_in_head = self._in_head
        super().data_received(data)
        if self.transport.is_closing() or self._lingers:
            return
        if self._in_head:
            self._head_bytes += len(data)
            if self._head_bytes > HEAD_BYTES:
                self._refuse_head()
            elif not was_in_head:
                self._start_timer("head", HEAD_S, self._head_too_slow)
        elif self.is_idle and self.timeout_keep_alive_task is None:
            self._wait_for_request()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head, self._head_bytes, self._left_bytes = True, 0, LINGER_BYTES
        self.asked = next_order()

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._stop_timer("head")
        size = len(self.url) + sum(len(name) + len(value) for name, value in self.headers)
        if size > HEAD_BYTES:
            self._refuse_head()
            raise ValueError("the head of a request is too long")
        if any(n == b"transfer-encoding" and v.lower() != b"chunked" for n, v in self.headers):
            raise ValueError("a body would end where the parser does not see it")
        self.scope[URL] = self.url  # type: ignore[literal-required]
        if self._uid is not None:
            self.scope[UID] = self._uid  # type: ignore[literal-required]
        super().on_headers_complete()
        self._check_line()

    def on_body(self, body: bytes) -> None:
        super().on_body(body)
        self._check_line()

    def _check_line(self) -> None:
        """Read on while requests wait for the one before them, to see when the client leaves."""
        if not self.pipeline:
            return
        self.flow.resume_reading()
        size = sum(len(cycle.body) for cycle, _ in self.pipeline)
        if len(self.pipeline) > LINE_REQUESTS or size > LINE_BYTES:
            text = "too much was sent before the first answer; wait for answers"
            self.refuse(Refusal(429, "too_many_requests", text))
            raise ValueError(text)

    def on_response_complete(self) -> None:
        self.asked = next_order()
        self._left_bytes = LINGER_BYTES
        super().on_response_complete()
        if self._last_words is not None and self.is_idle:
            self.refuse(self._last_words)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._start_timer("send", SEND_S, self.transport.abort)

    def resume_writing(self) -> None:
        self._stop_timer("send")
        super().resume_writing()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._running = cycle
        is_old = cycle.scope["http_version"] == "1.0"
        super()._start_asgi_task(cycle, _without_chunks(cycle, app) if is_old else app)

    def _leave(self, cycle: RequestResponseCycle) -> None:
        """Nobody waits for this answer any more."""
        if not cycle.response_complete:
            cycle.disconnected = True
            cycle.waiting_for_100_continue = False  # it would still ask for the body
            cycle.message_event.set()

    def _leave_unfinished(self) -> None:
        """Give up the newest request where its body never ends and no answer has begun."""
        cycle = self.cycle
        if self.is_idle or not cycle.more_body or cycle.response_started:
            return
        self._leave(cycle)
        if cycle is self._running:
            self.cycle = None  # type: ignore[assignment]
        else:
            self.pipeline.popleft()
            newest = self.pipeline[0][0] if self.pipeline else self._running
            self.cycle = newest  # type: ignore[assignment]

    def send_400_response(self, msg: str) -> None:
        self._leave_unfinished()
        text = "this cannot be read as an HTTP/1.1 request"
        self.refuse(Refusal(400, "bad_request", text))

    def refuse(self, refusal: Refusal) -> None:
        """Answer without a route, and close once the client has read that."""
        if self._lingers or self.transport.is_closing():
            return
        if not self.is_idle:
            self._last_words = self._last_words or refusal
            return
        body = encode(openai_error(refusal))
        headers = [
            *self.server_state.default_headers,
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
            (b"connection", b"close"),
            *((name.encode(), value.encode()) for name, value in refusal.headers),
        ]
        lines = b"".join(b"%b: %b\r\n" % header for header in headers)
        self.transport.write(b"%b%b\r\n%b" % (STATUS_LINE[refusal.status], lines, body))
        self._lingers = True
        self._unset_keepalive_if_required()
        self._stop_timer("head")
        # bytes that nobody has read would turn the answer into a reset
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self._start_timer("linger", LINGER_S, self.transport.close)

    def _refuse_head(self) -> None:
        text = f"the request's line and headers are longer than {HEAD_BYTES} bytes"
        self.refuse(Refusal(431, "headers_too_large", text))

    def _head_too_slow(self) -> None:
        text = f"the request was not complete after {HEAD_S:g} s"
        self.refuse(Refusal(408, "request_timeout", text))

    def _start_timer(self, name: str, after_s: float, call: Any) -> None:
        self._stop_timer(name)
        self._timers[name] = self.loop.call_later(after_s, call)

    def _stop_timer(self, name: str) -> None:
        timer = self._timers.pop(name, None)
        if timer is not None:
            timer.cancel()


def _without_chunks(cycle: RequestResponseCycle, app: Any) -> Any:
    """An application for HTTP/1.0: the end of the connection ends an answer of unknown length."""

    async def run(scope: Any, receive: Any, send: Any) -> None:
        ends_by_close = False

        async def plain(message: Any) -> None:
            nonlocal ends_by_close
            if message["type"] == "http.response.start":
                names = [name.lower() for name, _ in message.get("headers", ())]
                ends_by_close = b"content-length" not in names
                if ends_by_close:
                    cycle.chunked_encoding = False
            elif ends_by_close:
                cycle.expected_content_length = len(message.get("body", b""))
            await send(message)

        await app(scope, receive, plain)

    return run


def protocol_for(settings: Settings) -> type[GatewayProtocol]:
    """The protocol class with these settings."""
    named = {"settings": settings, "peers": TcpPeers(), "room": Room(settings.max_connections)}
    return type("BoundProtocol", (GatewayProtocol,), named)
