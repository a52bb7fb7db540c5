"""Tokens with their log-probabilities, as OpenAI's chats and Ollama write them."""

from __future__ import annotations

from typing import Any

from umaserve.gateway.daemon.event import Event


def token_of(event: Event) -> dict[str, Any]:
    """A token event's part of ``logprobs``."""
    return {"text": event.text, "logprob": event.logprob, "top_logprobs": event.top_logprobs or []}


def entry_of(token: dict[str, Any], top: Any = None) -> dict[str, Any]:
    """A token, with its alternatives where they are given."""
    text = str(token.get("text") or "")
    entry = {"token": text, "logprob": finite(token.get("logprob")), "bytes": [*text.encode()]}
    if top is not None:
        entry["top_logprobs"] = [entry_of(each) for each in top]
    return entry


def finite(value: Any) -> float:
    """Clients take no ``null`` here; as many digits as the socket's tokens have."""
    return -9999.0 if value is None else round(float(value), 6)
