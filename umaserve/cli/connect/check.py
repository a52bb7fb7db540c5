"""``connect APP --check``: a request as the app makes it, and what the daemon saw."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import suppress
from http.client import HTTPException, HTTPResponse
from typing import Any

from umaserve.cli.connect.daemon import LIVE_S, open_http, path_below, refused
from umaserve.cli.parts.common import EXIT_OK, EXIT_SERVER, in_a_line, say, show
from umaserve.client import Client, UmaError
from umaserve.connect.apps import App, Ask, Target

ANSWER_S = 300.0  # a daemon may be busy
MOST_BYTES = 1 << 20


class _Watch:
    """Looks at the daemon's requests while ours runs; ``row`` is the newest look at ours."""

    def __init__(self, socket: str | None) -> None:
        self.row: dict[str, Any] | None = None
        self.several = False  # other programs asked at the same time
        self._newest = 0
        self._client: Client | None = None
        with suppress(UmaError):  # the socket may not be here
            client = Client(socket, timeout=LIVE_S)
            self._newest = max((row["serial"] for row in _rows(client)), default=0)
            self._client = client

    @property
    def works(self) -> bool:
        return self._client is not None

    def look(self) -> None:
        """Take the one request that is new; of several nobody knows whose they are."""
        with suppress(UmaError):
            rows = _rows(self._client) if self._client else ()
            fresh = {row["serial"]: row for row in rows if row["serial"] > self._newest}
            self.several = len(fresh) > 1
            row = next(iter(fresh.values())) if len(fresh) == 1 else None
            if row is None or self.row is None or "session" in row:  # what runs tells more
                self.row = row


def _rows(client: Client) -> list[dict[str, Any]]:
    """The requests that run, wait or have ended lately."""
    info = client.info()
    return [*info.get("recent", ()), *info["sessions"]]


def check(app: App, target: Target, socket: str | None) -> int:
    """Ask what the app would ask; returns the exit status."""
    return max(_check(app, ask, target, socket) for ask in app.asks(target))


def _check(app: App, ask: Ask, target: Target, socket: str | None) -> int:
    show(f"POST {target.url}{ask.route}, as {app.title} sends it")
    connection, watch = open_http(target.url, ANSWER_S), _Watch(socket)
    begun_s = time.monotonic()
    try:
        headers = {"Content-Type": "application/json", **ask.headers}
        body = json.dumps(ask.body).encode()
        connection.request("POST", path_below(target.url, ask.route), body, headers)
        response = connection.getresponse()
        if response.status != 200:
            why = refused(target.url, response, response.read(MOST_BYTES), target.key)
            say(f"error: {why}")
            return EXIT_SERVER
        events, said, error = _read(response, bool(ask.body.get("stream")), watch)
    except (OSError, HTTPException, ValueError) as failure:
        say(f"error: {target.url} broke off: {failure or type(failure).__name__}")
        return EXIT_SERVER
    finally:
        connection.close()
    if error:
        say(f"error: {target.url} says in its answer: {error}")
        return EXIT_SERVER
    took = f"{time.monotonic() - begun_s:.2f} s"
    show(f"  answered in {took}" + (f", {events} events" if ask.body.get("stream") else ""))
    show(f"  the answer begins: {in_a_line(said)}" if said else "  the answer has no text")
    for line in _saw(response, watch):
        show(f"  {line}")
    return EXIT_OK


def _read(response: HTTPResponse, stream: bool, watch: _Watch) -> tuple[int, str, str]:
    """How many events came, the text of the answer, and what went wrong in words."""
    watch.look()
    if not stream:
        return 1, text_of(json.loads(response.read(MOST_BYTES))), ""
    count, parts = 0, []
    for event in _events(response):
        watch.look()
        count += 1
        if isinstance(event, dict) and isinstance(event.get("error"), dict):
            return count, "", str(event["error"].get("message"))
        parts.append(text_of(event))
    return count, "".join(parts), "" if count else "nothing came"


def text_of(event: Any) -> str:
    """Return the text of an answer, or of an event of a stream, thoughts included.

    It may be of OpenAI's chats, completions or responses, or of Anthropic's messages.
    """
    if not isinstance(event, dict):
        return ""
    if str(event.get("type", "")).endswith("_text.delta"):
        return str(event.get("delta") or "")
    if event.get("type") == "content_block_delta":
        delta = event.get("delta") or {}
        return str(delta.get("text") or delta.get("thinking") or "")
    choice: dict[str, Any] = next(iter(event.get("choices") or ()), {})
    said = choice.get("delta") or choice.get("message") or {"content": choice.get("text")}
    return str(said.get("reasoning_content") or "") + str(said.get("content") or "")


def _events(response: HTTPResponse) -> Iterator[Any]:
    for line in response:
        if line.startswith(b"data:"):
            data = line[5:].strip()
            yield json.loads(data) if data.startswith(b"{") else data


def _saw(response: HTTPResponse, watch: _Watch) -> Iterator[str]:
    """Yield lines on the request: from headers, and from the daemon's socket while it ran."""
    lane = response.getheader("X-UMA-Lane")
    if watch.row is not None:
        told = f"the daemon saw: app {watch.row['app'] or 'without a name'}"
        if "session" in watch.row:  # of a request that is over, nobody knows it
            told += f", session {watch.row['session'] or 'none'}"
        yield told
        lane = f"{watch.row['lane']}; {watch.row['lane_reason']}"
    elif watch.several:
        yield "other programs asked at the same time, so the daemon cannot tell which this was"
    elif watch.works:
        yield "the request was over before the daemon could be asked about it"
    else:
        yield "app and session are told over the daemon's socket, which is not here"
    yield f"lane: {lane or 'not told'}"
    cached = response.getheader("X-UMA-Cache")
    if cached:
        known, _, prompt = cached.partition("/")
        yield f"cached: {known} of {prompt} tokens of the prompt"
