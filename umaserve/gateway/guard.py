"""Checks that every request passes before any route: host, origin, key, size.

Doubled slashes in a path, and a slash at its end, are removed: base URLs often have them.

The server runs the guard as its application, so no request bypasses the checks.  The guard also
cancels a route whose client leaves.  It answers an unexpected exception in a route with status 500,
and logs only the exception's kind and place.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import traceback
from collections.abc import Iterator
from functools import partial

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from umaserve.budget import Budget
from umaserve.gateway.callers import Callers, Say
from umaserve.gateway.daemon.link import IMAGES, OWNER, Link
from umaserve.gateway.daemon.refusal import INTERNAL, Refusal, error_body
from umaserve.gateway.host import host_is_ours, host_of
from umaserve.gateway.incoming import FULL, OF_BODIES, Incoming
from umaserve.gateway.keys import Keys
from umaserve.gateway.settings import Settings

URL = "umaserve.url"  # of the scope: the request's target as it came
MOST_ASKED_CHARS = 4096  # of the header names that a page asks for
EXPOSED_HEADERS = "x-uma-lane, x-uma-cache, x-uma-model, x-uma-unread, retry-after"
PREFLIGHT_S = 600
_SLASHES = re.compile("//+")
BODIES_BYTES = 256 * 1024 * 1024  # of bodies that are read or answered, of all keys


class Guard:
    """An ASGI application around another one.  ``say`` takes a level and a line for the log."""

    def __init__(self, app: ASGIApp, settings: Settings, keys: Keys, link: Link, say: Say) -> None:
        self._app, self._settings = app, settings
        self._callers = Callers(settings, keys, say)
        self._link, self._say = link, say
        # of a key's requests at a time, so that connections are left for other keys
        self._at_once = Budget(settings.max_connections) if settings.api_key_file else None
        self._bodies = Budget(BODIES_BYTES)
        self._origins = frozenset(origin.lower().rstrip("/") for origin in settings.origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        scope["path"] = _SLASHES.sub("/", scope["path"]).rstrip("/") or "/"
        headers = Headers(scope=scope)
        answer, body = _Answer(send), Incoming(headers, receive, self._link.max_body_bytes)
        try:
            self._check_host(scope, headers)
            origin = self._checked_origin(headers, scope["method"])
            if origin:
                answer.add(
                    ("access-control-allow-origin", origin), ("vary", "origin"),
                    ("access-control-expose-headers", EXPOSED_HEADERS),
                )  # fmt: skip
                if scope["method"] == "OPTIONS" and "access-control-request-method" in headers:
                    return await _preflight(answer, headers)
            caller = self._callers.of(scope, headers)
            scope.setdefault("state", {}).update(caller._asdict())
            OWNER.set(caller.key)
            IMAGES.set(headers.get("x-uma-images", ""))
            body.check()
            await self._while_there(body, scope, answer)
        except Refusal as refusal:
            refusal.__traceback__ = None  # it may be in a cycle with a frame that has the body
            if refusal.status in OF_BODIES or refusal.code == FULL:
                await body.read_on()
            await answer.refuse(scope, refusal)
        except asyncio.CancelledError:
            if body.is_left:
                return
            await answer.refuse(scope, Refusal(503, "ending", "the gateway is ending"))
        except Exception as error:
            self._say("error", f"{scope['method']} of a route failed: {where(error)}")
            await answer.refuse(scope, Refusal(500, "internal_error", INTERNAL))

    async def _while_there(self, body: Incoming, scope: Scope, answer: _Answer) -> None:
        """Run the route; it is cancelled when the client leaves, whatever it waits for."""
        task = asyncio.current_task()
        assert task is not None
        key = scope["state"]["key"]
        self._bodies.most = max(BODIES_BYTES, 4 * self._link.max_body_bytes)
        reading = asyncio.ensure_future(
            body.read_ahead(task.cancel, partial(self._bodies.take, key))
        )
        try:
            with self._place_of(key):
                await self._app(scope, body, answer)
        finally:
            reading.cancel()
            self._bodies.change(key, -body.held)

    @contextlib.contextmanager
    def _place_of(self, key: str) -> Iterator[None]:
        if self._at_once is None or not key:
            yield
            return
        if not self._at_once.take(key, 1):
            count = self._at_once.held_by(key)
            text = f"{count} requests of this key are being answered; wait for some of them"
            raise Refusal(429, "too_many_requests", text)
        try:
            yield
        finally:
            self._at_once.change(key, -1)

    def _check_host(self, scope: Scope, headers: Headers) -> None:
        if self._settings.any_host:
            return
        try:
            named = host_of(scope.get(URL, b"/").decode("latin-1"), headers.get("host", ""))
        except ValueError:
            raise Refusal(400, "bad_request", "the request's target is not a URL") from None
        # HTTP/1.0 may leave it out; browsers never do
        if named and not host_is_ours(named, self._settings.hosts):
            text = f"{named} is not a name of this server; use its IP address or localhost, or name"
            raise Refusal(421, "misdirected_request", f"{text} the host with --allow-host")

    def _checked_origin(self, headers: Headers, method: str) -> str:
        """The page that asks, where it is of another origin and may; else empty."""
        origin = headers.get("origin")
        if origin is None:
            site, mode = headers.get("sec-fetch-site", ""), headers.get("sec-fetch-mode", "")
            opened = mode == "navigate" and method in ("GET", "HEAD")  # a person follows a link
            if site in ("cross-site", "same-site") and not opened:
                raise _foreign("a page of another origin")
            return ""
        if origin.lower() in self._origins or "*" in self._origins:
            return origin
        named = origin.lower().partition("://")[2]  # it has no path
        if not named or named != headers.get("host", "").lower():
            raise _foreign("this origin")
        return ""


class _Answer:
    """``send`` of ASGI, with headers that are added to the response's own."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._more: list[tuple[bytes, bytes]] = []
        self._begun = False

    def add(self, *headers: tuple[str, str]) -> None:
        self._more += [(name.encode(), value.encode("latin-1")) for name, value in headers]

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._begun = True
            if self._more:
                message = {**message, "headers": [*message.get("headers", ()), *self._more]}
        await self._send(message)

    async def refuse(self, scope: Scope, refusal: Refusal) -> None:
        """Nothing where an answer has begun: it ends here, and the client sees that it is cut."""
        if self._begun:
            raise ConnectionAbortedError
        body = error_body(scope["path"], Headers(scope=scope), refusal)
        self.add(("content-type", "application/json"), ("content-length", str(len(body))))
        self.add(*refusal.headers)
        await self.send_whole(refusal.status, body)

    async def send_whole(self, status: int, body: bytes = b"") -> None:
        """Send an answer that has the added headers alone."""
        await self({"type": "http.response.start", "status": status, "headers": []})
        await self({"type": "http.response.body", "body": body})


async def _preflight(answer: _Answer, headers: Headers) -> None:
    """Any header is allowed to a page that may ask: clients have headers of their own."""
    answer.add(
        ("access-control-allow-methods", "GET, HEAD, POST, DELETE"),
        ("access-control-max-age", str(PREFLIGHT_S)),
        ("vary", "access-control-request-headers"),
    )
    asked = headers.get("access-control-request-headers", "")
    if asked and len(asked) <= MOST_ASKED_CHARS:
        answer.add(("access-control-allow-headers", asked))
    if "access-control-request-private-network" in headers:
        answer.add(("access-control-allow-private-network", "true"))
    await answer.send_whole(204)


def _foreign(who: str) -> Refusal:
    return Refusal(403, "origin_not_allowed", f"{who} may not ask here; --allow-origin names pages")


def where(error: BaseException) -> str:
    """The kind of an error and where it was raised; its text may hold what somebody asked."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f" at {frames[-1].filename}:{frames[-1].lineno}" if frames else ""
    return f"{type(error).__name__}{place}"
