"""Answers to HTTP requests: whole ones and streams.

A stream's status goes out with its first event, or after `HOLD_S` without an event.  So what is
refused at once has the status of an error.  From then on there is a ping at least every `PING_S`.
"""

from __future__ import annotations

import abc
from collections.abc import Iterable
from typing import Any
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from umaserve.gateway.daemon.event import Event
from umaserve.gateway.daemon.exchange import Exchange, Numbered
from umaserve.gateway.daemon.link import Link, link_of
from umaserve.gateway.daemon.refusal import Refusal, encode, of_daemon
from umaserve.gateway.translate.body import flag_of
from umaserve.gateway.translate.caller import lane_header
from umaserve.gateway.translate.prompts import tokens_of_each
from umaserve.protocol.tables.settings import MAX_LOGIT_BIAS

HOLD_S = 2.0
PING_S = 5.0
MAX_OPEN_CHARS = 1024

EVENT_STREAM = "text/event-stream"
SSE_COMMENT = b": \n\n"

Headers = dict[str, str]


class Translator(abc.ABC):
    """Base class for answers in the words of one family: whole, or as the bytes of a stream."""

    content_type = EVENT_STREAM
    headers: Headers = {}  # of a stream and of a whole answer

    @property
    def ping(self) -> bytes:
        """Bytes that keep the stream alive and add nothing to the answer."""
        return SSE_COMMENT

    @abc.abstractmethod
    def whole(self, ends: list[Event]) -> Any:
        """Return the answer of a request that does not stream, from the ends at the daemon."""

    def begin(self) -> bytes:
        """Return the bytes before the first event.  Raises ``Refusal`` for a wrong setting."""
        return b""

    def begun(self, number: int, begin: Event) -> None:  # noqa: B027 (most families say nothing)
        """Take the ``begin`` of the request with that number, before its other events."""

    @abc.abstractmethod
    def feed(self, number: int, event: Event) -> bytes:
        """Translate a ``token``, ``delta`` or ``eos`` of the request with that number.

        Other events come too, where the request asked for them.
        """

    @abc.abstractmethod
    def fail(self, refusal: Refusal) -> bytes:
        """Translate an error, which ends the stream; ``end`` is not called then."""

    def end(self) -> bytes:
        """Return the bytes after the last event."""
        return b""


def sse(told: dict[str, Any], name: str = "") -> bytes:
    """Return a server-sent event; the value of its field ``name`` is the event's type too."""
    kind = b"event: %b\n" % told[name].encode() if name else b""
    return b"%bdata: %b\n\n" % (kind, encode(told))


def json_response(body: Any, status: int = 200, headers: Headers | None = None) -> Response:
    """``body`` as JSON."""
    return Response(encode(body), status, headers, "application/json")


def cache_header(events: Iterable[Event]) -> Headers:
    """``X-UMA-Cache``, cached of all prompt tokens, and ``X-UMA-Lane`` as the daemon tells it.

    ``X-UMA-Model`` is the model that answers.  ``X-UMA-Open`` has the parts of tools' schemas that
    bind nothing, ``X-UMA-Unread`` the types of the conversation's unread parts.  All are of the
    beginnings or the ends of requests; nothing where there is none.
    """
    told = list(events)
    if not told:
        return {}
    cached = sum(event.tokens("cached_tokens") for event in told)
    headers = {"x-uma-cache": f"{cached}/{sum(event.tokens('prompt_tokens') for event in told)}"}
    if told[0].model:
        headers["x-uma-model"] = quote(told[0].model, safe=" /#:()[]+,$.-_")
    if told[0].lane:
        headers["x-uma-lane"] = f"{told[0].lane}; {told[0].lane_reason}"
    if unread := next((each.unread for each in told if each.unread), None):
        headers["x-uma-unread"] = quote(", ".join(unread), safe=" ,/_-.")[:MAX_OPEN_CHARS]
    if told[0].open_parts:
        headers["x-uma-open"] = _open(told[0].open_parts)
    return headers


def _open(parts: list[dict[str, str]]) -> str:
    """Each as ``tool#/path keyword``, as many as a header should hold."""
    shown: list[str] = []
    for part in parts:
        place = quote(part["tool"] + part["path"], safe="/#~$.-_")
        shown.append(f"{place} {part['keyword']}")
        if sum(map(len, shown)) > MAX_OPEN_CHARS:
            return ", ".join([*shown[:-1], f"and {len(parts) - len(shown) + 1} more"])
    return ", ".join(shown)


async def answer(
    request: Request,
    body: dict[str, Any],
    messages: list[dict[str, Any]],
    translator: Translator,
    *,
    streams: bool = False,
    trim: bool = True,
) -> Response:
    """Answer with what comes of ``messages``.  Raises ``Refusal``, also for a stream's beginning.

    ``streams``: whether the answer is a stream where the body does not say.
    """
    is_stream = flag_of(body, "stream", streams)
    begin = translator.begin() if is_stream else b""
    headers = {"x-uma-lane": lane_header(messages[0]), **translator.headers}
    exchange = Exchange(link_of(request))
    try:
        for message in await _with_bias_of_texts(link_of(request), messages):
            await exchange.begin(message if is_stream else {**message, "stream": False}, trim)
        if not is_stream:
            ends = await exchange.whole()
            exchange.cancel()  # the pictures that were fetched are not needed any more
            return json_response(translator.whole(ends), headers=headers | cache_header(ends))
        first = await exchange.next(HOLD_S)
        if first and first[0][1].event == "error":
            raise of_daemon(first[0][1])
    except BaseException:
        exchange.cancel()
        raise
    headers |= cache_header(exchange.begun.values())
    return _Stream(exchange, begin, first, translator, headers)


async def _with_bias_of_texts(link: Link, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """``messages`` of one request, with token ids where ``logit_bias`` has texts.

    The tokens of each text get its bias, as llama-server does it.  The daemon refuses what is
    malformed.
    """
    given = messages[0].get("logit_bias")
    pairs = [*given.items()] if isinstance(given, dict) else given
    if not isinstance(pairs, list) or len(pairs) > MAX_LOGIT_BIAS:
        return messages
    if not all(isinstance(pair, list | tuple) and len(pair) == 2 for pair in pairs):
        return messages
    texts = [text for text, _ in pairs if isinstance(text, str) and not _is_id(text)]
    if not texts:
        return messages
    known = dict(zip(texts, await tokens_of_each(link, texts), strict=True))
    found = [
        [token, bias]
        for name, bias in pairs
        for token in (known[name] if isinstance(name, str) and name in known else [name])
    ]
    return [{**message, "logit_bias": found} for message in messages]


def _is_id(text: str) -> bool:
    return text.isascii() and text.isdigit()


class _Stream(Response):
    """A response that is written as the daemon's events come."""

    def __init__(
        self,
        exchange: Exchange,
        begin: bytes,
        first: list[Numbered],
        translator: Translator,
        headers: Headers,
    ) -> None:
        self.status_code = 200
        self.background = None
        self._exchange, self._translator = exchange, translator
        self._begin, self._first = begin, first
        self._begun: set[int] = set()
        self.init_headers(
            {**headers, "content-type": translator.content_type, "cache-control": "no-cache"}
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
            await send(start)
            await self._send_all(send)
        finally:
            self._exchange.cancel()

    async def _send_all(self, send: Send) -> None:
        exchange, translator, batch = self._exchange, self._translator, self._first
        out = self._begin
        while True:
            over = self._translate(batch, parts := [out] if out else [])
            if not batch:
                parts.append(translator.ping)
            if exchange.is_gone:
                return
            body = {"type": "http.response.body", "body": b"".join(parts), "more_body": not over}
            await send(body)
            if over:
                return
            batch, out = await exchange.next(PING_S), b""

    def _translate(self, batch: list[Numbered], parts: list[bytes]) -> bool:
        """Whether this was the end."""
        begun = self._exchange.begun
        for number, event in batch:
            if number in begun and number not in self._begun:
                self._begun.add(number)
                self._translator.begun(number, begun[number])
            if event.event == "error":
                refusal = of_daemon(event)
                parts.append(self._translator.fail(refusal))
                return True
            parts.append(self._translator.feed(number, event))
        if self._exchange.is_over:
            parts.append(self._translator.end())
            return True
        return False
