"""``connect APP --check``: a request as the app makes it, and what the daemon saw."""

from __future__ import annotations

import json
import threading
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
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.002, 0.2  # between two looks
MOST_BYTES = 1 << 20


class _Watch:
    """Looks at the daemon's requests while ours runs; ``row`` is the newest look at ours."""

    def __init__(self, socket: str | None) -> None:
        self.row: dict[str, Any] | None = None
        self._socket = socket
        before = _rows(socket)
        self.works = before is not None
        self._newest = max((row["serial"] for row in before or ()), default=0)
        self.several = False  # other programs asked at the same time
        self._connected, self._end = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> _Watch:
        if self.works:
            self._thread.start()
            self._connected.wait(LIVE_S)  # else a short request is over before the first look
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        if self.works:
            self._thread.join()

    def _look(self) -> None:
        """Often at first, as a short request is over soon."""
        pause_s = FIRST_PAUSE_S
        with suppress(UmaError), Client(self._socket, timeout=LIVE_S) as client:
            self._connected.set()
            while not self._end.wait(pause_s):
                pause_s = min(LONGEST_PAUSE_S, pause_s * 1.1)
                self._compare(client.info())
            self._compare(client.info())  # a short request is over, and told all the same
        self._connected.set()

    def _compare(self, info: dict[str, Any]) -> None:
        """Take the one request that is new; of several nobody knows whose they are."""
        rows = (*info.get("recent", ()), *info["sessions"])
        fresh = {row["serial"]: row for row in rows if row["serial"] > self._newest}
        self.several = len(fresh) > 1
        row = next(iter(fresh.values())) if len(fresh) == 1 else None
        if row is None or self.row is None or "session" in row:  # what runs tells more
            self.row = row


def _rows(socket: str | None) -> list[dict[str, Any]] | None:
    """The requests that run, wait or have ended lately; ``None`` where the socket is not here."""
    try:
        with Client(socket, timeout=LIVE_S) as client:
            info = client.info()
            return [*info.get("recent", ()), *info["sessions"]]
    except UmaError:
        return None


def check(app: App, target: Target, socket: str | None) -> int:
    """Ask what the app would ask; returns the exit status."""
    return max(_check(app, ask, target, socket) for ask in app.asks(target))


def _check(app: App, ask: Ask, target: Target, socket: str | None) -> int:
    show(f"POST {target.url}{ask.route}, as {app.title} sends it")
    connection = open_http(target.url, ANSWER_S)
    begun_s = time.monotonic()
    try:
        with _Watch(socket) as watch:
            headers = {"Content-Type": "application/json", **ask.headers}
            body = json.dumps(ask.body).encode()
            connection.request("POST", path_below(target.url, ask.route), body, headers)
            response = connection.getresponse()
            if response.status != 200:
                why = refused(target.url, response, response.read(MOST_BYTES), target.key)
                say(f"error: {why}")
                return EXIT_SERVER
            events, said, error = _read(response, bool(ask.body.get("stream")))
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


def _read(response: HTTPResponse, stream: bool) -> tuple[int, str, str]:
    """How many events came, the text of the answer, and what went wrong in words."""
    if not stream:
        return 1, text_of(json.loads(response.read(MOST_BYTES))), ""
    count, parts = 0, []
    for event in _events(response):
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
