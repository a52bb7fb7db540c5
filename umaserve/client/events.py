"""Results of requests: small immutable objects, and the errors that end a request."""

from __future__ import annotations

from typing import Any, NamedTuple


class Token(NamedTuple):
    """A generated token.

    ``text`` is whole UTF-8 and may be empty while a character is unfinished.  ``logprob`` (natural
    logarithm) and ``top_logprobs`` (dicts of token_id, text, bytes, logprob) are set when asked
    for.  ``token`` (its own text, or its name) and ``bytes`` (of its own text) are set when asked
    for too.
    """

    id: str
    text: str
    token_id: int
    logprob: float | None = None
    top_logprobs: list[dict[str, Any]] | None = None
    token: str | None = None
    bytes: list[int] | None = None


class Usage(NamedTuple):
    """Token counts; ``cached_tokens`` of the prompt did not have to be computed again.

    ``accepted_tokens`` of the answer had been drafted, as had the other ``drafted_tokens`` in vain.
    """

    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0


class Timings(NamedTuple):
    """Milliseconds from the request's arrival; ``None`` where there was nothing to time.

    ``queue_ms``: until it had a sequence; ``ttft_ms``: until its first token; ``total_ms``: until
    its end; ``tbt_p50_ms`` and ``tbt_p95_ms``: quantiles of the time between two tokens.
    """

    queue_ms: float | None = None
    ttft_ms: float | None = None
    total_ms: float | None = None
    tbt_p50_ms: float | None = None
    tbt_p95_ms: float | None = None


class Eos(NamedTuple):
    """The end of a request: ``reason`` is "stop", "tool_calls", "length", "cancel" or "error".

    ``message`` is what the answer was read as, where the request had ``tools`` or ``thinking``.
    ``stop`` is the stop string that ended it, ``stop_token`` the model's own token that did.
    ``text`` is the whole answer of a request with ``stream=False``, and empty for a stream, whose
    tokens have it; ``metadata`` is the request's, echoed.  The other fields are those of the
    protocol's ``eos``.  ``begin``, ``echo`` and ``prompt_logprobs`` have the events of these names,
    which come before the end; the log-probabilities are in one list.  A field is ``None`` where
    the request did not ask for it.
    """

    id: str
    reason: str
    usage: Usage = Usage()
    timings: Timings = Timings()
    text: str = ""
    metadata: Any = None
    message: dict[str, Any] | None = None
    stop: str | None = None
    stop_token: int | None = None
    tokens: list[int] | None = None
    logprobs: list[dict[str, Any]] | None = None
    dropped_tokens: int | None = None
    unread: list[str] | None = None
    open_parts: list[dict[str, Any]] | None = None
    begin: dict[str, Any] | None = None
    echo: dict[str, Any] | None = None
    prompt_logprobs: list[dict[str, Any]] | None = None


class Completion(NamedTuple):
    """A whole answer."""

    text: str
    reason: str
    usage: Usage
    timings: Timings


class UmaError(Exception):
    """Base of everything this package raises on purpose."""


class ServerError(UmaError):
    """The daemon refused or ended a request: ``code`` (``E_...``), ``message``, its ``id``."""

    def __init__(self, code: str, message: str, id: str | None = None) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message
        self.id = id


class ProtocolError(UmaError):
    """The other end does not speak the protocol; the connection is closed."""


class ConnectionFailed(UmaError):
    """There is no daemon to talk to, or it went away; the text says what to do."""


class OtherUser(ConnectionFailed):
    """The socket is another user's; nothing was sent.  The text says whose it is."""


class InvalidRequest(UmaError, ValueError):
    """The request cannot be written as JSON: a NaN, an infinity, or text that is no Unicode."""
