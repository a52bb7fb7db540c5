"""What every request passes before any route: host, origin, key, size.

A path with doubled slashes or one at its end is the path without them: base URLs are often written
so.

There is no way around it: the guard is the application that the server is given.  It also makes
the last error of what fails inside, and never says more of that than its kind.
"""

from __future__ import annotations

import asyncio
import re
import traceback
from collections.abc import Callable

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from umaserve.gateway.daemon.link import Link
from umaserve.gateway.daemon.refusal import INTERNAL, Refusal, error_body
from umaserve.gateway.host import host_is_ours, host_of
from umaserve.gateway.keys import Keys
from umaserve.gateway.page import wants_page
from umaserve.gateway.settings import Settings
from umaserve.gateway.translate.body import Gone

URL = "umaserve.url"  # of the scope: the request's target as it came
ALLOWED_HEADERS = "authorization, content-type, x-api-key, x-uma-priority, x-uma-session, x-uma-app"
EXPOSED_HEADERS = "x-uma-lane, x-uma-cache, retry-after"
PREFLIGHT_S = 600
_SLASHES = re.compile("//+")

Say = Callable[[str, str], None]


class Guard:
    """An ASGI application around another one.  ``say`` takes a level and a line for the log."""

    def __init__(
        self, app: ASGIApp, settings: Settings, keys: Keys, link: Link, say: Say
    ) -> None:
        self._app, self._settings, self._keys = app, settings, keys
        self._link, self._say = link, say
        self._origins = frozenset(origin.lower().rstrip("/") for origin in settings.origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        scope["path"] = _SLASHES.sub("/", scope["path"]).rstrip("/") or "/"
        answer = _Answer(send)
        try:
            headers = Headers(scope=scope)
            self._check_host(scope, headers)
            origin = self._checked_origin(headers, scope["method"])
            if origin:
                answer.add(
                    ("access-control-allow-origin", origin), ("vary", "origin"),
                    ("access-control-expose-headers", EXPOSED_HEADERS),
                )  # fmt: skip
                if scope["method"] == "OPTIONS" and "access-control-request-method" in headers:
                    return await _preflight(answer)
            scope.setdefault("state", {})["key"] = self._checked_key(scope, headers)
            await self._app(scope, self._bounded(headers, receive), answer)
        except Gone:
            pass
        except Refusal as refusal:
            await answer.refuse(scope, refusal)
        except asyncio.CancelledError:
            await answer.refuse(scope, Refusal(503, "ending", "the gateway is ending"))
        except Exception as error:
            self._say("error", f"{scope['method']} of a route failed: {where(error)}")
            await answer.refuse(scope, Refusal(500, "internal_error", INTERNAL))

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

    def _checked_key(self, scope: Scope, headers: Headers) -> str:
        """The name of the key; empty where none is asked for: the page holds nothing."""
        reads = scope["path"] == "/" and scope["method"] in ("GET", "HEAD")
        if not self._keys or reads and wants_page(headers.get("accept", "")):
            return ""
        kind, _, bearer = headers.get("authorization", "").partition(" ")
        given = headers.get("x-api-key") or (bearer.strip() if kind.lower() == "bearer" else "")
        name = self._keys.name_of(given) if given else None
        if name is None:
            text = "the API key is wrong" if given else "an API key is needed"
            text += "; send it as Authorization: Bearer KEY or as X-Api-Key"
            raise Refusal(401, "invalid_api_key", text, (("www-authenticate", "Bearer"),))
        return name

    def _bounded(self, headers: Headers, receive: Receive) -> Receive:
        """``receive``, for a body that is short enough; refused before it is read where it says
        its length."""
        most, size = self._link.max_body_bytes, 0
        length = headers.get("content-length", "")
        if length.isdigit() and int(length) > most:
            raise _too_large(most)

        async def bounded() -> Message:
            nonlocal size
            message = await receive()
            if message["type"] == "http.request":
                size += len(message.get("body", b""))
                if size > most:
                    raise _too_large(most)
            return message

        return bounded


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
        headers = [("content-type", "application/json"), ("content-length", str(len(body)))]
        headers += refusal.headers
        raw = [(name.encode(), value.encode("latin-1")) for name, value in headers]
        await self({"type": "http.response.start", "status": refusal.status, "headers": raw})
        await self({"type": "http.response.body", "body": body})


async def _preflight(answer: _Answer) -> None:
    answer.add(
        ("access-control-allow-methods", "GET, HEAD, POST, DELETE"),
        ("access-control-allow-headers", ALLOWED_HEADERS),
        ("access-control-max-age", str(PREFLIGHT_S)),
    )
    await answer({"type": "http.response.start", "status": 204, "headers": []})
    await answer({"type": "http.response.body"})


def _foreign(who: str) -> Refusal:
    return Refusal(403, "origin_not_allowed", f"{who} may not ask here; --allow-origin names pages")


def _too_large(most: int) -> Refusal:
    return Refusal(413, "body_too_large", f"the body is longer than {most} bytes")


def where(error: BaseException) -> str:
    """The kind of an error and where it was raised; its text may hold what somebody asked."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f" at {frames[-1].filename}:{frames[-1].lineno}" if frames else ""
    return f"{type(error).__name__}{place}"
