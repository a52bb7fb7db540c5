"""``Link``: connections to the daemon, shared by all that HTTP asks; under asyncio.

A request goes to the connection that has least to do.  A new one is opened where all are busy, up
to `MOST`.  A connection that the daemon closes is forgotten, and the next request opens another.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

from msgspec import convert
from starlette.requests import Request

from umaserve.client.connect import connected, refuse_strangers
from umaserve.client.events import ConnectionFailed
from umaserve.gateway.daemon.event import OF_REQUESTS, Event, decode_any, decode_event, decode_head
from umaserve.gateway.daemon.fetched import Fetched
from umaserve.gateway.daemon.pictures import filled, fitting, has_pictures
from umaserve.gateway.daemon.refusal import Refusal, of_daemon, too_long
from umaserve.protocol import E_IO_001, FrameDecoder, encode_frame

MOST = 4  # connections
BUSY = 8  # requests of one connection, from which on another one is opened
MAX_FRAME_BYTES = 64 * 1024 * 1024
BODY_BYTES = 1024 * 1024  # of HTTP, until the daemon has said how long a body may be
SMALL_BYTES = 64 * 1024  # a frame that is longer may be too long for the model that serves now
PING_S = 60.0
TAKEN_S = 5.0  # for a connection to be taken; a daemon that ends takes none
ANSWER_S = 60.0  # for an admin message; a load has no limit

Take = Callable[[Event], None]


class Connection(asyncio.Protocol):
    """Connection that hands each frame to its asker; ``failure`` says why it has ended."""

    def __init__(self, lost: Callable[[Connection], None]) -> None:
        self.requests: dict[str, Take] = {}
        self.answers: dict[str, Callable[[dict[str, Any]], None]] = {}
        self.failure: Refusal | None = None
        self._lost = lost
        self._decoder = FrameDecoder(MAX_FRAME_BYTES)
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]

    def send(self, message: dict[str, Any]) -> None:
        """Send a message; do nothing after the connection's end, of which all askers were told."""
        self.write(encode_frame(message))

    def write(self, frame: bytes) -> None:
        """Send an encoded frame; do nothing where the connection has ended."""
        if self.failure is None:
            self._transport.write(frame)

    def close(self) -> None:
        self._transport.close()

    def data_received(self, data: bytes) -> None:
        for body in self._decoder.feed(data):
            self._route(body)

    def _route(self, body: bytes) -> None:
        head = decode_head(body)
        asker = self.answers.get(head.id or "")
        if asker is not None:
            asker(decode_any(body))
            return
        if head.event not in OF_REQUESTS:
            return
        event = decode_event(body)
        if event.id is not None:
            take = self.requests.get(event.id)
            if take is not None:
                if event.is_last:
                    del self.requests[event.id]
                take(event)
        elif event.event == "error":  # of the connection as a whole; its end follows
            self.failure = of_daemon(event)

    def connection_lost(self, error: Exception | None) -> None:
        if self.failure is None:
            self.failure = Refusal(503, E_IO_001, "the daemon closed the connection")
        self._lost(self)
        code, text = self.failure.code, self.failure.message
        for id, take in list(self.requests.items()):
            take(Event(event="error", id=id, code=code, message=text))
        for answer in list(self.answers.values()):
            answer({"event": "error", "code": code, "message": text})
        self.requests.clear()
        self.answers.clear()


OWNER: ContextVar[str] = ContextVar("owner", default="")  # of the key of the request at work
IMAGES: ContextVar[str] = ContextVar("images", default="")  # as the request at work wants them
MODEL: ContextVar[str] = ContextVar("model", default="")  # that the request at work names
# what the request at work is for, where no model of its name is here
ROLE: ContextVar[str] = ContextVar("role", default="")
SHARED = ("tokenize", "detokenize", "render", "embed", "rerank")  # what the daemon answers in turns


def with_model(message: dict[str, Any]) -> dict[str, Any]:
    """Return the message with the name of the model that the HTTP request asks for."""
    if IMAGES.get() and ("messages" in message or isinstance(message.get("prompt"), list)):
        message = {**message, "images": IMAGES.get()}
    return {**message, "model": MODEL.get()} if MODEL.get() else message


class Link:
    """``path`` is the daemon's socket; ``max_body_bytes`` and ``max_tokens`` are its limits.

    ``image_urls``: pictures are fetched where a request has their address.
    """

    def __init__(self, path: str, image_urls: bool = False) -> None:
        self.path, self._image_urls = path, image_urls
        self.max_body_bytes = BODY_BYTES
        self.max_tokens = 0  # of one request; 0: not known yet
        self.max_prompt_bytes = 0  # the same
        self.max_unsent_bytes = 0  # of one answer; the same
        self._connections: list[Connection] = []
        self._opening = asyncio.Lock()
        self._prefix = os.urandom(4).hex()
        self._count = 0
        self.max_frame_bytes = self._n_ctx = 0
        self._max_picture_bytes = 0  # of all pictures of a conversation
        self._idle_s = 0.0  # after which the daemon closes; 0: never, or not known yet

    def new_id(self) -> str:
        """An id that no other connection of this process uses."""
        self._count += 1
        return f"{self._prefix}-{self._count}"

    async def connection(self) -> Connection:
        """The one with least to do.  Raises ``Refusal`` where no daemon answers."""
        best = min(self._connections, key=lambda c: len(c.requests), default=None)
        if best is not None and (len(best.requests) < BUSY or len(self._connections) >= MOST):
            return best
        async with self._opening:
            if len(self._connections) < (1 if best is None else MOST):
                try:
                    return await self._open()
                except Refusal:
                    if best is None or best.failure is not None:
                        raise
        return min(self._connections, key=lambda c: len(c.requests))

    async def _open(self) -> Connection:
        loop = asyncio.get_running_loop()
        try:
            sock = await asyncio.to_thread(connected, self.path, TAKEN_S)
            refuse_strangers(sock, self.path)
            sock.setblocking(False)
            _, made = await loop.create_unix_connection(
                lambda: Connection(self._connections.remove), sock=sock
            )
        except (OSError, ConnectionFailed) as error:
            why = error.strerror if isinstance(error, OSError) else str(error)
            text = f"the daemon cannot be reached ({why})"
            raise Refusal(503, E_IO_001, text) from None
        self._connections.append(made)
        try:
            about = await self._ask(made, {"type": "info", "relays": True}, TAKEN_S)
        except BaseException:  # its client may have left too
            if made in self._connections:
                made.close()
            raise
        self._take_limits(about["info"]["limits"])
        return made

    def _take_limits(self, limits: dict[str, Any]) -> None:
        self.max_body_bytes = int(limits["max_body_bytes"])
        self.max_tokens = int(limits["max_tokens"])
        self.max_prompt_bytes = int(limits["max_prompt_bytes"])
        self.max_unsent_bytes = int(limits["max_unsent_bytes"])
        self.max_frame_bytes, self._n_ctx = int(limits["max_frame_bytes"]), int(limits["n_ctx"])
        self._max_picture_bytes = int(limits["max_picture_bytes"])
        self._idle_s = float(limits["idle_timeout_s"])

    async def check_size(self, size: int) -> None:
        """Raises ``Refusal`` where a frame of so many bytes is longer than the daemon takes.

        It would close the connection, which others use.  Another model may have other limits.
        """
        if size <= min(SMALL_BYTES, self.max_frame_bytes):
            return
        self._take_limits((await self.ask({"type": "info"}))["info"]["limits"])
        if size > self.max_frame_bytes:
            raise too_long(size, self._n_ctx)

    async def fit(self, message: dict[str, Any], files: Fetched | None = None) -> dict[str, Any]:
        """Return the message with those of its pictures that a model may read now.

        ``files``: of the addresses in it, or of a message like it; None: none is fetched.
        """
        if not has_pictures(message):
            return message
        self._take_limits((await self.ask({"type": "info"}))["info"]["limits"])
        most = self._max_picture_bytes
        are_fetched = self._image_urls and most > 0
        return fitting(await filled(message, files if are_fetched else None, most), most)

    async def ask(self, message: dict[str, Any], within_s: float | None = ANSWER_S) -> Any:
        """The answer to an admin message, as a dict.  Raises ``Refusal``.

        The daemon hears when nobody waits for it any more.
        """
        if message["type"] in SHARED and OWNER.get():
            message = {**message, "key": OWNER.get()}
        if message["type"] in (*SHARED, "info"):
            message = await self.fit(with_model(message))
        if message["type"] != "info":
            await self.check_size(len(encode_frame(message)))
        return await self._ask(await self.connection(), message, within_s)

    async def _ask(
        self, connection: Connection, message: dict[str, Any], within_s: float | None = ANSWER_S
    ) -> dict[str, Any]:
        loop = asyncio.get_running_loop()
        done: asyncio.Future[dict[str, Any]] = loop.create_future()
        named = message.get("id")  # of a request that is to end or to change its lane
        key = named or self.new_id()

        def take(answer: dict[str, Any]) -> None:
            if answer.get("event") != "progress" and not done.done():
                done.set_result(answer)

        def give_up() -> None:
            if named is None:
                connection.send({"type": "cancel", "id": key})

        def expire() -> None:
            give_up()
            text = "the daemon takes too long to answer"
            take({"event": "error", "code": E_IO_001, "message": text})

        connection.answers[key] = take
        # not `wait_for`, which forgets a cancel that comes together with the answer
        timer = None if within_s is None else loop.call_later(within_s, expire)
        try:
            connection.send({**message, "id": key})
            answer = await done
        except asyncio.CancelledError:
            give_up()
            raise
        finally:
            connection.answers.pop(key, None)
            if timer is not None:
                timer.cancel()
        if answer.get("event") == "error":
            raise of_daemon(convert(answer, Event))
        return answer

    async def keep(self) -> None:
        """Have a connection, and keep those that there are from falling idle; until cancelled."""
        while True:
            wait_s = min(PING_S, max(0.05, self._idle_s / 3)) if self._idle_s else PING_S
            try:
                if not self._connections:
                    await self.connection()
                for each in list(self._connections):
                    each.send({"type": "ping"})
            except Refusal:
                wait_s = 1.0
            await asyncio.sleep(wait_s)

    def close(self) -> None:
        """Close all connections; the daemon then cancels their requests."""
        for each in list(self._connections):
            each.close()


def link_of(request: Request) -> Link:
    """The way to the daemon."""
    link: Link = request.state.link
    return link
