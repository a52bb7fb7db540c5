"""Decoded frames of the daemon: events of a request, and answers."""

from __future__ import annotations

from typing import Any

import msgspec


class Head(msgspec.Struct):
    """Fields that any frame may have; an answer's other fields may be of any type."""

    event: str = ""
    id: str | None = None


class Event(msgspec.Struct, omit_defaults=True):
    """Frame of the daemon.  For requests, ``event`` is one of ``OF_REQUESTS``.

    ``message`` is the text of an error, or the whole message at the end of a chat with tools.
    ``model`` is the name of the model that answers, told as the request begins.
    ``stop`` is the stop string that ended the answer, ``stop_token`` the token that did so.
    ``dropped_tokens`` is the number of tokens removed from a full context.
    ``unread`` has the types of the conversation's parts that the model got a sentence for.
    ``open_parts`` are parts of the tools' schemas that constrain nothing.
    ``processed`` is the number of the prompt's tokens that are computed or cached so far.
    ``n_prompt_tokens`` and ``n_ctx`` go with an error for a prompt that is too long.
    ``token`` and ``bytes`` are the token's own text and bytes, beside ``logprob``.
    ``rated`` are the ``logprobs`` of the prompt's tokens, which came in events of their own.
    """

    event: str = ""
    id: str | None = None
    text: str | None = None
    token_id: int = -1
    token_ids: list[int] | None = msgspec.field(default=None, name="tokens")
    deltas: bool = False
    lane: str = ""
    lane_reason: str = ""
    model: str = ""
    logprob: float | None = None
    token: str | None = None
    bytes: list[int] | None = None
    top_logprobs: list[dict[str, Any]] | None = None
    logprobs: list[dict[str, Any]] | None = None
    content: str | None = None
    reasoning: str | None = None
    tool_calls: list[dict[str, Any]] | None = None
    reason: str = ""
    usage: dict[str, int] | None = None
    timings: dict[str, float | None] | None = None
    message: Any = None
    metadata: Any = None
    stop: str | None = None
    stop_token: int = -1
    dropped_tokens: int = 0
    unread: list[str] | None = None
    open_parts: list[dict[str, str]] | None = None
    code: str = ""
    processed: int = 0
    n_prompt_tokens: int | None = None
    n_ctx: int = 0
    rated: list[dict[str, Any]] | None = None

    @property
    def is_last(self) -> bool:
        return self.event in ("eos", "error")

    def tokens(self, name: str) -> int:
        """A count of ``usage``; 0 where it is not told."""
        return int((self.usage or {}).get(name) or 0)

    def ms(self, name: str) -> float:
        """A time of ``timings`` in milliseconds; 0 where it is not told."""
        return float((self.timings or {}).get(name) or 0.0)


OF_REQUESTS = ("begin", "progress", "token", "delta", "echo", "prompt_logprobs", "eos", "error")
decode_head = msgspec.json.Decoder(Head).decode
decode_event = msgspec.json.Decoder(Event).decode
decode_any = msgspec.json.Decoder().decode
