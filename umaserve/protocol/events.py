"""Encoders of what the server says: each returns the bytes of one whole frame.

A token event is written by joining prepared pieces (a prefix per request) instead of building a
dict.  At a thousand tokens a second the front should cost next to nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from umaserve.protocol.errors import Overflow
from umaserve.protocol.frames import encode_frame, frame

REASONS = ("stop", "length", "cancel", "error", "tool_calls")

_encode = msgspec.json.Encoder().encode


class TopLogprob(NamedTuple):
    """An alternative of a token; ``logprob`` is the natural logarithm of its probability.

    ``text`` is its own, or the name of a token without text; U+FFFD stands for bytes that are no
    character.  ``piece`` is what it adds to a text.
    """

    token_id: int
    text: str
    piece: bytes
    logprob: float

    def told(self) -> dict[str, Any]:
        """The alternative as JSON tells it."""
        value = round(self.logprob, 6) if math.isfinite(self.logprob) else None
        own = {"token_id": self.token_id, "text": self.text, "bytes": [*self.piece]}
        return {**own, "logprob": value}


class Rated(NamedTuple):
    """Log-probability of a token that was generated; ``top`` are the alternatives, best first.

    ``token`` and ``piece`` are its own, as ``text`` and ``piece`` of `TopLogprob`.
    """

    token: str
    piece: bytes
    logprob: float
    top: Sequence[TopLogprob]


class Usage(msgspec.Struct):
    """Token counts of one request; ``cached_tokens`` of the prompt were not computed again.

    ``drafted_tokens`` were fed to be verified, and ``accepted_tokens`` of these are in the answer;
    both are left out of the event where nothing was drafted.
    """

    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    drafted_tokens: int | msgspec.UnsetType = msgspec.UNSET
    accepted_tokens: int | msgspec.UnsetType = msgspec.UNSET


class Timings(msgspec.Struct):
    """Milliseconds of one request; ``None`` where there is nothing to time yet."""

    queue_ms: float | None = None
    ttft_ms: float | None = None
    total_ms: float | None = None
    tbt_p50_ms: float | None = None
    tbt_p95_ms: float | None = None


class TokenEncoder:
    """Token events of one request: ``encoder = TokenEncoder("a"); encoder("Hel", 123)``."""

    __slots__ = ("_prefix",)

    def __init__(self, id: str) -> None:
        self._prefix = b'{"id":' + _encode(id) + b',"event":"token","text":'

    def __call__(self, text: str, token_id: int, rated: Rated | None = None) -> bytes:
        """Encode a token as a frame; ``rated`` where the request asked for log-probabilities."""
        body = b'%b%b,"token_id":%d' % (self._prefix, _encode(text), token_id)
        if rated is not None:
            body += b"," + _encode(rated_fields(rated))[1:-1]
        return frame(body + b"}")


def rated_fields(rated: Rated) -> dict[str, Any]:
    """Return log-probability fields of a token: its own text and bytes, and the alternatives."""
    own = TopLogprob(-1, rated.token, rated.piece, rated.logprob).told()
    return {
        "token": own["text"],
        "bytes": own["bytes"],
        "logprob": own["logprob"],
        "top_logprobs": [each.told() for each in rated.top],
    }


class Beginning(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Fields of a request that has its sequence; ``None`` leaves a field out.

    ``deltas``: its answer is read as a message.  ``model`` is the name of the model that answers,
    ``usage`` counts the prompt.  ``open_parts`` of its tools' schemas bind nothing.  ``unread`` as
    of `Ending`.
    """

    lane: str
    lane_reason: str
    deltas: bool
    model: str
    usage: dict[str, int]
    open_parts: Sequence[Any] | None = None
    unread: Sequence[str] | None = None


def begin_event(id: str, beginning: Beginning) -> bytes:
    """Encode the beginning of a request."""
    return _event(id, "begin", beginning)


def progress_event(id: str, processed: int) -> bytes:
    """Encode how many tokens of a prompt are computed or cached so far."""
    return frame(b'{"id":%b,"event":"progress","processed":%d}' % (_encode(id), processed))


def _event(id: str, event: str, fields: msgspec.Struct) -> bytes:
    return frame(b'{"id":%b,"event":"%b",%b' % (_encode(id), event.encode(), _encode(fields)[1:]))


def echo_event(id: str, text: str, tokens: Sequence[int]) -> bytes:
    """The prompt of a request that streams: its text, and its token ids as the engine has them."""
    return encode_frame({"id": id, "event": "echo", "text": text, "tokens": tokens})


def prompt_logprobs_event(id: str, logprobs: list[dict[str, Any]]) -> bytes:
    """Encode log-probabilities of the next tokens of a prompt: objects as `Ending` has them."""
    return encode_frame({"id": id, "event": "prompt_logprobs", "logprobs": logprobs})


class Ending(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Fields of a request's end; ``None`` leaves a field out.

    ``stop`` is the stop string that ended the answer, else ``stop_token`` the token with which the
    model did.  ``text`` is the whole answer and ``tokens`` its ids, of requests with ``stream``
    false.  ``logprobs`` then has an object for each token (``token_id``, ``text``, ``logprob``,
    ``top_logprobs``).  ``message`` is the message that the text was parsed to.  ``dropped_tokens``
    left the context when it was full.  ``unread`` are the types of the conversation's parts that a
    sentence stood for.  ``open_parts`` as of `Beginning`.  ``metadata`` is echoed as it came: a
    ``msgspec.Raw`` or any JSON value.
    """

    reason: str
    stop: str | None = None
    stop_token: int | None = None
    text: str | None = None
    tokens: Sequence[int] | None = None
    logprobs: list[dict[str, Any]] | None = None
    message: Any = None
    dropped_tokens: int | None = None
    unread: Sequence[str] | None = None
    open_parts: Sequence[Any] | None = None
    usage: Usage | dict[str, Any]
    timings: Timings | dict[str, Any]
    metadata: Any = None


def eos_event(id: str, ending: Ending) -> bytes:
    """Encode the end of a request."""
    if ending.reason not in REASONS:
        raise ValueError(f"reason {ending.reason!r} is not one of {', '.join(REASONS)}")
    return _event(id, "eos", ending)


def delta_event(id: str, delta: dict[str, Any]) -> bytes:
    """Encode the new part of a message: ``content``, ``reasoning`` or ``tool_calls``."""
    return encode_frame({"id": id, "event": "delta", **delta})


def error_event(id: str | None, code: str, message: str, overflow: Overflow | None = None) -> bytes:
    """An error; ``id`` is ``None`` where the message that caused it had none."""
    event: dict[str, Any] = {} if id is None else {"id": id}
    event.update(event="error", code=code, message=message)
    if overflow is not None:
        event |= overflow._asdict()
    return encode_frame(event)


def admin_event(event: str, id: str | None = None, **fields: Any) -> bytes:
    """The answer to an admin message, such as ``admin_event("pong")``; ``id`` is echoed."""
    body: dict[str, Any] = {} if id is None else {"id": id}
    body["event"] = event
    body.update(fields)
    return encode_frame(body)
